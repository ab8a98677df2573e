// SPDX-License-Identifier: MIT OR Apache-2.0

//! `is-live=true`: where the frames of a connection lie in this pipeline's running time.
//!
//! A frame lies where it was due at the exporter. The first frames of a connection may lie before
//! the start of this pipeline, or before frames of the connection that it replaces: a joining
//! reader gets the units of the present group of pictures, which are up to seconds old. No frame
//! can have a negative running time, and frames whose times were clamped would lose their
//! distances. The [`Consumer`] decides what happens instead.
//!
//! A pause is like a new connection, whose first frames are those that were published meanwhile:
//! the running time of the pipeline stood still, and they would lie before those that were pushed.
//! A recorder alone gets them as if there had been no pause.

/// The use that the pipeline makes of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// No sink waits for the clock, and there is no other source: all frames are moved by the same
    /// time, so that the first one has running time 0. A muxer gets every unit.
    Recorder,
    /// A sink waits for the clock: moved frames would be late for as long as it plays. The segment
    /// begins at the present time: the decoder decodes the units before it, and shows none of them
    /// but the one that is on display at that time.
    Viewer,
    /// Frames must not be moved, since they stay in step with another source or a sink waits for
    /// the clock. They must not precede the segment either, since a muxer or a sink drops them
    /// there. So they begin with the first key unit that is published after the connection.
    Other,
}

/// The first frame of a connection; times in ns of the running time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    /// Its decoding time, or its presentation time if it has no other. The first one that has one
    /// places all.
    pub time: Option<i128>,
    /// Time by which units that follow it may precede it in presentation: they have no decoding
    /// times.
    pub reordering: i128,
    /// Time by which the exporter's frames come later than their times.
    pub latency: i128,
    /// The present time.
    pub now: i128,
    /// It was published before the connection, and is followed by the units that depend on it.
    pub is_kept_unit: bool,
    /// It was published before the connection, and its time is that of its arrival: it says nothing
    /// about the next ones, which may have been due before.
    pub is_shown_now: bool,
}

/// Place of the frames in the running time. Owned by the streaming thread.
#[derive(Debug)]
pub(crate) struct LiveTime {
    /// Time in ns that is added to the running time of each frame, which gives its timestamp.
    lead: i128,
    /// Start of the segment in timestamps, and its running time.
    segment: (i128, i128),
    /// The next frame is the first of its connection.
    is_start: bool,
    /// Frames are skipped up to the next key unit.
    awaits_key: bool,
    /// End of the last frame, in timestamps.
    end: i128,
}

impl Default for LiveTime {
    fn default() -> Self {
        Self { lead: 0, segment: (0, 0), is_start: true, awaits_key: false, end: 0 }
    }
}

impl LiveTime {
    /// Begins another connection.
    pub fn begin(&mut self) {
        (self.is_start, self.awaits_key) = (true, false);
    }

    /// Goes on after a pause of this length in ns, in which the running time stood still. Returns
    /// whether the frames go on as if there had been none: a recorder gets all frames of the pause,
    /// with their distances. Otherwise they are placed as at the begin of a connection.
    pub fn resume(&mut self, pause: i128, consumer: Consumer) -> bool {
        let is_recorder = consumer == Consumer::Recorder;
        match is_recorder {
            true => self.lead += pause,
            // A key unit that it awaits has not come meanwhile.
            false => self.is_start = true,
        }
        is_recorder
    }

    /// Returns whether the next frame is the first of its connection.
    pub fn is_start(&self) -> bool {
        self.is_start
    }

    /// Returns whether the frames of the connection are placed, and none is skipped.
    pub fn is_settled(&self) -> bool {
        !self.is_start && !self.awaits_key
    }

    /// Returns the time in ns to add to the running time of a frame.
    pub fn lead(&self) -> i128 {
        self.lead
    }

