// SPDX-License-Identifier: MIT OR Apache-2.0

//! Upstream events: reports and input of a reader's application, for the owner of the exporter.
//!
//! The exporter names the kinds that it accepts in its
//! [`Config::upstream`](crate::exporter::Config#structfield.upstream), by default none, and gets
//! those of its own user's readers and of root's as
//! [`Notice::Upstream`](crate::exporter::Notice::Upstream). A reader sends them with an
//! [`UpstreamSender`](crate::reader::UpstreamSender):
//!
//! ```no_run
//! # fn f(reader: &frameshare::reader::Reader) -> Result<(), frameshare::upstream::UpstreamError> {
//! use frameshare::upstream::{Navigation, UpstreamEvent};
//!
//! let press = Navigation::new("mouse-button-press").field("button", 1);
//! let press = press.field("pointer_x", 320.0).field("pointer_y", 240.0);
//! reader.upstream().send(&UpstreamEvent::Navigation(press))?;
//! # Ok(())
//! # }
//! ```
//!
//! A reader sends at most one report about quality of service in 100 ms, and 200 events about
//! navigation a second, of which 100 are movements. The exporter drops, and counts in
//! [`ReaderStats`](crate::exporter::ReaderStats), those beyond twice that.

pub use frameshare_protocol::{
    limits::MAX_JITTER_NS,
    message::{Navigation, NavigationValue, Qos, UpstreamEvent, UpstreamKinds},
};

use frameshare_protocol::limits::{MAX_NAVIGATION_RATE, MAX_QOS_RATE};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// The reason why an upstream event is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The connection has ended, or there is none yet.
    #[error("the reader is not connected")]
    NotConnected,
    /// The exporter does not accept events of this kind from this reader.
    #[error("the exporter accepts no upstream events of this kind from this reader")]
    NotAccepted,
    /// A value exceeds its limit: see [`Qos`] and [`Navigation`].
    #[error("a value of the upstream event is out of range")]
    Invalid,
    /// Too many events were sent before.
    #[error("too many upstream events: at most 10 reports and 200 navigation events a second are sent")]
    TooMany,
}

/// Count of events in the present second.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    start: Option<Instant>,
    count: u32,
}

impl Window {
    fn admit(&mut self, most: u32, now: Instant) -> bool {
        if self.start.is_none_or(|start| now.saturating_duration_since(start) >= SECOND) {
            *self = Self { start: Some(now), count: 0 };
        }
        let is_admitted = self.count < most;
        self.count += u32::from(is_admitted);
        is_admitted
    }
}

/// Limit of the events that a reader sends.
#[derive(Debug, Default)]
pub(crate) struct SendingLimit {
    reported: Option<Instant>,
    navigation: Window,
}

impl SendingLimit {
    /// Returns whether an event may be sent now. Movements leave half of the room to other input.
    pub fn admit(&mut self, event: &UpstreamEvent, now: Instant) -> bool {
        match event {
            UpstreamEvent::Navigation(navigation) => {
                let is_movement = matches!(navigation.event.as_str(), "mouse-move" | "touch-motion");
                let most = if is_movement { MAX_NAVIGATION_RATE / 2 } else { MAX_NAVIGATION_RATE };
                self.navigation.admit(most, now)
            }
            _ => {
                let interval = SECOND / MAX_QOS_RATE;
                let is_due = self.reported.is_none_or(|last| now.saturating_duration_since(last) >= interval);
                if is_due {
                    self.reported = Some(now);
                }
                is_due
            }
        }
    }
}

/// Limit of the events that an exporter takes from one reader: twice what the reader may send,
/// since delays on the way shorten distances.
#[derive(Debug, Default)]
pub(crate) struct ReceivingLimit {
    reports: Window,
    navigation: Window,
}

impl ReceivingLimit {
    /// Returns whether an event is taken.
    pub fn admit(&mut self, event: &UpstreamEvent, now: Instant) -> bool {
        match event {
            UpstreamEvent::Navigation(_) => self.navigation.admit(2 * MAX_NAVIGATION_RATE, now),
            _ => self.reports.admit(2 * MAX_QOS_RATE, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QOS: UpstreamEvent = UpstreamEvent::Qos(Qos { proportion: 1.0, jitter: 0, time: 0 });

    fn input(event: &str) -> UpstreamEvent {
        UpstreamEvent::Navigation(Navigation::new(event))
    }

    #[test]
    fn movements_leave_room_for_presses() {
        let (mut limit, now) = (SendingLimit::default(), Instant::now());
        let mut sent = |event: &str, now| (0..1000).filter(|_| limit.admit(&input(event), now)).count();
        assert_eq!(sent("mouse-move", now), MAX_NAVIGATION_RATE as usize / 2);
        assert_eq!(sent("mouse-button-release", now), MAX_NAVIGATION_RATE as usize / 2);
        assert_eq!(sent("mouse-button-release", now), 0);
        assert_eq!(sent("mouse-move", now + SECOND), MAX_NAVIGATION_RATE as usize / 2);
    }

    #[test]
    fn reports_have_a_distance_of_100_ms() {
        let (mut limit, start) = (SendingLimit::default(), Instant::now());
        let sent = (0..1000).filter(|ms| limit.admit(&QOS, start + Duration::from_millis(*ms)));
        assert_eq!(sent.collect::<Vec<_>>(), (0..10).map(|index| 100 * index).collect::<Vec<_>>());
    }

    #[test]
    fn exporter_takes_what_an_honest_reader_sends() {
        let (mut sending, mut receiving) = (SendingLimit::default(), ReceivingLimit::default());
        let start = Instant::now();
        for ms in 0..5000 {
            let now = start + Duration::from_millis(ms);
            for event in [QOS, input("mouse-move"), input("key-press")] {
                assert!(!sending.admit(&event, now) || receiving.admit(&event, now), "{event:?} at {ms} ms");
            }
        }
        let flood = (0..1000).filter(|_| receiving.admit(&QOS, start + 9 * SECOND)).count();
        assert_eq!(flood, 2 * MAX_QOS_RATE as usize);
    }
}
