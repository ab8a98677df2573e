// SPDX-License-Identifier: MIT OR Apache-2.0

//! Server: accepts connections, and answers requests for its own Host.

use crate::{ForeignHost, Hosts, Seats, connection::Connection};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioTimer;
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};
use std::{
    convert::Infallible,
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, time::sleep};

/// Maximum number of connections, and the part of the descriptors of this process that they get.
const CONNECTIONS: (u64, u64) = (256, 4);
/// Maximum time for a client to send the headers of a request, and between two requests.
const HEADERS: Duration = Duration::from_secs(30);
/// Maximum number of headers of a request, and of bytes of all of them.
const MAX_HEADERS: (usize, usize) = (64, 16 << 10);
/// Pause while the system has no descriptor for the next connection.
const PAUSE: Duration = Duration::from_millis(20);

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: std::net::TcpListener,
    address: SocketAddr,
    hosts: Hosts,
}

/// The address of the client, an extension of each request.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub IpAddr);

impl Server {
    /// Listens on an address. Its requests are for the Hosts of [`Hosts::new`].
    ///
    /// # Errors
    /// Those of bind(2) and listen(2), such as an address that is in use.
    pub fn bind(listen: SocketAddr, names: impl IntoIterator<Item = String>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, hosts: Hosts::new(address, names) })
    }

    /// The address, with the port that the system has chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests, until the future is dropped. Connections are tasks of this runtime: they
    /// end with it.
    ///
    /// # Errors
    /// The listener is broken. A lack of descriptors is no error: the least active connection is
    /// closed then.
    pub async fn run<S, F, B>(self, service: S) -> io::Result<Infallible>
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<B>, Infallible>> + Send,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + From<String> + Send + 'static,
    {
        let listener = TcpListener::from_std(self.listener)?;
        let (hosts, seats) = (Arc::new(self.hosts), Seats::new(limit()));
        loop {
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => {
                        return Err(error);
                    }
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        seats.free_one();
                        sleep(PAUSE).await;
                        continue;
                    }
                    // The error of a connection.
                    _ => continue,
                },
            };
            let (client, hosts, service) = (Client(address.ip()), Arc::clone(&hosts), service.clone());
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(client);
                let answer = hosts.check(request.headers()).map(|()| service(request));
                async {
                    match answer {
                        Ok(answer) => answer.await,
                        Err(why) => Ok(refusal(&why)),
                    }
                }
            });
            let seat = seats.take(client.0);
            let lost = seat.lost();
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .max_headers(MAX_HEADERS.0)
                .max_buf_size(MAX_HEADERS.1)
                .serve_connection(Connection::new(stream, seat), service)
                .with_upgrades();
            tokio::spawn(async move {
                tokio::select! {
                    // A client that has closed its connection needs no answer.
                    _ = connection => {}
                    () = lost => {}
                }
            });
        }
    }
}

/// Returns the maximum number of connections.
fn limit() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    CONNECTIONS.0.min(files / CONNECTIONS.1).max(1) as usize
}

fn refusal<B: From<String>>(why: &ForeignHost) -> Response<B> {
    let mut response = Response::new(format!("{why}\n").into());
    *response.status_mut() = StatusCode::FORBIDDEN;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
