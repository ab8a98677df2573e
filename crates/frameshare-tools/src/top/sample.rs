// SPDX-License-Identifier: MIT OR Apache-2.0

//! Samples of all streams, and the rates from one to the next.

use crate::{
    cli::SortKey,
    error::Error,
    stream::{TIMEOUT, label, observe_all},
};
use frameshare::observer::{ObserveError, Observer, ReaderState, Snapshot};
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
    /// Readers with the frames per second that were published to each.
    pub readers: Vec<(ReaderState, Option<f64>)>,
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

/// Takes samples.
#[derive(Debug)]
pub struct Sampler {
    /// Times and counters of the sample before: of streams by their session, and of their readers.
    before: HashMap<(u64, Option<u64>), (u64, u64)>,
}

impl Sampler {
    pub fn new() -> Self {
        Self { before: HashMap::new() }
    }

    /// Observes all streams.
    ///
    /// # Errors
    /// The folder of named streams cannot be read.
    pub fn sample(&mut self) -> Result<Vec<Stream>, Error> {
        let observed = observe_all(|endpoint| Ok(Observer::connect(endpoint, TIMEOUT)?.latest().clone()))?;
        let mut counters = HashMap::new();
        let streams = observed.into_iter().map(|(stream, snapshot)| Stream {
            name: label(&stream),
            socket: stream.endpoint.to_string(),
            state: snapshot.map(|snapshot| self.state(snapshot, &mut counters)),
        });
        let streams = streams.collect();
        self.before = counters;
        Ok(streams)
    }

    fn state(&self, snapshot: Snapshot, counters: &mut HashMap<(u64, Option<u64>), (u64, u64)>) -> State {
        let (session, now) = (snapshot.exporter.session, snapshot.time);
        let mut rate = |reader: Option<u64>, count: u64| {
            counters.insert((session, reader), (now, count));
            self.before.get(&(session, reader)).map(|before| rate(*before, (now, count)))
        };
        let readers = snapshot.readers.iter();
        let readers = readers.map(|reader| (reader.clone(), rate(Some(reader.id), reader.sent))).collect();
        State { rate: rate(None, snapshot.counters.published), readers, snapshot }
    }
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
        match key {
            SortKey::Name => state.readers.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name)),
            SortKey::Rate => state.readers.sort_by_key(|(_, rate)| Reverse(millis(*rate))),
            SortKey::Age | SortKey::Lag => state.readers.sort_by_key(|(reader, _)| Reverse(reader.lag)),
            SortKey::Held => state.readers.sort_by_key(|(reader, _)| Reverse(reader.held)),
            SortKey::Lost => state.readers.sort_by_key(|(reader, _)| Reverse(reader.lost)),
        }
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
    fn rate_is_frames_over_time_of_exporter() {
        assert_eq!(rate((1_000_000_000, 10), (3_000_000_000, 70)), 30.0);
        assert_eq!(rate((5, 70), (5, 70)), 0.0);
    }
}
