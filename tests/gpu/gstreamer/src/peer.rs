//! A case's handle on a peer.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command as Program, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::io::FdFlags;

use crate::job::{Command, Connect, Decode, Received, Reply, Stats, WasRead};
use crate::link::Link;

/// How long a job may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// A job that failed in the peer.
#[derive(Debug)]
pub struct Failed {
    text: String,
    /// Whether the context is lost; what these peers do does not lose any.
    pub sticky: bool,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failed {}

/// A process that plays or reads. Killed when dropped.
pub struct Peer {
    child: Child,
    link: Link,
}

impl Peer {
    /// A process of its own that has not touched CUDA.
    pub fn new() -> Result<Peer> {
        let (link, theirs) = Link::pair()?;
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        let socket = theirs.as_fd().as_raw_fd().to_string();
        // It stays in the case's process group, by which the runner kills both; the case alone answers on stdout.
        let child = Program::new("/proc/self/exe").args(["--peer", &socket]).stdout(Stdio::null()).spawn()?;
        link.set_patience(PATIENCE)?;
        Ok(Peer { child, link })
    }

    /// As many of them.
    pub fn some(count: usize) -> Result<Vec<Peer>> {
        (0..count).map(|_| Peer::new()).collect()
    }

    /// Kills the process as it is, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Has it begin a job.
    pub fn begin(&self, command: &Command) -> Result<()> {
        self.link.send(command, &[]).with_context(|| format!("asking a peer for {command:?}"))
    }

    /// The report of the job that was begun.
    pub fn end(&self) -> Result<Reply> {
        match self.link.receive().context("a peer does not answer")?.context("a peer died over its job")? {
            (Reply::Failed { text }, _) => Err(Failed { text, sticky: false }.into()),
            (reply, _) => Ok(reply),
        }
    }

    /// Has it do a job, and waits for the report.
    pub fn ask(&self, command: Command) -> Result<Reply> {
        self.begin(&command)?;
        self.end().with_context(|| format!("{command:?}"))
    }

    /// Has it do a job that has nothing to report.
    pub fn tell(&self, command: Command) -> Result<()> {
        match self.ask(command)? {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    pub fn play(&self, pipeline: &str) -> Result<()> {
        self.tell(Command::Play { pipeline: pipeline.to_owned() })
    }

    pub fn decode(&self, decode: Decode) -> Result<()> {
        self.tell(Command::Decode(decode))
    }

    pub fn connect(&self, connect: Connect) -> Result<()> {
        self.tell(Command::Connect(connect))
    }

    /// The report of a reading that was begun.
    pub fn was_read(&self) -> Result<WasRead> {
        match self.end().context("reading")? {
            Reply::Read(read) => Ok(read),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// The report of a pipeline that reads, which was begun.
    pub fn received(&self) -> Result<Received> {
        match self.end().context("receiving")? {
            Reply::Received(received) => Ok(received),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// How a pipeline is doing, or has done.
    pub fn stats(&self, command: Command) -> Result<Stats> {
        match self.ask(command)? {
            Reply::Stats(stats) => Ok(stats),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    pub fn number(&self, command: Command) -> Result<u64> {
        match self.ask(command)? {
            Reply::Number(number) => Ok(number),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    pub fn numbers(&self, command: Command) -> Result<Vec<u64>> {
        match self.ask(command)? {
            Reply::Numbers(numbers) => Ok(numbers),
            other => bail!("unexpected reply {other:?}"),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
