// SPDX-License-Identifier: MIT OR Apache-2.0

//! Limits on the number of driver objects.

use anyhow::{Context as _, Result, ensure};
use frameshare_cuda::fence::ipc_event;

use super::{Case, Needs, require};
use crate::command::Command;
use crate::peer::{Peer, must_fail};

pub const CASES: &[Case] = &[
    Case { suite: "limits", name: "events", seconds: 60, needs: Needs::Nothing, conduct: events },
    Case {
        suite: "limits",
        name: "one-event-opened-often",
        seconds: 60,
        needs: Needs::Nothing,
        conduct: one_event_opened_often,
    },
];

/// Limit of driver 580 per process, measured on an H200. Other users in the process count too: on
/// other machines two events existed before the first was created here.
const MOST: usize = 4096;
const OUT_OF_MEMORY: i32 = 2;

/// A process can create 4,094 to 4,096 interprocess events; the next fails without side effects,
/// and succeeds after others were destroyed.
fn events(_: u64) -> Result<String> {
    let peer = Peer::new()?;
    require(&peer, "event")?;
    let text = peer.text(Command::ManyEvents(5000))?;
    let (made, reason) = text.split_once(' ').context("a number and a reason")?;
    let expected = ipc_event::PER_PROCESS..=MOST;
    ensure!(expected.contains(&made.parse()?), "{made} events instead of {expected:?}: {reason}");
    let failed = must_fail(peer.event(true), "creating one more event")?;
    ensure!(failed.code == Some(OUT_OF_MEMORY) && !failed.sticky, "{failed}");
    peer.sleep(0, 1000)?;
    peer.finish(0)?;
    peer.execute(Command::DropMany)?;
    let event = peer.event(true)?;
    peer.record(event, 0)?;
    peer.finish(0)?;
    Ok(format!("{made}, then {reason}"))
}

/// One event can be opened 6,000 times in a process.
fn one_event_opened_often(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let handle = exporter.event_handle(event)?;
    for _ in 0..12 {
        reader.execute(Command::OpenMany { handle: handle.clone(), times: 500 })?;
    }
    reader.execute(Command::DropMany)?;
    let opened = reader.open_event(&exporter, event)?;
    exporter.hold(0)?;
    exporter.record(event, 0)?;
    ensure!(!reader.event_ready(opened)?, "a pending event is reported complete");
    exporter.resume()?;
    exporter.finish(0)?;
    ensure!(reader.event_ready(opened)?, "an event stays pending");
    Ok(String::new())
}
