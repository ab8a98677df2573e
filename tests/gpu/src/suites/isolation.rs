//! Readers that share nothing with the exporter but a socket, as containers do.

use anyhow::{Context as _, Result, ensure};

use super::{Case, Kind, Needs, require};
use crate::isolate;
use crate::peer::{Peer, Start, must_fail};
use crate::words::Words;

pub const CASES: &[Case] = &[
    Case {
        suite: "isolation",
        name: "own-namespaces-and-shm",
        seconds: 60,
        needs: Needs::Namespaces,
        conduct: own_shm,
    },
    Case {
        suite: "isolation",
        name: "own-namespaces-with-the-same-shm",
        seconds: 60,
        needs: Needs::Namespaces,
        conduct: same_shm,
    },
];

const MAP_FAILED: i32 = 205;
const SIZE: usize = 1 << 20;

fn isolated(what: &str) -> Result<Peer> {
    let reader = Peer::start(Start { isolate: Some(what), ..Start::default() })?;
    reader.open(0, true)?;
    Ok(reader)
}

/// Trap 11: all memory kinds and timeline words, the page mapped read-only too, work; events are refused with a reason.
fn own_shm(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, isolated(isolate::WITHOUT_SHM)?);
    for kind in Kind::ALL {
        let shared = kind.share(&exporter, SIZE)?;
        exporter.write(shared.memory, SIZE, seed)?;
        let import = shared.import(&exporter, &reader, kind != Kind::Vmm).context(kind.name())?;
        reader.check(import, 0, SIZE, seed).context(kind.name())?;
        shared.retire(&exporter, &reader, import).context(kind.name())?;
    }

    require(&exporter, "timeline")?;
    let memory = Words::create(512)?;
    let ours = exporter.page(&memory, 512, true)?;
    for write in [true, false] {
        let theirs = reader.page(&memory, 512, write)?;
        let value = 1 + u64::from(write);
        reader.wait_word(theirs, usize::from(write), value, 0)?;
        ensure!(!reader.idle_within(0, 50)?, "a stream passed a word below its value");
        exporter.write_word(ours, usize::from(write), value, 0)?;
        reader.finish(0)?;
    }

    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let failed = must_fail(reader.open_event(&exporter, event), "opening an event without its /dev/shm")?;
    ensure!(failed.code == Some(MAP_FAILED) && !failed.sticky, "{failed}");
    Ok(failed.to_string())
}

/// Events need no more than the same /dev/shm.
fn same_shm(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, isolated(isolate::WITH_SHM)?);
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let opened = reader.open_event(&exporter, event)?;
    exporter.sleep(0, 400_000)?;
    exporter.record(event, 0)?;
    ensure!(!reader.event_ready(opened)?, "a pending event is done");
    reader.wait(0, opened)?;
    reader.finish(0)?;
    ensure!(reader.event_ready(opened)?, "an event stays pending");
    Ok(String::new())
}
