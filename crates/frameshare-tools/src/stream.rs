// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams by the name that a user gives, and their state at two times.

use crate::error::Error;
use frameshare::{
    Endpoint, EndpointError, MemoryKind, StreamInfo,
    observer::{CopyCount, ObserveError, Observer, ReaderState, Snapshot},
};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Limit for each answer of an exporter.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Stack of a thread that observes a stream.
const STACK: usize = 256 << 10;
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

/// Observes all streams at once, each within a limit that `observe` gets: exporters that do not
/// answer delay no other, however many there are.
pub fn observe_all<T: Send + Sync>(
    observe: impl Fn(&Endpoint, Duration) -> Result<T, ObserveError> + Sync,
) -> Result<Vec<Observed<T>>, Error> {
    let streams = frameshare::streams().map_err(Error::List)?;
    let deadline = Instant::now() + TIMEOUT;
    let limit = || deadline.saturating_duration_since(Instant::now());
    let next = AtomicUsize::new(0);
    let observed: Vec<_> = streams.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        while let Some(index) = Some(next.fetch_add(1, Relaxed)).filter(|index| *index < streams.len()) {
            let _ = observed[index].set(observe(&streams[index].endpoint, limit()));
        }
    };
    thread::scope(|scope| {
        for _ in 1..streams.len() {
            // Beyond the limit of threads, those that are there observe the rest.
            if thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let observed = observed.into_iter().filter_map(OnceLock::into_inner);
    Ok(streams.into_iter().zip(observed).collect())
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

/// Observes a stream for half a second behind its first answer, which has to come within a limit.
pub fn measure(endpoint: &Endpoint, limit: Duration) -> Result<Measured, ObserveError> {
    let mut observer = Observer::connect(endpoint, limit)?;
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
