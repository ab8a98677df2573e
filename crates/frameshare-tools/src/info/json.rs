// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of a stream for programs. Durations are in seconds, times are ages; no limit is null.

use crate::stream::{Measured, is_copied};
use frameshare::{
    Endpoint,
    observer::{
        AGE_BOUNDS, Ages, CopyCount, GenerationInfo, Incident, LosslessAllowed, ReaderState, SlowTreatment,
        Snapshot, StreamLimits,
    },
};
use serde_json::{Value, json};

/// Returns the state of a stream.
pub fn stream(endpoint: &Endpoint, Measured { snapshot, rate }: &Measured) -> Value {
    let (exporter, counters) = (&snapshot.exporter, &snapshot.counters);
    json!({
        "socket": endpoint.to_string(),
        "exporter": {
            "pid": exporter.pid,
            "uid": exporter.uid,
            "program": exporter.program,
            "version": exporter.engine,
            "protocol": exporter.protocol,
            "session": format!("{:016x}", exporter.session),
            "age": age(snapshot, exporter.started),
            "mps": exporter.is_mps_client,
        },
        "caps": snapshot.format.as_ref().map(|format| &format.caps),
        "video": snapshot.format.as_ref().and_then(|format| format.video.as_ref()).map(|video| json!({
            "format": video.format, "width": video.width, "height": video.height,
        })),
        "memory": snapshot.memory.to_string(),
        "memory_why": snapshot.memory_why,
        "gpu": snapshot.gpu.map(|uuid| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        "rate": rate,
        "published": counters.published,
        "last_published_age": (counters.last_published > 0).then(|| age(snapshot, counters.last_published)),
        "ended": counters.ended,
        "slots": counters.slots,
        "free_slots": counters.free_slots,
        "slot_size": counters.slot_size,
        "backlog_bytes": counters.waiting_bytes,
        "retired_bytes": counters.retired_bytes,
        "copies": copies(&counters.copies),
        "readers_total": counters.readers_total,
        "observers": counters.observers,
        "generations": snapshot.generations.iter().map(generation).collect::<Vec<_>>(),
        "limits": limits(&snapshot.limits),
        "readers": snapshot.readers.iter().map(|it| reader(snapshot, it)).collect::<Vec<_>>(),
        "incidents": snapshot.incidents.iter().map(|it| incident(snapshot, it)).collect::<Vec<_>>(),
    })
}

fn reader(snapshot: &Snapshot, reader: &ReaderState) -> Value {
    json!({
        "id": reader.id,
        "pid": reader.pid,
        "uid": reader.uid,
        "name": reader.name,
        "policy": reader.policy.to_string(),
        "credit": reader.credit,
        "max_queued": reader.max_queued,
        "held": reader.held,
        "queued": reader.queued,
        "waiting": reader.waiting,
        "sent": reader.sent,
        "lost": reader.lost,
        "lag": reader.lag,
        "memory": reader.memory.to_string(),
        "copied": is_copied(snapshot, reader),
        "fence": reader.fence.to_string(),
        "fence_why": reader.fence_why,
        "cannot_adopt": reader.cannot_adopt,
        "ages": ages(&reader.ages),
        "copies": copies(&reader.copies),
    })
}

/// Numbers of frames in each range of ages, which ends at the bound.
fn ages(ages: &Ages) -> Value {
    let bounds = AGE_BOUNDS.iter().map(|bound| Some(*bound as f64 / 1e9)).chain([None]);
    let ranges = bounds.zip(ages.counts).map(|(bound, frames)| json!({ "up_to": bound, "frames": frames }));
    json!({ "frames": ages.count(), "sum": ages.sum as f64 / 1e9, "ranges": ranges.collect::<Vec<_>>() })
}

fn copies(copies: &[CopyCount]) -> Value {
    copies.iter().map(|copies| json!({ "reason": copies.reason, "frames": copies.count })).collect()
}

fn incident(snapshot: &Snapshot, incident: &Incident) -> Value {
    json!({
        "age": age(snapshot, incident.time),
        "reader": incident.reader,
        "pid": incident.pid,
        "uid": incident.uid,
        "name": incident.name,
        "reason": format!("{:?}", incident.reason),
        "text": incident.text,
    })
}

fn generation(generation: &GenerationInfo) -> Value {
    json!({
        "generation": generation.generation,
        "memory": generation.memory.to_string(),
        "slots": generation.slots,
        "free_slots": generation.free_slots,
        "slot_size": generation.slot_size,
        "adopted": generation.is_adopted,
        "retired": generation.is_retired,
    })
}

fn limits(limits: &StreamLimits) -> Value {
    json!({
        "max_slots": limits.max_slots,
        "max_held_limit": limits.max_held_limit,
        "lossless_readers": match limits.lossless_readers {
            LosslessAllowed::None => Some("none"),
            LosslessAllowed::OwnUid => Some("own-uid"),
            LosslessAllowed::All => Some("all"),
            _ => None,
        },
        "slow_readers": match limits.slow_readers {
            SlowTreatment::Wait => Some("wait"),
            SlowTreatment::QueueThenWait => Some("queue-then-wait"),
            SlowTreatment::QueueThenDisconnect => Some("queue-then-disconnect"),
            _ => None,
        },
        "reader_timeout": seconds(limits.reader_timeout),
        "max_queued_bytes": limits.max_queued_bytes,
        "max_queued_time": seconds(limits.max_queued_time),
        "history": limits.history,
        "fence_timeout": seconds(limits.fence_timeout),
        "max_retired_bytes": limits.max_retired_bytes,
        "max_gop_bytes": limits.max_gop_bytes,
    })
}

fn age(snapshot: &Snapshot, time: u64) -> f64 {
    snapshot.time.saturating_sub(time) as f64 / 1e9
}

fn seconds(ns: u64) -> Option<f64> {
    (ns != u64::MAX).then_some(ns as f64 / 1e9)
}
