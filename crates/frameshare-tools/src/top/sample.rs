// SPDX-License-Identifier: MIT OR Apache-2.0

//! Samples of all streams, and the rates from one to the next.

use super::usage::{Cost, Costs};
use crate::{
    cli::SortKey,
    error::Error,
    stream::{is_copied, label, observe_all},
};
use frameshare::observer::{CopyCount, ObserveError, Observer, ReaderState, Snapshot};
use std::{cmp::Reverse, collections::HashMap};

/// A stream at the time of a sample.
#[derive(Debug)]
pub struct Stream {
    /// Its name, or the path of its socket if the name does not lead to it.
    pub name: String,
    pub socket: String,
    /// Its state, or the reason why it cannot be observed.
    pub state: Result<State, ObserveError>,
}

#[derive(Debug)]
pub struct State {
    pub snapshot: Snapshot,
    /// Frames per second since the sample before; none in the first one.
    pub rate: Option<f64>,
    /// Copies per second that the exporter made.
    pub copies: Option<f64>,
    /// Cost of the exporter's process; none in the first sample and in other PID namespaces.
    pub cost: Option<Cost>,
    pub readers: Vec<Reader>,
}

/// A reader of a stream.
#[derive(Debug)]
pub struct Reader {
    pub state: ReaderState,
    /// Frames per second that were published to it.
    pub rate: Option<f64>,
    /// Whether these are copies of GPU frames in host memory.
    pub is_copied: bool,
    /// Copies per second that its application made of them.
    pub own_copies: Option<f64>,
    /// Mean age in ns of the frames that it took since the sample before, if it took any.
    pub age: Option<u64>,
    /// Cost of its process.
    pub cost: Option<Cost>,
}

impl Reader {
    /// Copies per second that it gets and makes.
    pub fn copies(&self) -> Option<f64> {
        let got = if self.is_copied { self.rate? } else { 0.0 };
        Some(got + self.own_copies?)
    }
}

impl State {
    /// Age of the last frame in ns, if there is one.
    pub fn age(&self) -> Option<u64> {
        let last = self.snapshot.counters.last_published;
        (last > 0).then(|| self.snapshot.time.saturating_sub(last))
    }

    pub fn lag(&self) -> u64 {
        self.snapshot.readers.iter().map(|reader| reader.lag).max().unwrap_or(0)
    }

    pub fn held(&self) -> u32 {
        self.snapshot.readers.iter().map(|reader| reader.held).sum()
    }

    pub fn lost(&self) -> u64 {
        self.snapshot.readers.iter().map(|reader| reader.lost).sum()
    }
}

/// A counter of a stream, or of one of its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Counter {
    Frames,
    Copies,
    Taken,
    AgeSum,
}

/// Counters of streams by their sessions, and of their readers, at a time.
type Counters = HashMap<(u64, Option<u64>, Counter), (u64, u64)>;

/// Takes samples.
#[derive(Debug, Default)]
pub struct Sampler {
    before: Counters,
    costs: Costs,
}

impl Sampler {
    /// Observes all streams.
    ///
    /// # Errors
    /// The folder of named streams cannot be read.
    pub fn sample(&mut self) -> Result<Vec<Stream>, Error> {
        let observed =
            observe_all(|endpoint, limit| Ok(Observer::connect(endpoint, limit)?.latest().clone()))?;
        let mut counters = Counters::new();
        self.costs.begin();
        let streams = observed.into_iter().map(|(stream, snapshot)| Stream {
            name: label(&stream),
            socket: stream.endpoint.to_string(),
            state: snapshot.map(|snapshot| {
                // Numbers of processes are the exporter's: another one here is another namespace.
                let is_local = stream.exporter_pid == Some(snapshot.exporter.pid);
                self.state(snapshot, is_local, &mut counters)
            }),
        });
        let streams = streams.collect();
        self.before = counters;
        Ok(streams)
    }

