// SPDX-License-Identifier: MIT OR Apache-2.0

//! `is-live=false`: the exporter's timestamps and segment.
//!
//! The segment is shifted so that the first frame has running time 0, and so that the running time
//! goes on where it was after another exporter or stream.

use super::timeline::Timeline;

/// State of the exporter's timestamps. Owned by the streaming thread.
pub(crate) struct FileTime {
    timeline: Option<Timeline>,
    /// The segment was not pushed yet.
    is_due: bool,
    /// The next frame is the first of its exporter.
    is_start: bool,
    /// Lag of this source's running time behind the exporter's, in ns.
    behind: i128,
    /// Running time of this source at the end of its last frame, in ns.
    end: i128,
}

impl Default for FileTime {
    fn default() -> Self {
        Self { timeline: None, is_due: true, is_start: true, behind: 0, end: 0 }
    }
}

impl FileTime {
    /// Begins the timestamps of another exporter.
    pub fn begin(&mut self) {
        *self = Self { end: self.end, ..Self::default() };
    }

    /// Takes a segment of the exporter.
    pub fn set(&mut self, timeline: Timeline) {
        self.timeline = Some(timeline);
        self.is_due = true;
    }

    /// Returns the present segment of the exporter.
    pub fn timeline(&self) -> Timeline {
        self.timeline.unwrap_or_else(|| Timeline::from(0))
    }

    /// Takes the times of the next frame. Returns a segment that precedes it, if one is due.
    pub fn follow(
        &mut self,
        time: Option<u64>,
        duration: Option<u64>,
    ) -> Option<gst::FormattedSegment<gst::ClockTime>> {
        let timeline = *self.timeline.get_or_insert_with(|| Timeline::from(time.unwrap_or(0)));
        let running = time.map(|time| timeline.running(time));
        if let (true, Some(running)) = (std::mem::take(&mut self.is_start), running) {
            self.behind = running - self.end;
        }
        let segment = std::mem::take(&mut self.is_due).then(|| timeline.segment(self.behind));
        if let Some(running) = running {
            let duration = i128::from(duration.filter(|duration| *duration != u64::MAX).unwrap_or(0));
            self.end = self.end.max(running - self.behind + duration);
        }
        segment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_time_goes_on_with_the_next_exporter() {
        gst::init().unwrap();
        let mut time = FileTime::default();
        let running = |segment: &gst::FormattedSegment<gst::ClockTime>, position: u64| {
            segment.to_running_time(gst::ClockTime::from_nseconds(position)).map(gst::ClockTime::nseconds)
        };
        let first = time.follow(Some(1000), Some(40)).unwrap();
        assert_eq!(running(&first, time.timeline().position(1000) as u64), Some(0));
        assert!(time.follow(Some(1040), Some(40)).is_none());
        time.begin();
        let second = time.follow(Some(9000), Some(40)).unwrap();
        assert_eq!(running(&second, time.timeline().position(9000) as u64), Some(80));
        assert!(time.follow(None, None).is_none());
    }
}
