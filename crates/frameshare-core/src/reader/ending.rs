// SPDX-License-Identifier: MIT OR Apache-2.0

//! End of a connection, and its report to the application.

use frameshare_protocol::{Sequence, message::Reason};
use std::{mem, time::Duration};

/// The end of a connection.
#[derive(Clone, Debug)]
pub enum End {
    /// The exporter exited, or hung up without a close message.
    HungUp,
    /// A frame's ready fence missed its deadline.
    Stalled {
        /// The frame.
        sequence: Sequence,
        /// The deadline.
        limit: Duration,
    },
    /// The close message.
    Closed(Reason, String),
}

impl End {
    /// Returns whether the exporter sent a close message.
    #[inline]
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(..))
    }
}

/// Owns the end of a connection: whether it has come, which one counts, and whether the application
/// has it. It notices no end itself, and knows nothing of the frames that are delivered before the
/// report.
///
/// The order: [`Ending::end`] as often as something ends the connection, [`Ending::ended`] when
/// nothing else is left to deliver, then [`Ending::report`]. After the report nothing is delivered.
#[derive(Debug, Default)]
pub struct Ending(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Connected,
    /// Frames from before the end may be left to deliver.
    Ended(End),
    /// The application has the error.
    Reported(End),
}

impl Ending {
    /// Returns whether the connection has not ended.
    #[inline]
    pub fn is_connected(&self) -> bool {
        matches!(self.0, State::Connected)
    }

    /// Notes an end of the connection; the first one counts.
    #[inline]
    pub fn end(&mut self, end: End) {
        if self.is_connected() {
            self.0 = State::Ended(end);
        }
    }

    /// The end of the connection, if it has ended.
    #[inline]
    pub fn ended(&self) -> Option<&End> {
        match &self.0 {
            State::Connected => None,
            State::Ended(end) | State::Reported(end) => Some(end),
        }
    }

    /// Returns whether the application has the error.
    #[inline]
    pub fn is_reported(&self) -> bool {
        matches!(self.0, State::Reported(_))
    }

    /// Notes that the application gets the error. Returns true for the first report.
    #[inline]
    pub fn report(&mut self) -> bool {
        let (state, is_first) = match mem::take(&mut self.0) {
            State::Ended(end) => (State::Reported(end), true),
            state => (state, false),
        };
        self.0 = state;
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_end_counts_and_is_reported_once() {
        let mut ending = Ending::default();
        assert!(ending.is_connected() && ending.ended().is_none());
        // There is no end to report yet.
        assert!(!ending.report() && ending.is_connected());
        ending.end(End::Closed(Reason::Stopped, "it has stopped".into()));
        assert!(!ending.is_connected() && !ending.is_reported());
        assert!(!End::HungUp.is_closed() && ending.ended().is_some_and(End::is_closed));
        ending.end(End::HungUp);
        assert!(ending.report() && ending.is_reported());
        ending.end(End::HungUp);
        assert!(!ending.report() && ending.is_reported() && !ending.is_connected());
        let end = ending.ended();
        assert!(
            matches!(end, Some(End::Closed(Reason::Stopped, text)) if text == "it has stopped"),
            "{end:?}"
        );
    }
}
