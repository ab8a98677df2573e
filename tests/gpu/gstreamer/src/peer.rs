// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handle of a case on a peer process: one method per command.

use std::time::Duration;

use anyhow::{Context as _, Result};
use frameshare_gpu_harness::{Start, expect_reply, peer};

use crate::job::{Command, Connect, Decode, Received, Reply, Stats, WasRead};

/// Time limit for a command.
const PATIENCE: Duration = Duration::from_secs(100);

peer! {
    /// A peer process that runs a pipeline or a reader.
    Peer: Command => Reply, PATIENCE
}

impl Peer {
    /// Starts a process that has not initialized CUDA.
    pub fn new() -> Result<Peer> {
        Peer::start(Start::default())
    }

    /// Starts `count` processes.
    pub fn some(count: usize) -> Result<Vec<Peer>> {
        (0..count).map(|_| Peer::new()).collect()
    }

    pub fn play(&self, pipeline: &str) -> Result<()> {
        self.execute(Command::Play { pipeline: pipeline.to_owned() })
    }

    pub fn decode(&self, decode: Decode) -> Result<()> {
        self.execute(Command::Decode(decode))
    }

    pub fn connect(&self, connect: Connect) -> Result<()> {
        self.execute(Command::Connect(connect))
    }

    /// Returns the report of a read run started earlier.
    pub fn was_read(&self) -> Result<WasRead> {
        expect_reply!(self.end().context("reading")?, Reply::Read(read) => read)
    }

    /// Returns the report of a reading pipeline started earlier.
    pub fn received(&self) -> Result<Received> {
        expect_reply!(self.end().context("receiving")?, Reply::Received(received) => received)
    }

    /// Executes a command that returns the statistics of a pipeline.
    pub fn stats(&self, command: Command) -> Result<Stats> {
        expect_reply!(self.ask(command)?, Reply::Stats(stats) => stats)
    }

    pub fn number(&self, command: Command) -> Result<u64> {
        expect_reply!(self.ask(command)?, Reply::Number(number) => number)
    }

    pub fn numbers(&self, command: Command) -> Result<Vec<u64>> {
        expect_reply!(self.ask(command)?, Reply::Numbers(numbers) => numbers)
    }
}
