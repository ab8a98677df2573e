// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of a stream, from two snapshots.

use frameshare::observer::{Ages, CopyCount, ReaderState, Snapshot};
use serde::Serialize;
use std::collections::HashMap;

/// Figures of one stream.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StreamFigures {
    /// `video`, `sub`, `audio`, `frames`, `motion` or `model`.
    pub kind: &'static str,
    pub name: String,
    /// Whether the exporter answers.
    pub up: bool,
    /// Why it does not.
    pub why: Option<String>,
    /// Process of the exporter.
    pub pid: u32,
    /// Frames or units in a second.
    pub rate: f64,
    pub published: u64,
    /// Time since the last publication in seconds.
    pub idle: Option<f64>,
    pub caps: Option<String>,
    pub memory: String,
    pub memory_why: String,
    /// Bytes of all slots.
    pub bytes: u64,
    pub slots: u32,
    pub free_slots: u32,
    pub gop_units: u32,
    pub gop_bytes: u64,
    /// Copies at the exporter.
    pub copies: Vec<Copies>,
    pub readers: Vec<ReaderFigures>,
    /// The last eviction or refusal.
    pub incident: Option<String>,
}

/// Figures of one reader of a stream.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReaderFigures {
    pub id: u64,
    pub pid: u32,
    pub name: String,
    pub policy: String,
    pub rate: f64,
    pub sent: u64,
    pub lost: u64,
    /// Frames lost since the snapshot before.
    pub lost_now: u64,
    pub held: u32,
    pub credit: u32,
    pub waiting: u32,
    pub lag: u64,
    /// Mean age in ms of the frames taken since the snapshot before.
    pub age: Option<f64>,
    /// Bound in ms of the age of 99 % of all its frames; infinity is `null`.
    pub age_p99: Option<f64>,
    pub memory: String,
    pub fence: String,
    pub fence_why: String,
    pub cannot_adopt: Option<String>,
    pub copies: Vec<Copies>,
}

/// A number of copies, and their reason.
#[derive(Clone, Debug, Serialize)]
pub struct Copies {
    pub reason: String,
    pub count: u64,
}

/// Differences between two snapshots.
#[derive(Default)]
pub struct Known {
    rate: f64,
    readers: HashMap<u64, ReaderRates>,
}

#[derive(Default)]
struct ReaderRates {
    rate: f64,
    lost: u64,
    age: Option<f64>,
}

impl Known {
    /// Measures from earlier snapshots of the same run of the stream, oldest first: rates from the
    /// oldest, losses and ages from the last.
    pub fn between(before: &[Snapshot], now: &Snapshot) -> Self {
        let (Some(oldest), Some(last)) = (before.first(), before.last()) else { return Self::default() };
        // From publication to publication: a whole number of frames.
        let (first, counters) = (&oldest.counters, &now.counters);
        let time = counters.last_published.saturating_sub(first.last_published);
        let rate = rate(first.published, counters.published, time);
        let readers = now.readers.iter().filter_map(|reader| {
            let find = |snapshot: &'_ Snapshot| {
                snapshot.readers.iter().find(|before| before.id == reader.id).cloned()
            };
            let (since, last) = (before.iter().find_map(|one| Some((one.time, find(one)?)))?, find(last)?);
            let (time, first) = since;
            let rates = ReaderRates {
                rate: self::rate(first.ages.count(), reader.ages.count(), now.time.saturating_sub(time)),
                lost: reader.lost.saturating_sub(last.lost),
                age: mean_age(&last.ages, &reader.ages),
            };
            Some((reader.id, rates))
        });
        Self { rate, readers: readers.collect() }
    }
}

/// Returns the change of a counter in a second; `time` is in ns.
fn rate(before: u64, now: u64, time: u64) -> f64 {
    match time {
        0 => 0.0,
        time => now.saturating_sub(before) as f64 * 1e9 / time as f64,
    }
}

/// Returns the mean age in ms of the frames between two states of a reader. Its counters are words
/// that it may write at will.
fn mean_age(before: &Ages, now: &Ages) -> Option<f64> {
    let count = now.count().checked_sub(before.count()).filter(|count| *count > 0)?;
    Some(now.sum.checked_sub(before.sum)? as f64 / count as f64 / 1e6)
}

impl StreamFigures {
    /// Figures of a stream without an exporter.
    pub fn missing(kind: &'static str, name: &str, why: &str) -> Self {
        Self { kind, name: name.to_owned(), why: Some(why.to_owned()), ..Self::default() }
    }

    pub fn of(kind: &'static str, name: &str, snapshot: &Snapshot, known: &Known) -> Self {
        let Snapshot { exporter, counters, .. } = snapshot;
        let idle = snapshot.time.saturating_sub(counters.last_published) as f64 / 1e9;
        Self {
            kind,
            name: name.to_owned(),
            up: true,
            why: None,
            pid: exporter.pid,
            rate: rounded(known.rate),
            published: counters.published,
            idle: (counters.last_published > 0).then_some(rounded(idle)),
            caps: snapshot.format.as_ref().map(|format| format.caps.clone()),
            memory: snapshot.memory.to_string(),
            memory_why: snapshot.memory_why.clone(),
            bytes: snapshot.generations.iter().map(|generation| generation.bytes).sum(),
            slots: counters.slots,
            free_slots: counters.free_slots,
            gop_units: counters.gop_units,
            gop_bytes: counters.gop_bytes,
            copies: copies_of(&counters.copies),
            readers: snapshot.readers.iter().map(|reader| ReaderFigures::of(reader, known)).collect(),
            incident: snapshot.incidents.last().map(|incident| incident.text.clone()),
        }
    }

    /// Marks the figures as old.
    pub fn silence(&mut self, why: String) {
        (self.up, self.why, self.rate) = (false, Some(why), 0.0);
        for reader in &mut self.readers {
            (reader.rate, reader.lost_now, reader.age) = (0.0, 0, None);
        }
    }
}

impl ReaderFigures {
    fn of(reader: &ReaderState, known: &Known) -> Self {
        let none = ReaderRates::default();
        let rates = known.readers.get(&reader.id).unwrap_or(&none);
        let p99 = reader.ages.quantile(0.99).filter(|bound| *bound < u64::MAX);
        Self {
            id: reader.id,
            pid: reader.pid,
            name: reader.name.clone(),
            policy: reader.policy.to_string(),
            rate: rounded(rates.rate),
            sent: reader.sent,
            lost: reader.lost,
            lost_now: rates.lost,
            held: reader.held,
            credit: reader.credit,
            waiting: reader.waiting,
            lag: reader.lag,
            age: rates.age.map(rounded),
            age_p99: p99.map(|bound| bound as f64 / 1e6),
            memory: reader.memory.to_string(),
            fence: reader.fence.to_string(),
            fence_why: reader.fence_why.clone(),
            cannot_adopt: reader.cannot_adopt.clone(),
            copies: copies_of(&reader.copies),
        }
    }
}

fn copies_of(copies: &[CopyCount]) -> Vec<Copies> {
    let made = copies.iter().filter(|copies| copies.count > 0);
    made.map(|copies| Copies { reason: copies.reason.clone(), count: copies.count }).collect()
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
