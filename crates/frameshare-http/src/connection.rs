// SPDX-License-Identifier: MIT OR Apache-2.0

//! A connection that ends when its seat is lost, or its client leaves bytes unreceived.

use crate::seats::Seat;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    net::TcpStream,
    time::{Sleep, sleep},
};

/// Maximum time for which a client receives nothing of an answer.
pub const STALL: Duration = Duration::from_secs(20);

type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The connection of one client, which has a seat.
pub struct Connection {
    stream: TokioIo<TcpStream>,
    seat: Seat,
    lost: Lost,
    /// The time at which the client has received nothing for too long; none while it receives.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    pub fn new(stream: TcpStream, seat: Seat) -> Self {
        let lost = Box::pin(seat.lost());
        Self { stream: TokioIo::new(stream), seat, lost, stalled: None }
    }

    /// Returns the result of a call unless the seat is lost. If both are pending, either one wakes
    /// the task.
    fn unless_lost<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match result {
            Poll::Pending => {
                ready!(self.lost.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
            }
            result => result,
        }
    }

    fn write(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let result = self.unless_lost(context, result);
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL))).as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = result {
            self.seat.touch();
        }
        self.unless_lost(context, result)
    }
}

impl Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.write(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.write(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
