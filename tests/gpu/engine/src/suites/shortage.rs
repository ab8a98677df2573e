// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exhausted GPU memory: joining readers get an error, and running streams continue.

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::{Case, Place};

use super::{FENCES, SIZE, Setup, case, each_kind, to_the_end, whole};
use crate::job::{Bind, Command, Connect, End, Publish, Read, Slow};
use crate::peer::Peer;

pub const CASES: &[Case] = &[case("engine-policies", "no-gpu-memory-left", no_memory_left)];

/// Frame size, large enough that the small remainder a driver cannot allocate does not matter.
const BIG: u64 = 8 * SIZE;

/// Numbers of frames before memory runs out, meanwhile, and afterwards.
const FRAMES: [u64; 3] = [10, 60, 20];

/// All other GPU memory is allocated while an exporter has just the slots it has needed so far.
/// Then its readers become slow and it would need more slots; the lossless reader still loses
/// nothing. A joining reader is rejected and another exporter gets no slot; both get the reason.
/// When memory is available again, everything works.
fn no_memory_left(seed: u64) -> Result<String> {
    each_kind(|kind| of_kind(kind, seed))
}

fn of_kind(kind: MemoryKind, seed: u64) -> Result<String> {
    let setup = Setup::new(kind, seed)?;
    let (hog, joining, other) = (Peer::new()?, Peer::new()?, Peer::new()?);
    let readers = Peer::some(2)?;
    setup.join(&readers[..1], |number| setup.lossless(number, Some(FENCES[number])))?;
    // These peers create their contexts while memory is available.
    for peer in [&hog, &joining, &other] {
        peer.execute(Command::AwaitIdle { ms: 1000 })?;
    }
    let publish = |frames| Publish { frames, size: BIG, ..Publish::default() };
    let read = |slow| Read { slow, ..to_the_end() };

    readers[0].begin(&Command::Read(Read { frames: Some(FRAMES[0]), ..to_the_end() }))?;
    for _ in 0..FRAMES[0] {
        setup.exporter.publish(Publish { drain: true, ..publish(1) })?;
    }
    let begun = readers[0].was_read()?;
    ensure!(begun.wrong == 0 && begun.frames == FRAMES[0], "{begun:?}");
    readers[1].connect(Connect { policy: Policy::Latest, ..setup.lossless(1, Some(FENCES[1])) })?;

    // The simulated driver counts memory per process, so each process that must run out allocates
    // its own.
    let mut taken = 0;
    let short = [&hog, &setup.exporter, &other];
    for peer in short {
        taken += peer.take_memory()?;
    }
    ensure!(taken > 0, "no memory could be allocated to exhaust the GPU");
    let slots = setup.exporter.stats()?.slots;
    let elsewhere = Place::new()?;
    let failure = in_vain(
        other
            .bind(Bind { path: elsewhere.path(), memory: Some(kind), ..Bind::default() })
            .and_then(|()| other.publish(publish(1)).map(|_| ())),
    )?;
    ensure!(
        failure.contains("GPU memory is exhausted: stop other"),
        "the other exporter failed with: {failure}"
    );
    let refusal = in_vain(joining.connect(setup.lossless(2, Some(FenceKind::Timeline))).map(|_| ()))?;
    ensure!(refusal.contains("bytes of memory left"), "the joining reader failed with: {refusal}");
    for (reader, us) in readers.iter().zip([5_000, 20_000]) {
        reader.begin(&Command::Read(read(Slow::Always(us))))?;
    }
    setup.exporter.publish(publish(FRAMES[1]))?;
    let now = setup.exporter.stats()?.slots;
    // A pool may have reserved more memory than it has handed out.
    ensure!(
        now == slots || kind == MemoryKind::Pool,
        "slots were allocated despite exhausted memory: {slots} became {now}"
    );

    for peer in short {
        peer.give_memory_back()?;
    }
    joining.connect(setup.lossless(2, Some(FenceKind::Timeline))).context("after memory was freed")?;
    joining.begin(&Command::Read(to_the_end()))?;
    other.bind(Bind { path: elsewhere.path(), memory: Some(kind), ..Bind::default() })?;
    other.publish(publish(1)).context("after memory was freed")?;
    setup.exporter.publish(publish(FRAMES[2]))?;
    setup.exporter.execute(Command::EndOfStream)?;
    whole(&readers[0].was_read()?, FRAMES[1] + FRAMES[2])?;
    whole(&joining.was_read()?, FRAMES[2])?;
    let latest = readers[1].was_read()?;
    ensure!(latest.wrong == 0 && latest.end == End::Stream, "{latest:?}");
    // Frames lost right before the end of the stream leave no gap that the reader could detect.
    let stats = setup.exporter.stats()?;
    let lost = stats.readers.iter().find(|reader| reader.pid == readers[1].pid()).map(|reader| reader.lost);
    let all = FRAMES[1] + FRAMES[2];
    ensure!(
        lost.is_some_and(|lost| latest.frames + lost == all),
        "{lost:?} frames were lost, but the reader reported {latest:?}"
    );
    Ok(format!("{slots} slots sufficed, {} in the end; {failure}; {refusal}", stats.slots))
}

/// Returns the error of an operation that must fail for lack of memory.
fn in_vain(done: Result<()>) -> Result<String> {
    match done {
        // The peer's error text, without the context of the command.
        Err(error) => Ok(error.root_cause().to_string()),
        Ok(()) => bail!("the operation succeeded without memory"),
    }
}
