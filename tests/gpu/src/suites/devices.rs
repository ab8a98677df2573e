// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers on another GPU than the exporter's.

use anyhow::{Context as _, Result, ensure};

use super::{Case, Kind, Needs, require};
use crate::peer::Peer;
use crate::words::Words;

pub const CASES: &[Case] = &[
    Case {
        suite: "devices",
        name: "other-gpu-is-hidden-from-other-cases",
        seconds: 60,
        needs: Needs::Nothing,
        conduct: hidden,
    },
    Case {
        suite: "devices",
        name: "memory-of-the-other-gpu",
        seconds: 60,
        needs: Needs::TwoDevices,
        conduct: memory_of_the_other_gpu,
    },
    Case {
        suite: "devices",
        name: "fences-of-the-other-gpu",
        seconds: 60,
        needs: Needs::TwoDevices,
        conduct: fences_of_the_other_gpu,
    },
];

const SIZE: usize = 3 << 20;

fn on_the_other() -> Result<Peer> {
    let reader = Peer::start(Default::default())?;
    reader.open(1, true)?;
    Ok(reader)
}

/// The processes of a case that needs one GPU see one: GStreamer's plugin probes each.
fn hidden(_: u64) -> Result<String> {
    ensure!(on_the_other().is_err(), "a second GPU is visible");
    Ok(String::new())
}

/// The importing context determines the device that maps the memory, for every kind.
fn memory_of_the_other_gpu(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, on_the_other()?);
    for kind in Kind::ALL {
        let shared = kind.share(&exporter, SIZE)?;
        exporter.write(shared.memory, SIZE, seed)?;
        let import = shared.import(&exporter, &reader, kind != Kind::Vmm).context(kind.name())?;
        reader.check(import, 0, SIZE, seed).context(kind.name())?;
        shared.retire(&exporter, &reader, import).context(kind.name())?;
    }
    Ok(String::new())
}

/// The other GPU can wait for and signal both kinds of fence.
fn fences_of_the_other_gpu(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, on_the_other()?);
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let opened = reader.open_event(&exporter, event)?;
    exporter.hold(0)?;
    exporter.record(event, 0)?;
    reader.wait(0, opened)?;
    ensure!(!reader.idle_within(0, 20)?, "a stream of the other GPU passed a pending event");
    exporter.resume()?;
    reader.finish(0)?;

    require(&exporter, "timeline")?;
    let memory = Words::create(512)?;
    let (ours, theirs) = (exporter.page(&memory, 512, true)?, reader.page(&memory, 512, true)?);
    for round in 1..=50 {
        exporter.write_word(ours, 0, round, 0)?;
        reader.wait_word(theirs, 0, round, 0)?;
        reader.write_word(theirs, 1, round, 0)?;
        exporter.wait_word(ours, 1, round, 0)?;
    }
    exporter.finish(0)?;
    reader.finish(0)?;
    Ok(String::new())
}
