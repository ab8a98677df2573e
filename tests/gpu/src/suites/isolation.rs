// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that share only a socket with the exporter, as containers do.

use anyhow::{Context as _, Result, bail, ensure};
use frameshare_gpu_harness::{Start, isolate};

use super::{Case, Kind, Needs, require};
use crate::command::Command;
use crate::peer::{Peer, must_fail};
use crate::words::Words;

const fn isolated_case(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: "isolation", name, seconds: 90, needs: Needs::Namespaces, conduct }
}

pub const CASES: &[Case] = &[
    isolated_case("namespaces", namespaces),
    isolated_case("own-namespaces-and-shm", own_shm),
    isolated_case("own-namespaces-with-the-same-shm", same_shm),
];

const MAP_FAILED: i32 = 205;
const SIZE: usize = 1 << 20;

/// Starts a peer isolated by `what` (see [`isolate`]); returns a description of its environment
/// too.
fn start(what: &str) -> Result<(Peer, String)> {
    let peer = Peer::start(Start { isolate: Some(what), ..Start::default() })?;
    let surroundings = peer.text(Command::Surroundings)?;
    Ok((peer, surroundings))
}

fn isolated(what: &str) -> Result<Peer> {
    let (reader, surroundings) = start(what)?;
    reader.open(0, true).with_context(|| format!("{what} [{surroundings}]"))?;
    Ok(reader)
}

/// CUDA starts in separate namespaces if /proc matches the PID namespace. Other combinations are
/// tried and reported.
fn namespaces(_: u64) -> Result<String> {
    let attempt = |what: &str| -> (bool, String) {
        let outcome = start(what).and_then(|(peer, surroundings)| {
            peer.open(0, true).with_context(|| format!("[{surroundings}]"))?;
            Ok(surroundings)
        });
        match outcome {
            Ok(surroundings) => (true, format!("{what}: works [{surroundings}]")),
            Err(error) => (false, format!("{what}: {error:#}")),
        }
    };
    let (works, outcome) = attempt(isolate::FULL);
    let mut all = vec![outcome];
    let mut others = vec![isolate::SAME_SHM, isolate::SAME_PID, isolate::WRONG_PROC];
    if !works {
        others.extend(["pid,mount,proc", "pid", "ipc", "mount,shm", "net", "uts"]);
    }
    all.extend(others.into_iter().map(|what| attempt(what).1));
    let all = all.join("; ");
    if works { Ok(all) } else { bail!("{all}") }
}

/// All memory kinds and timeline fences work, also with the page mapped read-only; event fences are
/// refused with a reason.
fn own_shm(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, isolated(isolate::FULL)?);
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
        ensure!(!reader.idle_within(0, 50)?, "a stream passed a timeline value below the requested one");
        exporter.write_word(ours, usize::from(write), value, 0)?;
        reader.finish(0)?;
    }

    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let failed = must_fail(reader.open_event(&exporter, event), "opening an event without its /dev/shm")?;
    ensure!(failed.code == Some(MAP_FAILED) && !failed.sticky, "{failed}");
    Ok(failed.to_string())
}

/// Event fences need only a shared /dev/shm.
fn same_shm(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, isolated(isolate::SAME_SHM)?);
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let opened = reader.open_event(&exporter, event)?;
    exporter.hold(0)?;
    exporter.record(event, 0)?;
    ensure!(!reader.event_ready(opened)?, "a pending event is reported complete");
    reader.wait(0, opened)?;
    exporter.resume()?;
    reader.finish(0)?;
    ensure!(reader.event_ready(opened)?, "an event stays pending");
    Ok(String::new())
}
