// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connection to the supervisor: the state of the site, and commands.

use crate::state::{CONTROL, Command, State};
use anyhow::{Context, Result};
use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};
use tokio::sync::watch;

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The supervisor, if there is one, and its last state.
pub struct Control {
    path: Option<PathBuf>,
    state: watch::Sender<Option<Arc<State>>>,
    connection: Mutex<Option<UnixStream>>,
}

impl Control {
    /// Connects to the supervisor of the environment, now and after each loss of the connection.
    pub fn of_environment() -> Arc<Self> {
        Self::of(env::var_os(CONTROL).map(PathBuf::from))
    }

    fn of(path: Option<PathBuf>) -> Arc<Self> {
        let control = Arc::new(Self { path, state: watch::Sender::new(None), connection: Mutex::new(None) });
        let follower = Arc::clone(&control);
        if let Some(path) = control.path.clone() {
            thread::spawn(move || {
                loop {
                    if let Err(error) = follower.follow(&path) {
                        eprintln!("no state of the site from {}: {error}", path.display());
                    }
                    follower.connection().take();
                    follower.state.send_replace(None);
                    thread::sleep(RETRY);
                }
            });
        }
        control
    }

    /// Whether the environment names a supervisor.
    pub fn is_supervised(&self) -> bool {
        self.path.is_some()
    }

    /// The state; `None` without a supervisor, and while there is no connection.
    pub fn state(&self) -> Option<Arc<State>> {
        self.state.borrow().clone()
    }

    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<State>>> {
        self.state.subscribe()
    }

    /// Sends a command.
    pub fn send(&self, command: &Command) -> Result<()> {
        let line = serde_json::to_string(command)? + "\n";
        let connection = self.connection();
        let mut connection = connection.as_ref().context("no connection to the supervisor")?;
        connection.write_all(line.as_bytes()).context("the supervisor takes no command")
    }

    fn connection(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives states until the connection ends.
    fn follow(&self, path: &Path) -> io::Result<()> {
        let socket = UnixStream::connect(path)?;
        socket.set_write_timeout(Some(RETRY))?;
        *self.connection() = Some(socket.try_clone()?);
        for line in BufReader::new(socket).lines() {
            self.state.send_replace(Some(Arc::new(serde_json::from_str(&line?)?)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn state_and_commands_cross_and_a_lost_supervisor_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let control = Control::of(Some(path));
        for demo in [true, false] {
            let (mut supervisor, _) = listener.accept().unwrap();
            let state = State { demo, processes: Vec::new(), events: Vec::new() };
            writeln!(supervisor, "{}", serde_json::to_string(&state).unwrap()).unwrap();
            while control.state().is_none() {
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(*control.state().unwrap(), state);
            control.send(&Command::Kill { process: "decode-cam0".to_owned() }).unwrap();
            let mut line = String::new();
            BufReader::new(supervisor).read_line(&mut line).unwrap();
            assert_eq!(line, "{\"command\":\"kill\",\"process\":\"decode-cam0\"}\n");
            while control.state().is_some() {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn command_without_supervisor_is_an_error() {
        let control = Control::of(None);
        assert!(!control.is_supervised() && control.state().is_none());
        assert!(control.send(&Command::Kill { process: String::new() }).is_err());
    }
}
