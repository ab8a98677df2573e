// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rules for the state of an exporter. They are checked each time it is unlocked.

use super::{process, record::Record, system::Simulated};
use frameshare_core::exporter::state::State;
use std::collections::BTreeMap;

/// Bytes by which the last message in a backlog may exceed `max_queued_bytes`.
const LAST_MESSAGE: u64 = 1 << 17;

/// Checks the state. Where messages may wait for descriptors, whose return nothing reports, frames
/// may wait behind them for long.
pub fn check(state: &State<Simulated>, record: &Record, may_lack_descriptors: bool) {
    check_slots(state);
    check_waiting_bytes(state);
    check_retired_memory(state);
    for link in state.readers().lossless() {
        let first = link.backlog().first().map(|frame| frame.descriptor.sequence);
        if !may_lack_descriptors {
            record.note_backlog(process::of_reader(link.info.pid), first);
        }
        // A download under way waits in no backlog yet.
        if let Some(first) = first.filter(|_| !link.downloads()) {
            let overtaken = link.connection().channel.has_overtaken(first);
            assert!(!overtaken, "a message overtook frame {first}, which waits");
        }
    }
}

/// The slots that new frames may use are no more than the limit, overflow included.
fn check_slots(state: &State<Simulated>) {
    let (kind, max) = (state.kind(), state.limits().max_slots);
    let Some(newest) = state.slots().newest(kind) else { return };
    let open = state.slots().generations().iter();
    let overflow = open.filter(|one| one.is_open_overflow(kind, newest.slot_size));
    let slots = newest.len() + overflow.map(|one| one.len()).sum::<u32>();
    assert!(slots <= max, "{slots} slots, and at most {max}");
}

/// Frames that wait for credit take no more memory than the limit, but for the last message.
fn check_waiting_bytes(state: &State<Simulated>) {
    let (waiting, max) = (state.waiting().bytes, state.limits().max_queued_bytes);
    assert!(waiting <= max.max(1) + LAST_MESSAGE, "{waiting} bytes wait");
}

/// No present reader keeps more retired memory than the limit, but for one generation: the next one
/// that is retired finds it out. What it imports is open, or is counted.
fn check_retired_memory(state: &State<Simulated>) {
    let (retired, max) = (state.slots().retired(), state.limits().max_retired_bytes);
    for link in state.readers().present() {
        let is_open = |id| state.slots().generation(id).is_some_and(|one| !one.retired);
        let uncounted = link.imports.generations().find(|id| !is_open(*id) && !retired.contains_key(id));
        assert!(state.is_closed() || uncounted.is_none(), "generation {uncounted:?} is not counted");
        let kept = |of: &BTreeMap<u32, u64>| link.imports.kept(of);
        let slots = kept(&BTreeMap::new());
        let generations = retired.iter().map(|(id, bytes)| kept(&[(*id, *bytes)].into()) - slots);
        let besides = kept(retired) - generations.max().unwrap_or_default();
        assert!(besides <= max, "a reader keeps {besides} bytes of retired memory, and may keep {max}");
    }
}
