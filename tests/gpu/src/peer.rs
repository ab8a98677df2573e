// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handle of a case on a peer process: one method per command.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use frameshare_gpu_harness::{Failed, Start, expect_reply, peer};

use crate::command::{Command, Id, Reply, Source};
use crate::raw;

/// Time limit for a command. No command waits for other peers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Exported memory.
pub struct Token {
    pub bytes: Vec<u8>,
    pub fd: Option<OwnedFd>,
}

/// The exported block of adopted memory.
pub struct Adopted {
    pub buffer_id: u64,
    pub handle: Token,
    pub offset: usize,
    pub size: usize,
}

peer! {
    /// A process that executes the CUDA work of a case.
    Peer: Command => Reply, PATIENCE
}

impl Peer {
    /// Starts a peer with device 0's primary context and a stream with the number 0.
    pub fn new() -> Result<Peer> {
        let peer = Peer::start(Start::default())?;
        peer.open(0, true)?;
        Ok(peer)
    }

    /// Opens a context on a device, and stream 0 in it if it is the first context.
    pub fn open(&self, device: usize, primary: bool) -> Result<Id> {
        let context = self.object(Command::Open { device, primary }, &[])?;
        if context == 0 {
            self.stream()?;
        }
        Ok(context)
    }

    fn object(&self, command: Command, fds: &[BorrowedFd<'_>]) -> Result<Id> {
        expect_reply!(self.ask_with(command, fds)?.0, Reply::Object(id) => id)
    }

    /// Executes a command that returns a number.
    pub fn number(&self, command: Command) -> Result<u64> {
        expect_reply!(self.ask(command)?, Reply::Number(number) => number)
    }

    /// Executes a command that returns text.
    pub fn text(&self, command: Command) -> Result<String> {
        expect_reply!(self.ask(command)?, Reply::Text(text) => text)
    }

    /// Executes a command that returns whether work is complete.
    pub fn ready(&self, command: Command) -> Result<bool> {
        expect_reply!(self.ask(command)?, Reply::Ready(ready) => ready)
    }

    fn token(&self, command: Command) -> Result<Token> {
        match self.ask_with(command, &[])? {
            (Reply::Bytes(bytes), fds) => Ok(Token { bytes, fd: fds.into_iter().next() }),
            (other, _) => bail!("unexpected reply {other:?}"),
        }
    }

    /// Loses the context by a write to memory that is mapped for reading, once the stream is
    /// resumed; returns the kind of write.
    pub fn spoil(&self, memory: Id, stream: Id) -> Result<String> {
        self.text(Command::Spoil { memory, stream })
    }

    pub fn stream(&self) -> Result<Id> {
        self.object(Command::Stream, &[])
    }

    /// Adds a stream that the driver crate does not create.
    pub fn other_stream(&self, kind: raw::Kind) -> Result<Id> {
        self.object(Command::OtherStream(kind), &[])
    }

    pub fn sleep(&self, stream: Id, us: u64) -> Result<()> {
        self.execute(Command::Sleep { stream, us })
    }

    /// Stalls a stream until [`Peer::resume`].
    pub fn hold(&self, stream: Id) -> Result<()> {
        self.execute(Command::Hold(stream))
    }

    /// Resumes all stalled streams.
    pub fn resume(&self) -> Result<()> {
        self.execute(Command::Resume)
    }

    /// Returns whether the stream becomes idle within this time.
    pub fn idle_within(&self, stream: Id, ms: u64) -> Result<bool> {
        self.ready(Command::Await { stream, ms })
    }

    /// Waits until the stream is idle, up to 10 s.
    pub fn finish(&self, stream: Id) -> Result<()> {
        if self.idle_within(stream, 10_000)? {
            Ok(())
        } else {
            bail!("stream {stream} is not idle after 10 s")
        }
    }

    pub fn allocate(&self, source: Source, size: usize) -> Result<Id> {
        self.object(Command::Allocate { source, size, stream: 0 }, &[])
    }

    pub fn pool(&self) -> Result<Id> {
        self.object(Command::Pool, &[])
    }

    /// Imports the pool of another peer.
    pub fn import_pool(&self, exporter: &Peer, pool: Id) -> Result<Id> {
        let (_, fds) = exporter.ask_with(Command::ExportPool(pool), &[])?;
        let fd = fds.first().context("the pool was exported without a descriptor")?;
        self.object(Command::ImportPool, &[fd.as_fd()])
    }

    pub fn export(&self, memory: Id) -> Result<Token> {
        self.token(Command::Export(memory))
    }

    pub fn export_adopted(&self, memory: Id, offset: usize) -> Result<Adopted> {
        match self.ask(Command::ExportAdopted { memory, offset })? {
            Reply::Adopted { buffer_id, handle, offset, size } => {
                Ok(Adopted { buffer_id, handle: Token { bytes: handle, fd: None }, offset, size })
            }
            other => bail!("unexpected reply {other:?}"),
        }
    }

    pub fn import(&self, source: Source, token: &Token, size: usize, write: bool) -> Result<Id> {
        let fds: Vec<_> = token.fd.iter().map(AsFd::as_fd).collect();
        self.object(Command::Import { source, token: token.bytes.clone(), size, write }, &fds)
    }

    pub fn address(&self, memory: Id) -> Result<u64> {
        self.number(Command::Address(memory))
    }

    pub fn drop_memory(&self, memory: Id) -> Result<()> {
        self.execute(Command::DropMemory(memory))
    }

    pub fn fill(&self, memory: Id, offset: usize, size: usize, value: u8, stream: Id) -> Result<()> {
        self.execute(Command::Fill { memory, offset, size, value, stream })
    }

    /// Writes a pattern and waits for completion.
    pub fn write(&self, memory: Id, size: usize, seed: u64) -> Result<()> {
        self.execute(Command::Write { memory, offset: 0, size, seed, stream: 0 })?;
        self.finish(0)
    }

    /// Checks that memory holds a pattern from `offset` on.
    pub fn check(&self, memory: Id, offset: usize, size: usize, seed: u64) -> Result<()> {
        self.check_part(memory, offset, size, seed, 0)
    }

    /// Checks that memory holds from `offset` on the part of a pattern that begins at `from`.
    pub fn check_part(&self, memory: Id, offset: usize, size: usize, seed: u64, from: usize) -> Result<()> {
        let capture = self.capture(memory, offset, size, 0)?;
        self.finish(0)?;
        match self.number(Command::DiffersFromPattern { capture, seed, from })? {
            0 => Ok(()),
            wrong => bail!("{wrong} of {size} bytes differ from pattern {seed}"),
        }
    }

    pub fn capture(&self, memory: Id, offset: usize, size: usize, stream: Id) -> Result<Id> {
        self.object(Command::Capture { memory, offset, size, stream }, &[])
    }

    /// Returns how many bytes of a completed capture differ from a pattern.
    pub fn differs_from_pattern(&self, capture: Id, seed: u64) -> Result<u64> {
        self.number(Command::DiffersFromPattern { capture, seed, from: 0 })
    }

    pub fn differs_from_fill(&self, capture: Id, value: u8) -> Result<u64> {
        self.number(Command::DiffersFromFill { capture, value })
    }

    pub fn event(&self, shared: bool) -> Result<Id> {
        self.object(Command::Event { shared }, &[])
    }

    /// Opens an event of another peer.
    pub fn open_event(&self, creator: &Peer, event: Id) -> Result<Id> {
        let handle = creator.token(Command::ExportEvent(event))?.bytes;
        self.object(Command::OpenEvent(handle), &[])
    }

    /// Returns the handle by which another process opens the event.
    pub fn event_handle(&self, event: Id) -> Result<Vec<u8>> {
        Ok(self.token(Command::ExportEvent(event))?.bytes)
    }

    pub fn record(&self, event: Id, stream: Id) -> Result<()> {
        self.execute(Command::Record { event, stream })
    }

    pub fn wait(&self, stream: Id, event: Id) -> Result<()> {
        self.execute(Command::Wait { stream, event })
    }

    pub fn event_ready(&self, event: Id) -> Result<bool> {
        self.ready(Command::QueryEvent(event))
    }

    pub fn page(&self, fd: &OwnedFd, words: usize, write: bool) -> Result<Id> {
        self.object(Command::Page { words, write }, &[fd.as_fd()])
    }

    pub fn write_word(&self, page: Id, word: usize, value: u64, stream: Id) -> Result<()> {
        self.execute(Command::WriteWord { page, word, value, stream })
    }

    pub fn wait_word(&self, page: Id, word: usize, value: u64, stream: Id) -> Result<()> {
        self.execute(Command::WaitWord { page, word, value, stream })
    }

    /// Drops a page; returns the duration in µs.
    pub fn drop_page(&self, page: Id) -> Result<u64> {
        self.number(Command::DropPage(page))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.kill();
        // CUDA does not remove the file with a killed process's events.
        let prefix = format!("cuda.shm.{:x}.{:x}.", rustix::process::getuid().as_raw(), self.pid());
        for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

/// Returns the failure, with its code, of a command that must fail.
pub fn must_fail<T>(result: Result<T>, what: &str) -> Result<Failed> {
    match result {
        Ok(_) => bail!("{what} succeeded"),
        Err(error) => error.downcast().with_context(|| format!("{what} failed without an error of the peer")),
    }
}
