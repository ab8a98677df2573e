//! A case's handle on a peer.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command as Program, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::job::{Bind, Command, Connect, Publish, Published, Read, Reply, Stats, WasRead};
use crate::link::Link;

/// How long a job may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// A job that failed in the peer.
#[derive(Debug)]
pub struct Failed {
    text: String,
    /// CUDA's code, if it came from there.
    pub code: Option<i32>,
    /// Whether the context is lost.
    pub sticky: bool,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failed {}

/// A process that exports or reads. Killed when dropped.
pub struct Peer {
    child: Child,
    link: Link,
    /// A job was begun whose report has not been asked for.
    busy: Cell<bool>,
}

impl Peer {
    /// A process of its own that has not touched CUDA.
    pub fn new() -> Result<Peer> {
        Peer::start(None)
    }

    /// The same in namespaces of its own; see [`crate::isolate`].
    pub fn isolated(what: &str) -> Result<Peer> {
        Peer::start(Some(what))
    }

    /// As many of them.
    pub fn some(count: usize) -> Result<Vec<Peer>> {
        (0..count).map(|_| Peer::new()).collect()
    }

    fn start(isolate: Option<&str>) -> Result<Peer> {
        let (link, theirs) = Link::pair()?;
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        let socket = theirs.as_fd().as_raw_fd().to_string();
        let mut program = Program::new("/proc/self/exe");
        match isolate {
            None => program.args(["--peer", &socket]),
            Some(what) => program.args(["--isolate", what, &socket]),
        };
        // It stays in the case's process group, by which the runner kills both; the case alone answers on stdout.
        let child = program.stdout(Stdio::null()).spawn()?;
        link.set_patience(PATIENCE)?;
        Ok(Peer { child, link, busy: Cell::new(false) })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process as it is, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops the process: it lives, and does nothing.
    pub fn suspend(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Has it begin a job. The report follows by one of the `was_` methods.
    pub fn begin(&self, command: &Command) -> Result<()> {
        if self.busy.replace(true) {
            bail!("this peer has a job already, and gets {command:?}");
        }
        self.link.send(command, &[]).with_context(|| format!("asking a peer for {command:?}"))
    }

    /// Whether the report of the job that was begun is there, or never will be.
    pub fn has_reported(&self) -> Result<bool> {
        let mut fds = [PollFd::new(&self.link, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
    }

    /// The report of the job that was begun.
    pub fn end(&self) -> Result<Reply> {
        self.busy.set(false);
        let answer = self.link.receive().context("a peer does not answer")?;
        match answer.ok_or_else(|| anyhow!("a peer died over its job{}", self.how_it_ended()))? {
            (Reply::Failed { text, code, sticky }, _) => Err(Failed { text, code, sticky }.into()),
            (reply, _) => Ok(reply),
        }
    }

    /// The exit status of a peer that has gone, for people to read; it is left to be waited for.
    fn how_it_ended(&self) -> String {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let status =
            pid.and_then(|pid| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok());
        status.flatten().map(|status| format!(": {status:?}")).unwrap_or_default()
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

    pub fn bind(&self, bind: Bind) -> Result<()> {
        self.tell(Command::Bind(bind))
    }

    /// How much credit it was granted.
    pub fn connect(&self, connect: Connect) -> Result<u32> {
        match self.ask(Command::Connect(connect))? {
            Reply::Connected { credit, .. } => Ok(credit),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    pub fn publish(&self, publish: Publish) -> Result<Published> {
        self.begin(&Command::Publish(publish))?;
        self.published()
    }

    /// The report of a publication that was begun.
    pub fn published(&self) -> Result<Published> {
        match self.end().context("publishing")? {
            Reply::Published(published) => Ok(published),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    pub fn read(&self, read: Read) -> Result<WasRead> {
        self.begin(&Command::Read(read))?;
        self.was_read()
    }

    /// The report of a reading that was begun.
    pub fn was_read(&self) -> Result<WasRead> {
        match self.end().context("reading")? {
            Reply::Read(read) => Ok(*read),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    pub fn stats(&self) -> Result<Stats> {
        match self.ask(Command::ExporterStats)? {
            Reply::Stats(stats) => Ok(stats),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// What a job reports that answers in words.
    pub fn texts(&self, command: Command) -> Result<Vec<String>> {
        match self.ask(command)? {
            Reply::Texts(texts) => Ok(texts),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// What a job reports that answers with a number.
    pub fn number(&self, command: Command) -> Result<u64> {
        match self.ask(command)? {
            Reply::Number(number) => Ok(number),
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
