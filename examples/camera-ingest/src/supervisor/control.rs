// SPDX-License-Identifier: MIT OR Apache-2.0

//! The supervisor's socket: states to clients, commands from them.
//!
//! A client that receives nothing holds back its own thread only.

use super::event::Event;
use crate::state::{Command, State};
use anyhow::{Context, Result};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::Sender,
    },
    thread,
    time::Duration,
};

const MAX_CLIENTS: usize = 16;
/// Minimum interval between states.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval in which the end of a client is noticed while nothing changes.
const CHECK: Duration = Duration::from_secs(1);
/// Longest command.
const MAX_COMMAND: u64 = 4096;

/// The newest state as text. Clones share it.
#[derive(Clone, Default)]
pub struct Publisher(Arc<Board>);

#[derive(Default)]
struct Board {
    /// Number of changes, and the newest text.
    newest: Mutex<(u64, Arc<str>)>,
    changed: Condvar,
    clients: AtomicUsize,
}

impl Publisher {
    /// Listens on a socket in a folder that only this user can enter.
    pub fn listen(&self, path: &Path, events: &Sender<Event>) -> Result<()> {
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let (publisher, events) = (self.clone(), events.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let is_over = publisher.0.clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS;
                let (publisher, events) = (publisher.clone(), events.clone());
                if is_over {
                    publisher.0.clients.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                thread::spawn(move || {
                    // Its error is the client's end.
                    let _ = publisher.serve(&client, &events);
                    let _ = client.shutdown(Shutdown::Both);
                    publisher.0.clients.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Ok(())
    }

    /// Publishes a state.
    pub fn publish(&self, state: &State) {
        let Ok(text) = serde_json::to_string(state) else { return };
        let mut newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = (newest.0 + 1, format!("{text}\n").into());
        self.0.changed.notify_all();
    }

    fn serve(&self, client: &UnixStream, events: &Sender<Event>) -> std::io::Result<()> {
        let (reader, events) = (client.try_clone()?, events.clone());
        thread::spawn(move || {
            receive(&reader, &events);
            let _ = reader.shutdown(Shutdown::Both);
        });
        let mut seen = 0;
        loop {
            let newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.0.changed.wait_timeout_while(newest, CHECK, |newest| newest.0 == seen);
            let (number, text) = waited.unwrap_or_else(PoisonError::into_inner).0.clone();
            // An empty text on a closed connection is an error, too.
            let text = if number == seen { "".into() } else { text };
            seen = number;
            (&mut &*client).write_all(text.as_bytes())?;
            if client.take_error()?.is_some() || is_closed(client) {
                return Ok(());
            }
            thread::sleep(INTERVAL);
        }
    }
}

/// Returns whether the peer, or the receiving thread, has closed a connection.
fn is_closed(client: &UnixStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(client, PollFlags::empty())];
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn receive(client: &UnixStream, events: &Sender<Event>) {
    let mut input = BufReader::new(client);
    loop {
        let mut line = Vec::new();
        if !matches!(input.by_ref().take(MAX_COMMAND).read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        // A client that sends anything else is closed.
        let Ok(command) = serde_json::from_slice::<Command>(&line) else { return };
        if events.send(Event::Command(command)).is_err() {
            return;
        }
    }
}
