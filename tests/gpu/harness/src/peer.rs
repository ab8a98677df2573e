// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peer processes: the case's handle on them, and their command loop.
//!
//! Commands and replies are types of the program; this module only transports them.

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
use crate::common::{Common, Message, Taken};
use crate::mps;

/// Failure of a peer's command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Error text.
    pub text: String,
    /// CUDA error code, if CUDA reported the failure.
    pub code: Option<i32>,
    /// Whether the CUDA context is lost.
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

/// Start options of a peer.
#[derive(Default)]
pub struct Start<'a> {
    /// Namespaces to isolate; see [`crate::isolate`].
    pub isolate: Option<&'a str>,
    /// Exporters may be clients of MPS or not, apart from the other peers; see [`crate::mps`].
    pub is_exporter: bool,
    /// Additional environment variables.
    pub environment: &'a [(&'a str, &'a str)],
}

/// Handle on a peer that receives commands `C` and returns replies `R`. Kills the process when
/// dropped.
pub struct Process<C, R> {
    child: Child,
    link: Link,
    /// A command was sent whose reply has not been received.
    busy: Cell<bool>,
    speaks: PhantomData<fn(C) -> R>,
}

impl<C: Serialize + fmt::Debug, R: DeserializeOwned> Process<C, R> {
    /// Starts a process that has not initialized CUDA; `patience` limits the time per reply.
    ///
    /// # Errors
    /// Fails if the process cannot be started.
    pub fn start(start: Start<'_>, patience: Duration) -> Result<Process<C, R>> {
        // A process started concurrently would inherit this end of the socket too, and would keep
        // it open after this process dies.
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
        // The peer stays in the case's process group, which the runner kills; only the case writes
        // to stdout.
        let child = program
            .envs(mps::variable(start.is_exporter))
            .envs(start.environment.iter().copied())
            .stdout(Stdio::null())
            .spawn()?;
        link.set_patience(patience);
        Ok(Process { child, link, busy: Cell::new(false), speaks: PhantomData })
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process and waits until it has exited.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Kills the process without waiting.
    pub fn kill_without_waiting(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Waits until the process exits by itself; returns its status.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn exits(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Returns whether the process has exited.
    pub fn has_exited(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Suspends the process (SIGSTOP).
    pub fn suspend(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Resumes a suspended process.
    pub fn resume(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Starts a command. [`Process::end`] receives its reply.
    ///
    /// # Errors
    /// Fails if another command is running, or if the peer has exited.
    pub fn begin(&self, command: &C) -> Result<()> {
        self.send(&Message::Own(command), &[])
    }

    /// Returns whether a reply, or the end of the process, can be received without blocking.
    pub fn has_reported(&self) -> Result<bool> {
        let mut fds = [PollFd::new(&self.link, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
    }

    /// Receives the reply to the command that was started.
    ///
    /// # Errors
    /// [`Failed`] if the peer could not execute the command.
    pub fn end(&self) -> Result<R> {
        Ok(self.receive::<R>()?.0)
    }

    /// Executes a command and returns its reply.
    ///
    /// # Errors
    /// [`Failed`] if the peer could not execute the command.
    pub fn ask(&self, command: C) -> Result<R> {
        Ok(self.ask_with(command, &[])?.0)
    }

    /// Executes a command with copies of `fds`; returns the reply and the descriptors sent with it.
    ///
    /// # Errors
    /// [`Failed`] if the peer could not execute the command.
    pub fn ask_with(&self, command: C, fds: &[BorrowedFd<'_>]) -> Result<(R, Vec<OwnedFd>)> {
        self.send(&Message::Own(&command), fds)?;
        self.receive().with_context(|| format!("{command:?}"))
    }

    /// Switches the process to an unprivileged user.
    ///
    /// # Errors
    /// [`Failed`] if the case lacks that privilege.
    pub fn become_nobody(&self) -> Result<()> {
        self.common(Common::BecomeNobody).map(|_| ())
    }

    /// Returns how many bytes of GPU memory are allocated, by all processes.
    ///
    /// # Errors
    /// [`Failed`] with the driver's error.
    pub fn taken_memory(&self) -> Result<u64> {
        self.common(Common::TakenMemory)
    }

    /// Allocates all remaining GPU memory in the process; returns the number of bytes.
    ///
    /// # Errors
    /// [`Failed`] with the driver's error.
    pub fn take_memory(&self) -> Result<u64> {
        self.common(Common::TakeMemory)
    }

    /// Frees that memory.
    ///
    /// # Errors
    /// [`Failed`] with the driver's error.
    pub fn give_memory_back(&self) -> Result<()> {
        self.common(Common::GiveMemoryBack).map(|_| ())
    }

    fn common(&self, command: Common) -> Result<u64> {
        self.send(&Message::<&C>::Common(command), &[])?;
        Ok(self.receive().with_context(|| format!("{command:?}"))?.0)
    }

    fn send(&self, command: &Message<&C>, fds: &[BorrowedFd<'_>]) -> Result<()> {
        if self.busy.replace(true) {
            bail!("cannot send {command:?}: the peer is executing another command");
        }
        self.link.send(command, fds).with_context(|| format!("cannot send {command:?} to the peer"))
    }

    fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>)> {
        self.busy.set(false);
        let answer =
            self.link.receive::<std::result::Result<T, Failed>>().context("the peer did not reply")?;
        let (answer, fds) =
            answer.ok_or_else(|| anyhow!("the peer died during a command{}", self.how_it_ended()))?;
        Ok((answer?, fds))
    }

    /// Describes the exit status of a dead peer without reaping it.
    fn how_it_ended(&self) -> String {
        let pid = WaitId::Pid(Pid::from_child(&self.child));
        let status = waitid(pid, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok().flatten();
        status.map(|status| format!(": {status:?}")).unwrap_or_default()
    }
}

impl<C, R> Drop for Process<C, R> {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Result of a peer's command: the reply with an optional descriptor, or the failure.
pub type Answer<R> = std::result::Result<(R, Option<OwnedFd>), Failed>;

/// Unwraps the expected reply of a peer; any other reply is an error.
#[macro_export]
macro_rules! expect_reply {
    ($reply:expr, $expected:pat => $value:expr) => {
        match $reply {
            $expected => Ok($value),
            other => Err(anyhow::anyhow!("unexpected reply {other:?}")),
        }
    };
}

/// Defines a program's handle on a peer that receives these commands and returns these replies, of
/// which `Done` has no data, within a time limit for each.
#[macro_export]
macro_rules! peer {
    ($(#[$doc:meta])* $name:ident: $command:ident => $reply:ident, $patience:expr) => {
        $(#[$doc])*
        pub struct $name($crate::Process<$command, $reply>);

        impl std::ops::Deref for $name {
            type Target = $crate::Process<$command, $reply>;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl std::ops::DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }

        impl $name {
            /// Starts a process that has not initialized CUDA.
            pub fn start(start: $crate::Start<'_>) -> anyhow::Result<$name> {
                Ok($name($crate::Process::start(start, $patience)?))
            }

            /// Executes a command that returns no data.
            pub fn execute(&self, command: $command) -> anyhow::Result<()> {
                $crate::expect_reply!(self.ask(command)?, $reply::Done => ())
            }
        }
    };
}

/// Executes the commands of a case in order until the case closes the link.
///
/// # Errors
/// Fails if the link is broken; failures of commands are sent to the case.
pub fn obey<C: DeserializeOwned, R: Serialize>(
    link: &Link,
    mut work: impl FnMut(C, Vec<OwnedFd>) -> Answer<R>,
) -> Result<()> {
    // Not dropped at the end: that would wait for the GPU, process exit does not.
    let mut taken = std::mem::ManuallyDrop::new(Taken::default());
    while let Some((message, fds)) = link.receive()? {
        let command = match message {
            Message::Own(command) => command,
            Message::Common(command) => {
                link.send(&taken.work(command).map_err(Failed::from), &[])?;
                continue;
            }
        };
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

/// Reports failed isolation as the result of the peer's first command.
pub(crate) fn refuse(socket: &str, text: String) -> Result<()> {
    let link = Link::inherited(socket)?;
    // If the peer died, its command was received and has no reply yet; no further one may come.
    link.set_patience(Duration::from_secs(1));
    let _ = link.receive::<IgnoredAny>();
    link.send(&Err::<(), _>(Failed { text, code: None, sticky: false }), &[])
}

/// Binds the life of this process to its parent's (runner, case or isolating process) by a death
/// signal. Changing the user cancels it. A parent that died earlier is not detected here.
///
/// # Errors
/// The error of the system call.
pub fn die_with_parent() -> Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Fails if the other end of this socket or pipe, through which this process communicates with its
/// parent, is closed.
///
/// Must be called after [`die_with_parent`]: a process closes its descriptors before its children
/// get their death signal, so one of the two detects every death of the parent, whenever it occurs.
pub(crate) fn ensure_parent_lives(end: impl AsFd) -> Result<()> {
    let mut fds = [PollFd::new(&end, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default()))?;
    ensure!(
        !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        "the parent of this process has exited"
    );
    Ok(())
}
