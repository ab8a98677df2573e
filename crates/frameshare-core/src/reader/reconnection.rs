// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reconnection: the state of a reader that outlives its connections.

use std::time::{Duration, Instant};

/// Minimum time between two connections, against an exporter that ends each at once.
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(20);

/// Statistics of one connection, or of all connections of a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// The run of the stream that is read.
    pub session: u64,
    /// The exporter's process.
    pub exporter_pid: u32,
    /// Maximum number of frames that the reader may hold.
    pub credit: u32,
    /// Number of frames that it holds.
    pub held: u32,
    /// Frames taken.
    pub received: u64,
    /// Frames lost.
    pub lost: u64,
    /// Number of reconnections; 0 for one connection.
    pub reconnects: u64,
    /// Number of sleeps on the futex.
    pub futex_sleeps: u64,
    /// Wake-ups of the futex that did not arrive.
    pub missed_wakes: u64,
    /// Frames that were delivered when they were written, because of the bound of waiting streams.
    pub gpu_wait_limited: u64,
}

/// Owns the statistics of past connections, and the time from which the next one may be attempted.
/// It neither searches nor connects, and has no clock: times are passed in.
///
/// The order: [`Reconnection::next_attempt`] and [`Reconnection::lose`] when a connection is lost,
/// [`Reconnection::connect`] when the search has found the next one.
#[derive(Debug)]
pub struct Reconnection {
    /// Statistics of past connections, with session and process of the last one.
    past: ConnectionStats,
    /// Time of the last connection.
    connected: Instant,
}

impl Reconnection {
    /// A reader without past connections, whose first one is made or searched for `now`.
    pub fn new(now: Instant) -> Self {
        Self { past: ConnectionStats::default(), connected: now }
    }

    /// The time of the next attempt to connect, after the present connection was lost.
    pub fn next_attempt(&self, now: Instant) -> Instant {
        (self.connected + BETWEEN_CONNECTIONS).max(now)
    }

    /// Notes that the present connection is lost, with these statistics.
    pub fn lose(&mut self, connection: ConnectionStats) {
        self.past = ConnectionStats { credit: 0, held: 0, ..self.total(Some(connection)) };
    }

    /// Notes a connection that a search has found. The first one of a started reader is no
    /// reconnection.
    pub fn connect(&mut self, now: Instant) {
        self.past.reconnects += u64::from(self.past.session != 0);
        self.connected = now;
    }

    /// Statistics of all connections, with those of the present one, if there is one.
    pub fn total(&self, present: Option<ConnectionStats>) -> ConnectionStats {
        let Some(present) = present else { return self.past.clone() };
        ConnectionStats {
            received: self.past.received + present.received,
            // The exporter may report any number of lost frames.
            lost: self.past.lost.saturating_add(present.lost),
            reconnects: self.past.reconnects,
            futex_sleeps: self.past.futex_sleeps + present.futex_sleeps,
            missed_wakes: self.past.missed_wakes + present.missed_wakes,
            gpu_wait_limited: self.past.gpu_wait_limited + present.gpu_wait_limited,
            ..present
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_each_other_after_20_ms() {
        let begin = Instant::now();
        let ms = |time| begin + Duration::from_millis(time);
        let mut reconnection = Reconnection::new(begin);
        assert_eq!(reconnection.next_attempt(ms(1)), ms(20));
        // A connection that lasted is followed at once.
        assert_eq!(reconnection.next_attempt(ms(500)), ms(500));
        reconnection.connect(ms(600));
        assert_eq!(reconnection.next_attempt(ms(601)), ms(620));
    }

    #[test]
    fn statistics_add_up_over_connections() {
        let one = |session| ConnectionStats {
            session,
            credit: 4,
            held: 1,
            received: 10,
            lost: 2,
            futex_sleeps: 30,
            missed_wakes: 4,
            gpu_wait_limited: 50,
            ..ConnectionStats::default()
        };
        let mut reconnection = Reconnection::new(Instant::now());
        // The first connection of a started reader.
        reconnection.connect(Instant::now());
        assert_eq!(reconnection.total(Some(one(7))), one(7));
        reconnection.lose(one(7));
        // During the search: the last session, and nothing that belongs to a connection.
        let past = ConnectionStats { credit: 0, held: 0, ..one(7) };
        assert_eq!(reconnection.total(None), past);
        reconnection.connect(Instant::now());
        let total = ConnectionStats {
            received: 20,
            lost: 4,
            reconnects: 1,
            futex_sleeps: 60,
            missed_wakes: 8,
            gpu_wait_limited: 100,
            ..one(8)
        };
        assert_eq!(reconnection.total(Some(one(8))), total);
        let lost_all = ConnectionStats { lost: u64::MAX, ..one(8) };
        assert_eq!(reconnection.total(Some(lost_all)), ConnectionStats { lost: u64::MAX, ..total });
    }
}
