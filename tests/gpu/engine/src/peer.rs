// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handle of a case on a peer process: one method per command.

use std::time::Duration;

use anyhow::{Context as _, Result};
use frameshare_gpu_harness::{Start, expect_reply, peer};

use crate::job::{
    Bind, Captured, Circulate, Circulated, Command, Connect, Crowded, Publish, Published, Read, Reply, Stats,
    WasRead,
};

/// Time limit for a command.
const PATIENCE: Duration = Duration::from_secs(150);

peer! {
    /// A peer process: exporter or reader.
    Peer: Command => Reply, PATIENCE
}

impl Peer {
    /// Starts a process that has not initialized CUDA.
    pub fn new() -> Result<Peer> {
        Peer::start(Start::default())
    }

    /// Starts such a process, which will be an exporter. With [`frameshare_gpu_harness::mps`] it
    /// may differ from the other peers.
    pub fn exporter() -> Result<Peer> {
        Peer::start(Start { is_exporter: true, ..Start::default() })
    }

    /// Starts a process in separate namespaces; see [`frameshare_gpu_harness::isolate`].
    pub fn isolated(what: &str) -> Result<Peer> {
        Peer::start(Start { isolate: Some(what), ..Start::default() })
    }

    /// Starts `count` processes.
    pub fn some(count: usize) -> Result<Vec<Peer>> {
        (0..count).map(|_| Peer::new()).collect()
    }

    pub fn bind(&self, bind: Bind) -> Result<()> {
        self.execute(Command::Bind(bind))
    }

    /// Connects a reader and returns the granted credit.
    pub fn connect(&self, connect: Connect) -> Result<u32> {
        expect_reply!(self.ask(Command::Connect(connect))?, Reply::Connected { credit, .. } => credit)
    }

    pub fn publish(&self, publish: Publish) -> Result<Published> {
        self.begin(&Command::Publish(publish))?;
        self.published()
    }

    /// Returns the report of a publication run started earlier.
    pub fn published(&self) -> Result<Published> {
        expect_reply!(self.end().context("publishing")?, Reply::Published(published) => published)
    }

    pub fn read(&self, read: Read) -> Result<WasRead> {
        self.begin(&Command::Read(read))?;
        self.was_read()
    }

    /// Returns the report of a read run started earlier.
    pub fn was_read(&self) -> Result<WasRead> {
        expect_reply!(self.end().context("reading")?, Reply::Read(read) => *read)
    }

    pub fn stats(&self) -> Result<Stats> {
        expect_reply!(self.ask(Command::ExporterStats)?, Reply::Stats(stats) => stats)
    }

    /// Ends the capturing thread and returns its counts.
    pub fn captured(&self) -> Result<Captured> {
        expect_reply!(self.ask(Command::EndCapture)?, Reply::Captured(captured) => captured)
    }

    /// Publishes frames in adopted allocations.
    pub fn circulate(&self, circulate: Circulate) -> Result<Circulated> {
        expect_reply!(self.ask(Command::Circulate(circulate))?, Reply::Circulated(circulated) => circulated)
    }

    /// Each reader of a crowd takes a frame, if it comes within the time.
    pub fn take_each(&self, ms: u64) -> Result<Crowded> {
        expect_reply!(self.ask(Command::TakeEach { ms })?, Reply::Crowded(crowded) => crowded)
    }

    /// Executes a command that returns texts.
    pub fn texts(&self, command: Command) -> Result<Vec<String>> {
        expect_reply!(self.ask(command)?, Reply::Texts(texts) => texts)
    }

    /// Executes a command that returns a number.
    pub fn number(&self, command: Command) -> Result<u64> {
        self.begin(&command)?;
        self.was_number()
    }

    /// Returns the number reported by a command started earlier.
    pub fn was_number(&self) -> Result<u64> {
        expect_reply!(self.end()?, Reply::Number(number) => number)
    }
}
