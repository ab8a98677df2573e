// SPDX-License-Identifier: MIT OR Apache-2.0

//! The steps in which a reader leaves.

/// State of a reader's connection and process, in the order in which they end. It only goes
/// forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// Nothing has ended.
    Connected,
    /// The reader has sent its close message.
    Closed,
    /// The connection has ended; only the process is still watched.
    HungUp,
    /// The process has ended, and all its imports with it.
    Exited,
}

impl Presence {
    /// Records the reader's close message. Returns true if it had sent one already.
    pub fn close(&mut self) -> bool {
        let again = *self >= Self::Closed;
        *self = (*self).max(Self::Closed);
        again
    }

    /// Records the end of the connection, and of the process if `has_exited`.
    pub fn hang_up(&mut self, has_exited: bool) {
        *self = (*self).max(if has_exited { Self::Exited } else { Self::HungUp });
    }
}

#[cfg(test)]
mod tests {
    use super::Presence::*;

    #[test]
    fn readers_leave_step_by_step_and_never_return() {
        let mut presence = Connected;
        assert!(!presence.close() && presence.close());
        presence.hang_up(false);
        assert_eq!(presence, HungUp);
        presence.hang_up(true);
        presence.hang_up(false);
        assert!(presence.close());
        assert_eq!(presence, Exited);
    }
}