    /// Places the frames of a connection by its first one. Returns a segment that precedes it, if
    /// one is due.
    pub fn start(
        &mut self,
        first: First,
        consumer: Consumer,
    ) -> Option<gst::FormattedSegment<gst::ClockTime>> {
        self.awaits_key = consumer == Consumer::Other && first.is_kept_unit;
        let time = first.time?;
        self.is_start = self.awaits_key || first.is_shown_now;
        // Those that are older than the exporter's latency would be late for ever.
        let is_old = time < -first.latency;
        let is_moved =
            consumer == Consumer::Recorder || (consumer == Consumer::Viewer && !first.is_kept_unit && is_old);
        let reordering =
            if consumer == Consumer::Recorder || first.is_kept_unit { first.reordering } else { 0 };
        let time = time - reordering;
        let earliest = match consumer {
            Consumer::Recorder => self.end,
            Consumer::Viewer | Consumer::Other => 0,
        };
        let is_in_time = match consumer {
            Consumer::Recorder => time + self.lead >= earliest,
            Consumer::Viewer | Consumer::Other => !first.is_kept_unit && time >= 0,
        };
        if self.awaits_key || is_in_time {
            return None;
        }
        self.lead = self.lead.max(earliest - time);
        // The frame that is due now was captured before.
        let shown = (first.now - first.latency).max(0);
        let segment = match (is_moved, first.is_kept_unit) {
            (true, _) => (0, 0),
            (false, true) => (shown + self.lead, shown),
            (false, false) => (self.lead, 0),
        };
        (std::mem::replace(&mut self.segment, segment) != segment).then(|| {
            let [start, running] = [segment.0, segment.1].map(super::timestamps::nearest);
            let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
            segment.set_start(start);
            segment.set_position(start);
            segment.set_time(running);
            segment.set_base(running);
            segment
        })
    }

    /// Returns the time from a timestamp to the start of the segment; none if it is not before.
    pub fn before_segment(&self, timestamp: gst::ClockTime) -> Option<gst::ClockTime> {
        super::timestamps::nearest(self.segment.0).checked_sub(timestamp).filter(|left| !left.is_zero())
    }

    /// Returns whether a time that no frame of this connection has placed is before the end of the
    /// last frame.
    pub fn has_passed(&self, timestamp: gst::ClockTime) -> bool {
        self.is_start && i128::from(timestamp.nseconds()) < self.end
    }

    /// Takes the next frame while frames are skipped up to the next key unit, which then is the
    /// first one of the connection. Returns whether this one is skipped.
    pub fn skips(&mut self, is_kept: bool, is_delta: bool) -> bool {
        self.awaits_key &= is_kept || is_delta;
        self.awaits_key
    }