    fn state(&mut self, snapshot: Snapshot, is_local: bool, counters: &mut Counters) -> State {
        let Self { before, costs } = self;
        let (session, now) = (snapshot.exporter.session, snapshot.time);
        let mut rate = |reader: Option<u64>, counter: Counter, count: u64| {
            let key = (session, reader, counter);
            counters.insert(key, (now, count));
            before.get(&key).map(|before| rate(*before, (now, count)))
        };
        let mut cost = |pid: u32| (is_local && pid > 0).then(|| costs.of(pid)).flatten();
        let readers = snapshot.readers.iter().map(|reader| Reader {
            rate: rate(Some(reader.id), Counter::Frames, reader.sent),
            own_copies: rate(Some(reader.id), Counter::Copies, sum(&reader.copies)),
            age: mean_age(
                rate(Some(reader.id), Counter::AgeSum, reader.ages.sum),
                rate(Some(reader.id), Counter::Taken, reader.ages.count()),
            ),
            is_copied: is_copied(&snapshot, reader),
            cost: cost(reader.pid),
            state: reader.clone(),
        });
        let readers = readers.collect();
        let cost = cost(snapshot.exporter.pid);
        State {
            rate: rate(None, Counter::Frames, snapshot.counters.published),
            copies: rate(None, Counter::Copies, sum(&snapshot.counters.copies)),
            cost,
            readers,
            snapshot,
        }
    }
}

/// Returns the number of copies for all reasons.
fn sum(copies: &[CopyCount]) -> u64 {
    copies.iter().fold(0, |sum, copies| sum.saturating_add(copies.count))
}

/// Returns the mean age in ns, from the ages in ns and the frames per second.
fn mean_age(ages: Option<f64>, frames: Option<f64>) -> Option<u64> {
    let (ages, frames) = (ages?, frames?);
    (frames > 0.0).then(|| (ages / frames) as u64)
}

/// Returns the rate per second between two times in ns with their counts.
fn rate(before: (u64, u64), now: (u64, u64)) -> f64 {
    let time = now.0.saturating_sub(before.0).max(1);
    now.1.saturating_sub(before.1) as f64 * 1e9 / time as f64
}

/// Sorts streams, and the readers of each. Streams without a state come last.
pub fn sort(streams: &mut [Stream], key: SortKey) {
    streams.sort_by(|one, other| one.name.cmp(&other.name));
    for stream in streams.iter_mut() {
        let Ok(state) = &mut stream.state else { continue };
        state.readers.sort_by(|one, other| one.state.name.cmp(&other.state.name));
        state.readers.sort_by_key(|reader| {
            Reverse(match key {
                SortKey::Name => 0,
                SortKey::Rate => millis(reader.rate),
                SortKey::Age => reader.age.unwrap_or(0),
                SortKey::Lag => reader.state.lag,
                SortKey::Held => reader.state.held.into(),
                SortKey::Lost => reader.state.lost,
                SortKey::Copies => millis(reader.copies()),
                SortKey::Wakeups => millis(reader.cost.map(|cost| cost.wakeups)),
                SortKey::Cpu => millis(reader.cost.map(|cost| cost.cpu)),
            })
        });
    }
    streams.sort_by_cached_key(|stream| {
        let Ok(state) = &stream.state else { return (true, Reverse(0)) };
        let value = match key {
            SortKey::Name => 0,
            SortKey::Rate => millis(state.rate),
            SortKey::Age => state.age().unwrap_or(u64::MAX),
            SortKey::Lag => state.lag(),
            SortKey::Held => state.held().into(),
            SortKey::Lost => state.lost(),
            SortKey::Copies => millis(state.copies),
            SortKey::Wakeups => millis(state.cost.map(|cost| cost.wakeups)),
            SortKey::Cpu => millis(state.cost.map(|cost| cost.cpu)),
        };
        (false, Reverse(value))
    });
}

/// Returns a rate that can be compared.
fn millis(rate: Option<f64>) -> u64 {
    rate.map_or(0, |rate| (rate * 1e3) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_age_needs_taken_frames() {
        assert_eq!(mean_age(Some(6e6), Some(30.0)), Some(200_000));
        assert_eq!([mean_age(None, Some(1.0)), mean_age(Some(0.0), Some(0.0))], [None; 2]);
    }

    #[test]
    fn rate_is_frames_over_time_of_exporter() {
        assert_eq!(rate((1_000_000_000, 10), (3_000_000_000, 70)), 30.0);
        assert_eq!(rate((5, 70), (5, 70)), 0.0);
    }
}
