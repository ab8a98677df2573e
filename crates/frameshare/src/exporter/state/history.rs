// SPDX-License-Identifier: MIT OR Apache-2.0

//! History: the last frame is kept for readers that join later.

use super::State;
use crate::{
    exporter::{
        config::History,
        link::{Packet, WaitingFrame},
        slot::Slot,
    },
    sys::monotonic_ns,
};
use frameshare_protocol::{AreaIndex, Descriptor};
use std::{mem, time::Duration};

impl State {
    /// Sets what is kept for readers that join later.
    pub fn set_history(&mut self, history: History) {
        self.config.history = history;
        if !history.keeps_frames() {
            self.forget_last();
        }
    }

    /// Keeps the frame that has just been published, in place of the last one. Adopted memory is
    /// its owner's, who may need it soon.
    pub(super) fn keep_last(
        &mut self,
        slot: &Slot,
        area: AreaIndex,
        descriptor: &Descriptor,
        oversized: Option<Packet>,
    ) {
        if !self.config.history.keeps_frames() {
            return;
        }
        self.forget_last();
        if !self.is_adopted(slot) {
            self.add_lease(area);
            let (descriptor, bytes) = (descriptor.clone(), slot.size());
            self.last = Some(WaitingFrame { area, descriptor, oversized, bytes });
        }
    }

    /// Returns whether the publication in this area has no lease but that of the kept frame: it
    /// ends with the next frame, and no polling ends it before.
    pub(super) fn is_only_kept(&self, area: AreaIndex) -> bool {
        let leases = self.publications[area.0 as usize].as_ref().map(|publication| publication.leases);
        leases == Some(1) && self.last.as_ref().is_some_and(|last| last.area == area)
    }

    /// Forgets the last frame: it is no longer one of the present stream.
    pub fn forget_last(&mut self) {
        if let Some(last) = mem::take(&mut self.last) {
            self.end_lease(last.area);
        }
    }

    /// Returns the last frame for a joining reader, if the stream is slow. A reader that
    /// `downloads` frames gets one in GPU memory by a download into `target`, or by the one under
    /// way, unless the GPU is behind with earlier ones.
    pub fn last_for(&self, downloads: bool, target: Option<&Slot>) -> Option<&WaitingFrame> {
        let last = self.slow_last()?;
        let is_downloadable = || match self.newest_download() {
            Some(under_way) => under_way == last.descriptor.sequence,
            None => target.is_some_and(|target| target.size() >= last.descriptor.size),
        };
        (!downloads || self.is_in_host(last) || is_downloadable()).then_some(last)
    }

    /// Returns the size in bytes of the last frame, if a joining reader would get it by a download.
    pub fn last_to_download(&self) -> Option<u64> {
        let last = self.slow_last().filter(|last| !self.is_in_host(last))?;
        Some(last.descriptor.size)
    }

    /// Delivers the last frame to a reader that has joined: as it is, or by a download into
    /// `target`.
    pub(super) fn deliver_last(&mut self, joining: usize, last: WaitingFrame, target: Option<Slot>) {
        if self.links[joining].downloads() && !self.is_in_host(&last) {
            if let Some(target) = target.filter(|_| self.newest_download().is_none()) {
                self.download_last(last, target);
            }
            return;
        }
        let (id, generation) = (self.links[joining].info.id, last.descriptor.slot.generation);
        self.add_lease(last.area);
        self.links[joining].push_backlog(last);
        self.deliver_backlogs();
        self.retire_for(id, generation);
    }

    /// Returns the last frame, if no other has followed it for some time. In a fast stream the next
    /// one comes soon, and at its own time.
    fn slow_last(&self) -> Option<&WaitingFrame> {
        let age = |last: &WaitingFrame| monotonic_ns().saturating_sub(last.descriptor.published);
        let pause = self.config.history_pause;
        self.last.as_ref().filter(|last| Duration::from_nanos(age(last)) >= pause)
    }

    fn is_in_host(&self, frame: &WaitingFrame) -> bool {
        let publication = self.publications[frame.area.0 as usize].as_ref();
        publication.is_some_and(|publication| publication.slot.as_ptr().is_some())
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Endpoint, Interrupt, Wait,
        exporter::{Config, Exporter, Frame, History, Purpose, Slot},
        fence::Written,
        reader::{self, Item, Reader},
    };
    use std::{
        thread,
        time::{Duration, Instant},
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn publish(exporter: &Exporter, slot: &Slot) {
        exporter.publish(Frame::new(slot, 1000, Written::Cpu), Wait::Forever).unwrap();
    }

    fn take(reader: &mut Reader) -> u64 {
        match reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap() {
            Some(Item::Frame(frame)) => frame.descriptor().sequence.0,
            other => panic!("{other:?}"),
        }
    }

    /// A reader that joins after the retirement gets the kept frame, and then the request for its
    /// memory.
    #[test]
    fn kept_frame_of_retired_memory_is_requested_back() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let mut config = Config::default().history(History::Frames(1));
        config.history_pause = Duration::ZERO;
        let exporter = Exporter::bind(&endpoint, config, drop).unwrap();
        publish(&exporter, &exporter.acquire(1000, Purpose::Copy, Wait::No).unwrap());
        let larger = exporter.acquire(100_000, Purpose::Copy, Wait::No).unwrap();
        assert!(exporter.locked(|state| state.generations[0].retired), "of the kept frame");
        let mut reader =
            Reader::connect(&endpoint, reader::Config::default(), &Interrupt::new().unwrap()).unwrap();
        let retired = |exporter: &Exporter| exporter.locked(|state| state.retired.keys().copied().collect());
        assert_eq!((take(&mut reader), retired(&exporter)), (1, vec![1]), "it counts against the reader");
        publish(&exporter, &larger);
        assert_eq!(take(&mut reader), 2);
        let (imported, begin) = (|exporter: &Exporter| imports(exporter), Instant::now());
        while imported(&exporter) != [2] {
            assert!(begin.elapsed() < PATIENCE, "it imports {:?}", imported(&exporter));
            thread::sleep(Duration::from_millis(1));
        }
        exporter.reclaim();
        assert!(retired(&exporter).is_empty());
    }

    /// The generations that the only reader imports.
    fn imports(exporter: &Exporter) -> Vec<u32> {
        exporter.locked(|state| state.links[0].imports.generations().collect())
    }
}
