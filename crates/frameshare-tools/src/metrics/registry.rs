// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metrics of streams and readers, from snapshots, in the OpenMetrics text format.

use super::ages::{AgeHistograms, Labels};
use crate::stream::{Observed, label};
use frameshare::observer::{CopyCount, ReaderState, Snapshot};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};
use std::sync::atomic::AtomicU64;

type Counters = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// Returns the text of all metrics. A new registry for each: streams and readers come and go.
pub fn text(streams: &[Observed<Snapshot>]) -> String {
    let mut registry = Registry::with_prefix("frameshare");
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "Version of the command", build);
    let up = gauges(&mut registry, "stream_up", "1 if the exporter answers");
    let stream_metrics = StreamMetrics::new(&mut registry);
    let reader_metrics = ReaderMetrics::new(&mut registry);
    let mut ages = AgeHistograms::default();
    for (stream, observed) in streams {
        let labels = vec![("stream", label(stream))];
        up.get_or_create(&labels).set(f64::from(u8::from(observed.is_ok())));
        if let Ok(snapshot) = observed {
            stream_metrics.set(&labels, snapshot);
            for reader in &snapshot.readers {
                let labels = labels_of(&labels, reader);
                reader_metrics.set(&labels, reader);
                ages.0.push((labels, reader.ages));
            }
        }
    }
    registry.register_collector(Box::new(ages));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn counters(registry: &mut Registry, name: &str, help: &str) -> Counters {
    let family = Counters::default();
    registry.register(name, help, family.clone());
    family
}

fn gauges(registry: &mut Registry, name: &str, help: &str) -> Gauges {
    let family = Gauges::default();
    registry.register(name, help, family.clone());
    family
}

/// Returns the labels of a reader of a stream.
fn labels_of(stream: &Labels, reader: &ReaderState) -> Labels {
    let mut labels = stream.clone();
    labels.extend([
        ("reader", reader.id.to_string()),
        ("name", reader.name.clone()),
        ("policy", reader.policy.to_string()),
    ]);
    labels
}

/// Sets the numbers of copies, with the reason as a further label.
fn set_copies(counters: &Counters, labels: &Labels, copies: &[CopyCount]) {
    for CopyCount { reason, count } in copies {
        let mut labels = labels.clone();
        labels.push(("reason", reason.clone()));
        counters.get_or_create(&labels).inc_by(*count);
    }
}

struct StreamMetrics {
    published: Counters,
    copied: Counters,
    age: Gauges,
    readers: Gauges,
    slots: Gauges,
    free_slots: Gauges,
    backlog: Gauges,
}

impl StreamMetrics {
    fn new(registry: &mut Registry) -> Self {
        Self {
            published: counters(registry, "stream_frames_published", "Published frames"),
            copied: counters(registry, "stream_frames_copied", "Frames that the exporter copied"),
            age: gauges(registry, "stream_last_frame_age_seconds", "Time since the last publication"),
            readers: gauges(registry, "stream_readers", "Present readers"),
            slots: gauges(registry, "stream_slots", "Slots of the present size and memory kind"),
            free_slots: gauges(registry, "stream_free_slots", "Free slots among them"),
            backlog: gauges(registry, "stream_backlog_bytes", "Bytes of slots that hold frames of a backlog"),
        }
    }

    fn set(&self, labels: &Labels, snapshot: &Snapshot) {
        let counters = &snapshot.counters;
        self.published.get_or_create(labels).inc_by(counters.published);
        set_copies(&self.copied, labels, &counters.copies);
        if counters.last_published > 0 {
            let age = snapshot.time.saturating_sub(counters.last_published);
            self.age.get_or_create(labels).set(age as f64 / 1e9);
        }
        self.readers.get_or_create(labels).set(snapshot.readers.len() as f64);
        self.slots.get_or_create(labels).set(counters.slots.into());
        self.free_slots.get_or_create(labels).set(counters.free_slots.into());
        self.backlog.get_or_create(labels).set(counters.waiting_bytes as f64);
    }
}

struct ReaderMetrics {
    sent: Counters,
    lost: Counters,
    copied: Counters,
    held: Gauges,
    lag: Gauges,
}

impl ReaderMetrics {
    fn new(registry: &mut Registry) -> Self {
        Self {
            sent: counters(registry, "reader_frames_sent", "Frames published to the reader"),
            lost: counters(registry, "reader_frames_lost", "Frames that the reader lost"),
            copied: counters(registry, "reader_frames_copied", "Frames that the reader's application copied"),
            held: gauges(registry, "reader_frames_held", "Frames taken and not released"),
            lag: gauges(registry, "reader_lag_frames", "Frames from the oldest untaken one to the newest"),
        }
    }

    fn set(&self, labels: &Labels, reader: &ReaderState) {
        self.sent.get_or_create(labels).inc_by(reader.sent);
        self.lost.get_or_create(labels).inc_by(reader.lost);
        set_copies(&self.copied, labels, &reader.copies);
        self.held.get_or_create(labels).set(reader.held.into());
        self.lag.get_or_create(labels).set(reader.lag as f64);
    }
}
