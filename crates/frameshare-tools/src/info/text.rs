// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of a stream for people.

use crate::{
    output::Page,
    stream::{Measured, describe_copies, duration, is_copied, time_ago},
};
use frameshare::{
    Endpoint, FenceKind,
    observer::{Incident, ReaderState, SlowTreatment, Snapshot, StreamLimits},
};

/// Adds the state of a stream.
pub fn stream(page: &mut Page, endpoint: &Endpoint, Measured { snapshot, rate }: &Measured) {
    let (exporter, counters) = (&snapshot.exporter, &snapshot.counters);
    page.heading(&endpoint.to_string());
    let mut line = |name: &str, text: &str| page.line(&format!("  {name:10}{text}"));
    line(
        "exporter",
        &format!(
            "process {} ({}) of user {}, frameshare {}, protocol {}, for {}",
            exporter.pid,
            exporter.program,
            exporter.uid,
            exporter.engine,
            exporter.protocol,
            duration(snapshot.time.saturating_sub(exporter.started)),
        ),
    );
    if exporter.is_mps_client {
        line("mps", "the exporter is a client: a fault of any other client ends the stream");
    }
    line("caps", snapshot.format.as_ref().map_or("none yet", |format| &format.caps));
    line("memory", &with_reason(&snapshot.memory.to_string(), &snapshot.memory_why));
    let last = match counters.last_published {
        0 => "none yet".to_owned(),
        last => format!("the last one {}", time_ago(snapshot, last)),
    };
    let ended = if counters.ended { "; the stream has ended for now" } else { "" };
    line("frames", &format!("{rate:.1} per second, {} published, {last}{ended}", counters.published));
    line(
        "slots",
        &format!("{} of {} bytes, {} free", counters.slots, counters.slot_size, counters.free_slots),
    );
    if !counters.copies.is_empty() {
        line("copies", &describe_copies(&counters.copies));
    }
    line("limits", &limits(&snapshot.limits));
    if counters.waiting_bytes > 0 {
        line("backlog", &format!("{} bytes", counters.waiting_bytes));
    }
    if counters.retired_bytes > 0 {
        line("retired", &format!("{} bytes are not freed yet: readers hold them", counters.retired_bytes));
    }
    page.line("");
    page.heading(&format!("Readers: {}, {} so far", snapshot.readers.len(), counters.readers_total));
    snapshot.readers.iter().for_each(|reader| self::reader(page, snapshot, reader));
    if !snapshot.incidents.is_empty() {
        page.line("");
        page.heading("Last evictions and refusals");
        snapshot.incidents.iter().for_each(|incident| page.line(&self::incident(snapshot, incident)));
    }
}

fn reader(page: &mut Page, snapshot: &Snapshot, reader: &ReaderState) {
    page.line(&format!(
        "  {} {} (process {}, user {}), {}",
        reader.id, reader.name, reader.pid, reader.uid, reader.policy
    ));
    page.line(&format!(
        "      holds {} of {} frames; {} untaken, {} waiting, {} lost of {}; {} behind",
        reader.held, reader.credit, reader.queued, reader.waiting, reader.lost, reader.sent, reader.lag
    ));
    if let (Some(mean), Some(most)) = (reader.ages.mean(), reader.ages.quantile(0.99)) {
        let most = if most == u64::MAX { "more than 5 s".to_owned() } else { format!("up to {}", age(most)) };
        page.line(&format!(
            "      took {} frames {} after their publication on average, 99 of 100 {most}",
            reader.ages.count(),
            age(mean)
        ));
    }
    if !reader.copies.is_empty() {
        page.line(&format!("      its application copied frames: {}", describe_copies(&reader.copies)));
    }
    let fence = match reader.fence {
        FenceKind::None => "no fence".to_owned(),
        kind => format!("{kind} fences"),
    };
    page.line(&format!("      {} memory, {}", reader.memory, with_reason(&fence, &reader.fence_why)));
    if is_copied(snapshot, reader) {
        // The exporter does not report which.
        let user = match reader.uid == snapshot.exporter.uid {
            true => String::new(),
            false => format!(", or user {} is not trusted with GPU memory (trusted-uids)", reader.uid),
        };
        page.line(&format!(
            "      frames are copied for it: it reads without a GPU, or on one that does not reach the exporter's{user}"
        ));
    }
    if let Some(why) = &reader.cannot_adopt {
        page.line(&format!("      a decoder's own memory is copied for it: {why}"));
    }
}

/// Returns an age in milliseconds, with three digits.
fn age(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    match ms {
        0.0..10.0 => format!("{ms:.2} ms"),
        10.0..100.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

fn incident(snapshot: &Snapshot, incident: &Incident) -> String {
    let ago = time_ago(snapshot, incident.time);
    let peer = format!("process {}, user {}", incident.pid, incident.uid);
    match incident.reader {
        Some(id) => {
            format!("  {ago}: reader {id} {} ({peer}) was evicted: {}", incident.name, incident.text)
        }
        None => format!("  {ago}: {peer} was refused: {}", incident.text),
    }
}

fn limits(limits: &StreamLimits) -> String {
    let slow = match limits.slow_readers {
        SlowTreatment::Wait => "the stream waits for slow lossless readers",
        SlowTreatment::QueueThenWait => "frames queue for slow lossless readers, then the stream waits",
        SlowTreatment::QueueThenDisconnect => "frames queue for slow lossless readers, then they are evicted",
        _ => "slow lossless readers are treated in a way that this version does not know",
    };
    format!(
        "{} slots, {} frames held by a reader; {slow} (reader timeout {})",
        limits.max_slots,
        limits.max_held_limit,
        duration(limits.reader_timeout)
    )
}

fn with_reason(text: &str, why: &str) -> String {
    match why {
        "" => text.to_owned(),
        why => format!("{text}: {why}"),
    }
}
