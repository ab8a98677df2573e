//! The GPU's memory is used up: newcomers are told so, and those that run go on.

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::{Case, Place};

use super::{FENCES, SIZE, Stage, case, each_kind, to_the_end, whole};
use crate::job::{Bind, Command, Connect, End, Publish, Read, Slow};
use crate::peer::Peer;

pub const CASES: &[Case] = &[case("engine-policies", "no-gpu-memory-left", no_memory_left)];

/// Big enough that what a driver cannot hand out of the last of its memory does not matter.
const BIG: u64 = 8 * SIZE;

/// Frames before memory runs out, meanwhile, and after.
const FRAMES: [u64; 3] = [10, 60, 20];

/// An exporter has the slots that it needed so far when all other memory of the GPU is taken. Then its readers become slow
/// and it would need more: the lossless one misses nothing all the same. A newcomer is refused, and another exporter
/// gets no slot; both are told why. When memory is there again, everything works.
fn no_memory_left(seed: u64) -> Result<String> {
    each_kind(|kind| of_kind(kind, seed))
}

fn of_kind(kind: MemoryKind, seed: u64) -> Result<String> {
    let stage = Stage::new(kind, seed)?;
    let (hog, newcomer, other) = (Peer::new()?, Peer::new()?, Peer::new()?);
    let readers = Peer::some(2)?;
    stage.join(&readers[..1], |number| stage.lossless(number, Some(FENCES[number])))?;
    // They have their contexts while there is memory for one.
    for peer in [&hog, &newcomer, &other] {
        peer.tell(Command::AwaitIdle { ms: 1000 })?;
    }
    let publish = |frames| Publish { frames, size: BIG, ..Publish::default() };
    let read = |slow| Read { slow, ..to_the_end() };

    readers[0].begin(&Command::Read(Read { frames: Some(FRAMES[0]), ..to_the_end() }))?;
    for _ in 0..FRAMES[0] {
        stage.exporter.publish(Publish { drain: true, ..publish(1) })?;
    }
    let begun = readers[0].was_read()?;
    ensure!(begun.wrong == 0 && begun.frames == FRAMES[0], "{begun:?}");
    readers[1].connect(Connect { policy: Policy::Latest, ..stage.lossless(1, Some(FENCES[1])) })?;

    // The simulated driver counts for each process what it has taken, so each that is to have none takes its own.
    let mut taken = 0;
    let short = [&hog, &stage.exporter, &other];
    for peer in short {
        taken += peer.number(Command::TakeMemory)?;
    }
    ensure!(taken > 0, "there was no memory to take");
    let slots = stage.exporter.stats()?.slots;
    let elsewhere = Place::new()?;
    let told = in_vain(
        other
            .bind(Bind { path: elsewhere.path(), memory: Some(kind), ..Bind::default() })
            .and_then(|()| other.publish(publish(1)).map(|_| ())),
    )?;
    ensure!(told.contains("GPU memory is exhausted: stop other"), "another exporter is told: {told}");
    let refusal = in_vain(newcomer.connect(stage.lossless(2, Some(FenceKind::Timeline))).map(|_| ()))?;
    ensure!(refusal.contains("bytes of memory left"), "a newcomer is told: {refusal}");
    for (reader, us) in readers.iter().zip([5_000, 20_000]) {
        reader.begin(&Command::Read(read(Slow::Always(us))))?;
    }
    stage.exporter.publish(publish(FRAMES[1]))?;
    let now = stage.exporter.stats()?.slots;
    // A pool may have reserved more than it had handed out.
    ensure!(
        now == slots || kind == MemoryKind::Pool,
        "there was memory for slots after all: {slots} became {now}"
    );

    for peer in short {
        peer.tell(Command::GiveMemoryBack)?;
    }
    newcomer.connect(stage.lossless(2, Some(FenceKind::Timeline))).context("with memory again")?;
    newcomer.begin(&Command::Read(to_the_end()))?;
    other.bind(Bind { path: elsewhere.path(), memory: Some(kind), ..Bind::default() })?;
    other.publish(publish(1)).context("with memory again")?;
    stage.exporter.publish(publish(FRAMES[2]))?;
    stage.exporter.tell(Command::EndOfStream)?;
    whole(&readers[0].was_read()?, FRAMES[1] + FRAMES[2])?;
    whole(&newcomer.was_read()?, FRAMES[2])?;
    let latest = readers[1].was_read()?;
    ensure!(latest.wrong == 0 && latest.end == End::Stream, "{latest:?}");
    // What is lost right before the end of the stream is no gap that the reader could see.
    let stats = stage.exporter.stats()?;
    let lost = stats.readers.iter().find(|reader| reader.pid == readers[1].pid()).map(|reader| reader.lost);
    let all = FRAMES[1] + FRAMES[2];
    ensure!(lost.is_some_and(|lost| latest.frames + lost == all), "{lost:?} were lost, and {latest:?}");
    Ok(format!("{slots} slots did, {} in the end; {told}; {refusal}", stats.slots))
}

/// What somebody was told who could not do what it wanted.
fn in_vain(done: Result<()>) -> Result<String> {
    match done {
        // The text of the peer, without the job that it was given.
        Err(error) => Ok(error.root_cause().to_string()),
        Ok(()) => bail!("it went well without memory"),
    }
}
