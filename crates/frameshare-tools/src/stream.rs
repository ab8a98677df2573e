// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams by the name that a user gives, and their state at two times.

use crate::error::Error;
use frameshare::{
    Endpoint, EndpointError, MemoryKind, StreamInfo,
    observer::{CopyCount, ObserveError, Observer, ReaderState, Snapshot},
};
use std::{thread, time::Duration};

/// Limit for each answer of an exporter.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of streams that are observed at once.
const AT_ONCE: usize = 64;
/// Time over which rates are measured.
const INTERVAL: Duration = Duration::from_millis(500);

/// Returns the endpoint of a stream by its name or path.
pub fn find(text: &str) -> Result<Endpoint, Error> {
    Endpoint::find(text).map_err(invalid)
}

/// Returns the error for a text that names no stream.
pub fn invalid(error: EndpointError) -> Error {
    match error {
        EndpointError::Name { text, source } => Error::InvalidStream { text, why: source.to_string() },
        error => error.into(),
    }
}

/// A stream, and what was observed of it.
pub type Observed<T> = (StreamInfo, Result<T, ObserveError>);

/// Observes all streams: an exporter that does not answer delays no other.
pub fn observe_all<T: Send>(
    observe: impl Fn(&Endpoint) -> Result<T, ObserveError> + Sync,
) -> Result<Vec<Observed<T>>, Error> {
    let streams = frameshare::streams().map_err(Error::List)?;
    let mut all = Vec::with_capacity(streams.len());
    for streams in streams.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let observing: Vec<_> =
                streams.iter().map(|stream| scope.spawn(|| observe(&stream.endpoint))).collect();
            for (stream, observed) in streams.iter().zip(observing) {
                let observed = observed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.push((stream.clone(), observed));
            }
        });
    }
    Ok(all)
}

/// Returns the name of a stream, or the path of its socket if the name does not lead to it.
pub fn label(stream: &StreamInfo) -> String {
    match stream.is_named() {
        true => stream.name.to_string(),
        false => stream.endpoint.to_string(),
    }
}

/// A snapshot, and the rate of the frames until then.
#[derive(Debug)]
pub struct Measured {
    pub snapshot: Snapshot,
    /// Frames per second.
    pub rate: f64,
}

/// Observes a stream for half a second.
pub fn measure(endpoint: &Endpoint) -> Result<Measured, ObserveError> {
    let mut observer = Observer::connect(endpoint, TIMEOUT)?;
    let before = observer.latest().counters.clone();
    thread::sleep(INTERVAL);
    let snapshot = observer.snapshot()?.clone();
    let now = &snapshot.counters;
    // From publication to publication: a whole number of frames.
    let frames = now.published.saturating_sub(before.published) as f64;
    let time = match before.last_published {
        0 => INTERVAL.as_nanos() as f64,
        begin => now.last_published.saturating_sub(begin) as f64,
    };
    let rate = if time > 0.0 { frames / time * 1e9 } else { 0.0 };
    Ok(Measured { snapshot, rate })
}

/// Returns format and size of the frames in few words.
pub fn short_format(snapshot: &Snapshot) -> String {
    match &snapshot.format {
        Some(format) => match &format.video {
            Some(video) => format!("{} {}x{}", video.format, video.width, video.height),
            None => format.caps.split(',').next().unwrap_or_default().to_owned(),
        },
        None => "-".to_owned(),
    }
}

/// Returns whether a reader gets copies of GPU frames in host memory.
pub fn is_copied(snapshot: &Snapshot, reader: &ReaderState) -> bool {
    reader.memory == MemoryKind::Host && snapshot.memory != MemoryKind::Host
}

/// Returns the numbers of copies with their reasons.
pub fn describe_copies(copies: &[CopyCount]) -> String {
    let each = copies.iter().map(|CopyCount { reason, count }| format!("{count} for {reason}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Returns how long ago a time of the snapshot was, which the exporter's clock gives.
pub fn time_ago(snapshot: &Snapshot, time: u64) -> String {
    format!("{} ago", duration(snapshot.time.saturating_sub(time)))
}

/// Returns a duration in its largest unit.
pub fn duration(ns: u64) -> String {
    let time = Duration::from_nanos(ns);
    match time.as_secs() {
        _ if ns == u64::MAX => "without limit".to_owned(),
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_given_in_their_largest_unit() {
        let seconds = |seconds: u64| duration(seconds * 1_000_000_000);
        assert_eq!(duration(12_345_678), "12 ms");
        assert_eq!(
            [seconds(119), seconds(120), seconds(7199), seconds(7200)],
            ["119 s", "2 min", "119 min", "2 h"]
        );
        assert_eq!(duration(u64::MAX), "without limit");
    }
}
