//! Peers: the processes that do a case's work, as the case and as they themselves see it.
//!
//! What is asked and answered is the program's own; here it is only carried.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::Link;

/// What a peer was asked for and could not do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Why, in words.
    pub text: String,
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

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Failed {
        let driver = error.chain().find_map(|cause| cause.downcast_ref::<frameshare_cuda::Error>());
        Failed {
            text: format!("{error:#}"),
            code: driver.and_then(frameshare_cuda::Error::code),
            sticky: driver.is_some_and(frameshare_cuda::Error::is_sticky),
        }
    }
}

/// How a peer is started.
#[derive(Default)]
pub struct Start<'a> {
    /// Namespaces that it shall have to itself; see [`crate::isolate`].
    pub isolate: Option<&'a str>,
    /// Its environment, beside ours.
    pub environment: &'a [(&'a str, &'a str)],
}

/// A case's handle on a peer, which is asked for a `C` and answers with an `R`. Killed when dropped.
pub struct Process<C, R> {
    child: Child,
    link: Link,
    /// It was asked for something whose answer has not been taken.
    busy: Cell<bool>,
    speaks: PhantomData<fn(C) -> R>,
}

impl<C: Serialize + fmt::Debug, R: DeserializeOwned> Process<C, R> {
    /// A process of its own that has not touched CUDA, and that may take this long over one answer.
    pub fn start(start: Start<'_>, patience: Duration) -> Result<Process<C, R>> {
        // A process that is started meanwhile would inherit this one's end as well: then nobody would see this one die.
        static ONE_AFTER_THE_OTHER: Mutex<()> = Mutex::new(());
        let _alone = ONE_AFTER_THE_OTHER.lock();
        let (link, theirs) = Link::pair()?;
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        let socket = theirs.as_fd().as_raw_fd().to_string();
        let mut program = Command::new("/proc/self/exe");
        match start.isolate {
            None => program.args(["--peer", &socket]),
            Some(what) => program.args(["--isolate", what, &socket]),
        };
        // It stays in the case's process group, by which the runner kills both; the case alone answers on stdout.
        let child = program.envs(start.environment.iter().copied()).stdout(Stdio::null()).spawn()?;
        link.set_patience(patience)?;
        Ok(Process { child, link, busy: Cell::new(false), speaks: PhantomData })
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

    /// Kills the process and does not wait until it is gone.
    pub fn kill_without_waiting(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Waits until the process has ended by itself; as what.
    pub fn exits(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Whether the process is gone.
    pub fn is_gone(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Stops the process: it lives, and does nothing.
    pub fn suspend(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Has it begin something. What comes of it is taken by [`Process::end`].
    pub fn begin(&self, command: &C) -> Result<()> {
        self.send(command, &[])
    }

    /// Whether that which was begun has come to something, or never will.
    pub fn has_reported(&self) -> Result<bool> {
        let mut fds = [PollFd::new(&self.link, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
    }

    /// What came of that which was begun.
    ///
    /// # Errors
    /// [`Failed`] if the peer could not do it.
    pub fn end(&self) -> Result<R> {
        Ok(self.receive()?.0)
    }

    /// Has it do something, and waits for what comes of it.
    pub fn ask(&self, command: C) -> Result<R> {
        Ok(self.ask_with(command, &[])?.0)
    }

    /// The same with copies of `fds`, and with the descriptors that come back.
    pub fn ask_with(&self, command: C, fds: &[BorrowedFd<'_>]) -> Result<(R, Vec<OwnedFd>)> {
        self.send(&command, fds)?;
        self.receive().with_context(|| format!("{command:?}"))
    }

    fn send(&self, command: &C, fds: &[BorrowedFd<'_>]) -> Result<()> {
        if self.busy.replace(true) {
            bail!("this peer has a job already, and gets {command:?}");
        }
        self.link.send(command, fds).with_context(|| format!("asking a peer for {command:?}"))
    }

    fn receive(&self) -> Result<(R, Vec<OwnedFd>)> {
        self.busy.set(false);
        let answer =
            self.link.receive::<std::result::Result<R, Failed>>().context("a peer does not answer")?;
        let (answer, fds) =
            answer.ok_or_else(|| anyhow!("a peer died over its job{}", self.how_it_ended()))?;
        Ok((answer?, fds))
    }

    /// The exit status of a peer that has gone, for people to read; it is left to be waited for.
    fn how_it_ended(&self) -> String {
        let pid = WaitId::Pid(Pid::from_child(&self.child));
        let status = waitid(pid, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok().flatten();
        status.map(|status| format!(": {status:?}")).unwrap_or_default()
    }
}

impl<C, R> Drop for Process<C, R> {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a peer answers: the reply with a descriptor, or why there is none.
pub type Answer<R> = std::result::Result<(R, Option<OwnedFd>), Failed>;

/// Does what a case asks, one thing after the other, until the other end of the link closes.
pub fn obey<C: DeserializeOwned, R: Serialize>(
    link: &Link,
    mut work: impl FnMut(C, Vec<OwnedFd>) -> Answer<R>,
) -> Result<()> {
    while let Some((command, fds)) = link.receive()? {
        match work(command, fds) {
            Ok((reply, fd)) => {
                let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
                link.send(&Ok::<_, Failed>(reply), &fds)?;
            }
            Err(failed) => link.send(&Err::<R, _>(failed), &[])?,
        }
    }
    Ok(())
}

/// Answers the first thing that a peer is asked for, which could not be isolated.
pub(crate) fn refuse(socket: &str, text: String) -> Result<()> {
    let link = Link::inherited(socket)?;
    // What a peer that died was asked has no answer yet, and nothing more may come.
    link.set_patience(Duration::from_secs(1))?;
    let _ = link.receive::<IgnoredAny>();
    link.send(&Err::<(), _>(Failed { text, code: None, sticky: false }), &[])
}

/// A case is started by the runner, a peer by a case or by a process that isolates it: each is gone with who started it.
/// Becoming another user undoes this. Who started it may be dead by then: that is not noticed here.
pub fn die_with_parent() -> Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Fails if nobody has the other end of this socket or pipe any more, by which this process is told or heard.
///
/// To be asked after [`die_with_parent`]: a process closes what it has before its children get its death signal, so one
/// of the two tells of every death, whenever it came.
pub(crate) fn ensure_parent_lives(end: impl AsFd) -> Result<()> {
    let mut fds = [PollFd::new(&end, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default()))?;
    ensure!(
        !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        "whoever started this process is gone"
    );
    Ok(())
}