    /// Records a buffer that is about to be pushed.
    pub fn pushed(&mut self, buffer: &gst::BufferRef) {
        if let Some(time) = buffer.pts().max(buffer.dts()) {
            // A picture that is shown now ends when the next frame is due.
            let duration = buffer.duration().filter(|_| !self.is_start);
            let end = super::sum(time, duration.unwrap_or_default());
            self.end = self.end.max(end.nseconds().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    fn kept(time: i128, now: i128) -> First {
        First { time: Some(time), reordering: 0, latency: 0, now, is_kept_unit: true, is_shown_now: false }
    }

    fn running(segment: &gst::FormattedSegment<gst::ClockTime>, timestamp: i128) -> Option<i128> {
        let timestamp = gst::ClockTime::from_nseconds(timestamp as u64);
        segment.to_running_time(timestamp).map(|time| time.nseconds().into())
    }

    #[test]
    fn recorder_gets_kept_units_from_time_zero() {
        gst::init().unwrap();
        let mut time = LiveTime::default();
        assert!(time.start(kept(-2 * SECOND, SECOND / 10), Consumer::Recorder).is_none());
        assert_eq!(time.lead(), 2 * SECOND);
        let mut buffer = gst::Buffer::new();
        buffer.get_mut().unwrap().set_pts(gst::ClockTime::from_seconds(9));
        time.pushed(&buffer);
        // The next connection's units begin where the last frame ended.
        time.begin();
        assert!(time.start(kept(5 * SECOND, 8 * SECOND), Consumer::Recorder).is_none());
        assert_eq!(time.lead(), 4 * SECOND);
    }

    #[test]
    fn viewer_gets_kept_units_before_its_segment() {
        gst::init().unwrap();
        let mut time = LiveTime::default();
        let (first, now) = (-2 * SECOND, SECOND / 10);
        let segment = time.start(kept(first, now), Consumer::Viewer).unwrap();
        assert_eq!(first + time.lead(), 0, "timestamps are not negative");
        assert_eq!(running(&segment, first + time.lead()), None);
        for later in [now, now + SECOND, 100 * SECOND] {
            assert_eq!(running(&segment, later + time.lead()), Some(later), "nothing is delayed");
        }
        // Units of the next connection are not before the start, but before the present time.
        time.begin();
        let segment = time.start(kept(5 * SECOND, 8 * SECOND), Consumer::Viewer).unwrap();
        assert_eq!(running(&segment, 5 * SECOND + time.lead()), None);
        assert_eq!(running(&segment, 8 * SECOND + time.lead()), Some(8 * SECOND));
    }

    #[test]
    fn recorder_without_decoding_times_has_room_for_leading_pictures() {
        let mut time = LiveTime::default();
        time.start(First { reordering: SECOND, ..kept(-2 * SECOND, 0) }, Consumer::Recorder);
        assert_eq!(time.lead(), 3 * SECOND);
    }

    #[test]
    fn frames_in_time_are_not_moved() {
        for consumer in [Consumer::Recorder, Consumer::Viewer, Consumer::Other] {
            let mut time = LiveTime::default();
            let first = First { is_kept_unit: false, ..kept(SECOND, SECOND) };
            assert!(time.start(first, consumer).is_none());
            assert_eq!(time.lead(), 0);
            assert!(!time.skips(false, true));
        }
    }

    #[test]
    fn other_consumer_begins_at_next_key_unit() {
        gst::init().unwrap();
        let mut time = LiveTime::default();
        time.start(kept(-2 * SECOND, 0), Consumer::Other);
        let skipped = [(true, false), (true, true), (false, true), (false, false), (false, true)];
        let skipped = skipped.map(|(is_kept, is_delta)| time.skips(is_kept, is_delta));
        assert_eq!(skipped, [true, true, true, false, false]);
    }

    #[test]
    fn frames_of_the_last_possible_time_do_not_overflow() {
        gst::init().unwrap();
        let mut time = LiveTime::default();
        time.start(First { is_kept_unit: false, ..kept(0, 0) }, Consumer::Viewer);
        let mut buffer = gst::Buffer::new();
        buffer.get_mut().unwrap().set_pts(gst::ClockTime::MAX);
        buffer.get_mut().unwrap().set_duration(gst::ClockTime::MAX);
        time.pushed(&buffer);
        assert_eq!(time.end, i128::from(gst::ClockTime::MAX.nseconds()));
    }

    #[test]
    fn pause_does_not_end_the_wait_for_a_key_unit() {
        let mut time = LiveTime::default();
        time.start(kept(-2 * SECOND, 0), Consumer::Other);
        assert!(!time.resume(SECOND, Consumer::Other));
        assert!(time.skips(false, true));
        assert!(!time.skips(false, false));
    }

    #[test]
    fn gap_of_a_pause_has_passed() {
        gst::init().unwrap();
        let mut time = LiveTime::default();
        time.start(First { is_kept_unit: false, ..kept(SECOND, SECOND) }, Consumer::Other);
        let mut buffer = gst::Buffer::new();
        buffer.get_mut().unwrap().set_pts(gst::ClockTime::SECOND);
        time.pushed(&buffer);
        let earlier = gst::ClockTime::from_mseconds(900);
        assert!(!time.has_passed(earlier), "the order is the exporter's");
        time.resume(SECOND / 10, Consumer::Other);
        assert!(time.has_passed(earlier));
        assert!(!time.has_passed(gst::ClockTime::SECOND));
    }

    #[test]
    fn frame_behind_a_picture_that_is_shown_now_has_a_time() {
        for consumer in [Consumer::Recorder, Consumer::Viewer, Consumer::Other] {
            let mut time = LiveTime::default();
            let shown = First { is_kept_unit: false, is_shown_now: true, ..kept(SECOND, SECOND) };
            time.start(shown, consumer);
            time.start(First { is_kept_unit: false, ..kept(-SECOND / 25, SECOND) }, consumer);
            assert_eq!(time.lead(), SECOND / 25, "{consumer:?}");
            assert!(!time.is_start());
        }
    }
}
