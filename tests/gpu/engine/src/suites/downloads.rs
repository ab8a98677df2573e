//! Readers that get host memory though the frames are in a GPU's.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{MemoryKind, Policy};

use super::{Case, SIZE, Stage, case, to_the_end, whole};
use crate::job::{Command, Connect, Publish};
use crate::peer::Peer;

const SUITE: &str = "engine-downloads";

pub const CASES: &[Case] =
    &[case(SUITE, "formats-change", formats_change), case(SUITE, "stop-behind-a-busy-stream", stops)];

fn publish(frames: u64) -> Publish {
    Publish { frames, size: SIZE, ..Publish::default() }
}

fn reader(stage: &Stage, number: usize, policy: Policy) -> Connect {
    Connect { host: true, policy, ..stage.lossless(number, None) }
}

/// What frames of former formats were downloaded to is freed.
fn formats_change(seed: u64) -> Result<String> {
    const ROUNDS: u64 = 40;
    /// By then all that is made once is there.
    const SETTLED: u64 = 5;
    let stage = Stage::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    stage.join(&readers, |number| reader(&stage, number, Policy::Lossless))?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    let files =
        || -> Result<usize> { Ok(std::fs::read_dir(format!("/proc/{}/fd", stage.exporter.pid()))?.count()) };
    let mut before = 0;
    for round in 0..ROUNDS {
        if round == SETTLED {
            before = files()?;
        }
        stage.exporter.tell(Command::Format { caps: format!("round {round}") })?;
        let size = SIZE << (round % 3);
        stage.exporter.publish(Publish { size, drain: true, ..publish(2) })?;
    }
    let until = Instant::now() + Duration::from_secs(5);
    // Slots of a generation or two, more or fewer.
    while files()? > before + 8 {
        ensure!(
            Instant::now() < until,
            "{before} files are open after {SETTLED} rounds, {} in the end",
            files()?
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    stage.exporter.tell(Command::EndOfStream)?;
    whole(&readers[0].was_read()?, 2 * ROUNDS)?;
    Ok(format!("{before} files are open after {SETTLED} rounds, {} in the end", files()?))
}

/// The exporter's end waits for no work of its GPU, whatever was downloaded.
fn stops(seed: u64) -> Result<String> {
    const BUSY_MS: u64 = 3000;
    let stage = Stage::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    stage.join(&readers, |number| reader(&stage, number, Policy::Lossless))?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    stage.exporter.publish(Publish { drain: true, ..publish(3) })?;
    stage.exporter.tell(Command::Stall { us: BUSY_MS * 1000 })?;
    let ms = stage.exporter.number(Command::Unbind).context("ending the stream")?;
    ensure!(ms < BUSY_MS / 2, "the end took {ms} ms");
    let read = readers[0].was_read()?;
    ensure!(read.frames == 3 && read.wrong == 0, "{read:?}");
    Ok(format!("{ms} ms"))
}
