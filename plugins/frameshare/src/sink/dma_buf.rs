// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames in dma-bufs of upstream, shared in place.
//!
//! A dma-buf is exported once, and its buffer is held until all leases on it have ended and devices
//! have finished their work on it. Readers that import a dma-buf keep its memory allocated
//! themselves: upstream may free its own at any time.

use super::{
    copy_stats::{CopyReason, Path},
    cuda::SURFACES,
    kinds::Export,
    log::CAT,
    placed::{PlaceError, Placed},
    stream::{Stream, whole_in},
};
use crate::ffi::dma_buf;
use frameshare::exporter::{ReaderInfo, Slot, Stats};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

/// Returns the reader that has the most of upstream's buffers, if any has one. Readers that have
/// left come first: they get no further frame, and present ones may go on when these are back.
fn holder(stats: &Stats) -> Option<&ReaderInfo> {
    let most = [&stats.draining, &stats.readers].map(|readers| readers.iter().max_by_key(|one| one.adopted));
    most.into_iter().flatten().find(|reader| reader.adopted > 0).map(|reader| &reader.info)
}

impl Stream {
    /// Places a frame in upstream's own memory, which is not in a slot: in place if it is in a
    /// dma-buf and there is no `reason` to copy it.
    pub(super) fn place_foreign(
        &self,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
        reason: Option<CopyReason>,
    ) -> Result<Placed, PlaceError> {
        let shared = match (reason, self.has_dma_buf(buffer)) {
            (_, false) => Err(CopyReason::ForeignMemory),
            (Some(reason), true) => Err(reason),
            (None, true) => self.share_dma_buf(buffer, info),
        };
        let reason = match shared {
            Ok((slot, offset)) => {
                // The default layout of the format is not that of the device.
                let has_planes = !self.has_device_layout() || buffer.meta::<gst_video::VideoMeta>().is_some();
                let info = info.filter(|_| has_planes);
                let placed = whole_in(slot, offset, buffer, info, Path::InPlace)?;
                if !self.must_be_compact(&placed, info) {
                    return Ok(placed);
                }
                CopyReason::PaddedRows
            }
            Err(reason) => reason,
        };
        let is_asked = self.export == Export::InPlace && self.shares_dma_bufs && self.has_dma_buf(buffer);
        if is_asked && !matches!(reason, CopyReason::TooManyHeld | CopyReason::ReaderWaits) {
            return Err(PlaceError::NotInPlace(reason));
        }
        self.copy_for(reason, buffer, info)
    }

    fn has_dma_buf(&self, buffer: &gst::BufferRef) -> bool {
        buffer.n_memory() == 1 && dma_buf::of(buffer.peek_memory(0)).is_some()
    }

    /// Returns the slot of a dma-buf and the offset of the frame in it; or the reason why the frame
    /// must be copied.
    fn share_dma_buf(
        &self,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<(Slot, u64), CopyReason> {
        if self.export == Export::Copy || !self.shares_dma_bufs {
            return Err(CopyReason::Asked);
        }
        // Units of encoded streams are kept as copies, and depend on each other.
        let (Some(_), Some((dma_buf, offset))) = (info, dma_buf::of(buffer.peek_memory(0))) else {
            return Err(CopyReason::ForeignMemory);
        };
        self.exporter.can_adopt_dma_bufs().map_err(|_| CopyReason::ReaderCannot)?;
        if self.surfaces.are_held(&self.exporter, self.spare(buffer)) {
            return Err(CopyReason::TooManyHeld);
        }
        match self.exporter.adopt_dma_buf(dma_buf) {
            Ok(slot) => {
                self.has_shared_dma_bufs.store(true, Relaxed);
                Ok((slot, offset))
            }
            Err(error) => {
                gst::debug!(CAT, "a dma-buf cannot be shared in place: {error}");
                Err(CopyReason::NotShareable)
            }
        }
    }

    /// Number of buffers that upstream can spare: a camera with a fixed number of them needs two to
    /// go on. Beyond it frames are copied, or wait until readers release some.
    fn spare(&self, buffer: &gst::Buffer) -> u32 {
        match (dma_buf::pool_size(buffer), self.has_device_layout()) {
            (None, true) => u32::MAX,
            (Some(max), true) => max.saturating_sub(2).max(1),
            (max, false) => max.unwrap_or(SURFACES + 1).saturating_sub(2).clamp(1, SURFACES - 1),
        }
    }

    /// Takes all frames from the reader that keeps upstream from its buffers, and disconnects it:
    /// it has done so for `time`. Returns a reader that had left before, with the reason: no notice
    /// of the exporter names it again.
    pub(super) fn revoke_holder(&self, time: Duration) -> Option<(ReaderInfo, String)> {
        let stats = self.exporter.stats();
        let holder = holder(&stats)?;
        let why = format!("it kept upstream waiting for its buffers for {time:?}");
        let has_left = stats.draining.iter().any(|reader| reader.info.id == holder.id);
        let is_revoked = self.exporter.revoke(holder.id, &why);
        (has_left && is_revoked).then(|| (holder.clone(), why))
    }

    /// Retires the dma-bufs shared so far.
    pub(super) fn retire_dma_bufs(&self) {
        if self.has_shared_dma_bufs.swap(false, Relaxed) {
            self.exporter.retire_adopted();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare::{
        Endpoint, Interrupt, Wait,
        exporter::{Config, Exporter, Frame, Purpose},
        fence::Written,
        reader::{self, Item, Reader},
    };

    /// Statistics as of dma-bufs: all frames of readers in host memory stand for such.
    fn in_dma_bufs(exporter: &Exporter) -> Stats {
        let mut stats = exporter.stats();
        for reader in stats.readers.iter_mut().chain(&mut stats.draining) {
            assert_eq!(reader.adopted, 0, "frames in slots of the exporter keep upstream from nothing");
            reader.adopted = reader.held + reader.queued;
        }
        stats
    }

    #[test]
    fn holder_is_the_reader_that_left_then_the_one_with_most() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        let interrupt = Interrupt::new().unwrap();
        let connect = || Reader::connect(&endpoint, reader::Config::default(), &interrupt).unwrap();
        let take = |reader: &mut Reader| match reader.next(Some(Duration::from_secs(60)), &interrupt) {
            Ok(Some(Item::Frame(frame))) => frame,
            other => panic!("{other:?}"),
        };
        let publish = || {
            let slot = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
            exporter.publish(Frame::new(&slot, 100, Written::Cpu), Wait::No).unwrap();
        };
        let [mut first, mut second, mut third] = [(); 3].map(|()| connect());
        publish();
        let of_first = take(&mut first);
        let mut of_second = vec![take(&mut second)];
        drop(take(&mut third));
        drop(first);
        while exporter.reader_count() == 3 {
            std::thread::yield_now();
        }
        publish();
        of_second.push(take(&mut second));
        drop(take(&mut third));
        // The second one has more, and would not have it if the first one gave its frame back.
        let held = in_dma_bufs(&exporter);
        assert_eq!(holder(&held).map(|reader| reader.id), Some(1));
        assert_eq!(holder(&exporter.stats()), None, "no buffer of upstream's is held");
        assert!(exporter.revoke(1, "a test"));
        assert_eq!(holder(&in_dma_bufs(&exporter)).map(|reader| reader.id), Some(2));
        drop(of_second);
        assert_eq!(holder(&in_dma_bufs(&exporter)), None, "innocent readers are never chosen");
        assert_eq!(exporter.reader_count(), 2);
        drop(of_first);
    }
}
