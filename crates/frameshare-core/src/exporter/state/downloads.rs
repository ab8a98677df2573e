// SPDX-License-Identifier: MIT OR Apache-2.0

//! Downloads: their start, their delivery, and the readers that get them.

use super::{State, offers::Offer};
use crate::{
    exporter::{
        ending::Ending,
        link::{WaitingFrame, Weight},
        parts::{Downloads, Urgency},
        system::{Signals, Slot, System},
        unit::Unit,
    },
    selected::Selected,
};
use frameshare_protocol::{
    Descriptor, FenceKind, MemoryKind, Sequence,
    message::{Reason, ToReader},
};
use std::fmt::Display;

/// Maximum number of downloads under way, or finished and waiting for lossless readers.
const MAX_DOWNLOADS: u32 = 4;

impl<S: System> State<S> {
    /// Creates the resources for downloads, if there is a GPU, and returns the choice of readers
    /// that get them for this reason.
    pub fn begin_downloads(&mut self, why: &str) -> Result<Selected<FenceKind>, Ending> {
        if self.downloads.is_none() {
            let failed = |error: S::GpuError| Ending::new(Reason::Failed, error.to_string());
            self.downloads = self.system.copier().map_err(failed)?.map(Downloads::new);
        }
        Ok(Selected { kind: FenceKind::None, why: format!("frames are downloaded: {why}") })
    }

    /// Handles a reader that cannot import a generation. Adopted memory is copied for all readers
    /// from now on, unless dma-bufs are required, which disconnects the reader; instead of the
    /// exporter's own GPU memory it gets downloads, if it accepts host memory.
    pub fn cannot_import(&mut self, id: u64, generation: u32, text: String) {
        let Some(index) = self.readers.position(id) else { return };
        let known = self.readers[index].imports.generations().any(|known| known == generation);
        let kind = self.slots.generation(generation).map(|one| (one.kind, one.is_adopted()));
        let ending = match (known, kind) {
            // The generation is retired by now.
            (true, None) => return,
            (true, Some((kind, true))) => {
                self.readers[index].forbid_adopted(kind, text);
                self.disconnect_without_dma_bufs();
                return;
            }
            (true, Some((kind, false))) if kind.is_gpu() && self.readers[index].hello().host_fallback => {
                match self.download_for(index, &text) {
                    Ok(()) => return,
                    Err(ending) => ending,
                }
            }
            _ => {
                let text =
                    format!("it refuses generation {generation}, which it must import or was never sent");
                Ending::new(Reason::Violation, text)
            }
        };
        self.end_link_of(id, &ending, false);
    }

    /// Downloads frames for this reader from now on, for this reason.
    pub fn download_for(&mut self, index: usize, why: &str) -> Result<(), Ending> {
        let choice = self.begin_downloads(why)?;
        // The frames that wait for room may have it now: they are not for this reader any more.
        self.waiters.note_change();
        let link = &mut self.readers[index];
        if link.begin_downloads(choice) {
            return Ok(());
        }
        let (before, format) = (self.publications.next(), self.announcement.format().cloned());
        format.map_or(Ok(()), |format| {
            link.send(&ToReader::Format { before, memory: MemoryKind::Host, format })
        })
    }

    /// Returns whether one more download may start. Each takes a GPU slot, which the credit of its
    /// readers covers since they lease none there, and one area beyond those promised to readers,
    /// of which one must be left for the next frame: one of the two in reserve.
    pub fn may_download(&self) -> bool {
        self.may_download_beside(0)
    }

    /// The same, if so many more frames wait for credit.
    pub(super) fn may_download_beside(&self, waiting: u32) -> bool {
        let readers = self.readers.present().iter().filter(|link| link.downloads());
        let slots = readers.map(|link| link.info.credit).sum();
        let areas = (self.limits.max_slots + 1).saturating_sub(self.promised_to_readers() + waiting);
        self.downloads.is_some() && self.count_downloads() < MAX_DOWNLOADS.min(slots).min(areas)
    }

    /// Number of downloads under way.
    pub fn count_downloads(&self) -> u32 {
        self.downloads.as_ref().map_or(0, |downloads| downloads.count() as u32)
    }

    /// Returns the weight of the first frame on its way to readers of downloads.
    pub fn first_download(&self) -> Option<Weight> {
        self.downloads.as_ref().and_then(Downloads::first_weight)
    }

    /// Returns whether a frame in this slot is downloaded if it is published now.
    pub fn wants_download(&self, slot: &S::Slot) -> bool {
        !slot.is_in_host()
            && self.readers.present().iter().any(|link| link.downloads())
            && self.may_download()
    }

    /// Starts the download of a frame for readers of host memory.
    pub fn start_download(
        &mut self,
        from: &S::Slot,
        to: S::Slot,
        frame: WaitingFrame<S::Attachment>,
        is_last: bool,
    ) {
        let (Some(downloads), Some(written)) = (&mut self.downloads, self.signals.present()) else { return };
        let area = frame.area;
        match downloads.start(written, from, to, frame, is_last) {
            Ok(()) => {
                self.polling.want(Urgency::Close);
                self.publications.add_lease(area);
            }
            Err(why) => self.cannot_download(&why),
        }
    }

    /// Returns whether a lossless reader gets downloads.
    pub fn must_download(&self) -> bool {
        self.readers.present().iter().any(|link| link.downloads() && link.is_lossless())
    }

    /// Returns whether there are host slots of downloads.
    pub fn has_host_slots(&self) -> bool {
        self.slots.open(MemoryKind::Host).is_some_and(|one| !one.is_empty())
    }

    /// Handles a frame that cannot be downloaded: it is lost to `latest` readers. Lossless ones are
    /// disconnected with the reason, and so are all if there is no host slot: they would never get
    /// a frame.
    pub fn cannot_download(&mut self, why: &dyn Display) {
        let text = format!("the exporter cannot copy its frames to host memory: {why}");
        let ending = Ending::new(Reason::Failed, text);
        let is_hopeless = !self.has_host_slots();
        for index in (0..self.readers.present().len()).rev() {
            let link = &self.readers[index];
            if link.downloads() && (link.is_lossless() || is_hopeless) {
                // It keeps the frames that it has taken.
                self.evict(index, &ending);
            }
        }
    }

    /// Starts the download of the last frame for a reader that has joined.
    pub fn download_last(&mut self, last: WaitingFrame<S::Attachment>, to: S::Slot) {
        let publication = self.publications.get(last.area);
        let Some(from) = publication.map(|publication| publication.slot.clone()) else { return };
        let gpu = self.system.gpu().cloned();
        // The frame was held: the download follows its writer.
        let Some(_current) = self.begin_earlier(gpu.as_ref()) else { return };
        self.start_download(&from, to, last, true);
        self.skip_undelivered();
    }

    /// Publishes finished downloads in order, until a lossless reader has no room.
    pub fn deliver_downloads(&mut self) {
        loop {
            let Some(weight) = self.first_download() else { return };
            if self.readers.present().iter().any(|link| link.downloads() && self.holds_back(link, weight)) {
                return;
            }
            let Some(downloads) = &mut self.downloads else { return };
            let (download, copied) = match downloads.take_ended() {
                Ok(Some(ended)) => ended,
                Ok(None) => return,
                Err(error) => {
                    // Failed work uses nothing any more.
                    let areas = downloads.give_up();
                    self.end_leases(areas);
                    return self.close_without_gpu(&error);
                }
            };
            let WaitingFrame { area: source, descriptor, oversized, .. } = &download.frame;
            let sequence = descriptor.sequence;
            self.end_lease(*source);
            if let Err(error) = copied {
                self.cannot_download(&error);
            // A publication of its own: readers lease the host slot, and the GPU slot is free.
            } else if let Some(area) = self.open_publication(download.slot.clone(), None, None) {
                let is_registered = download.slot.is_registered();
                self.reports.count_copy(if is_registered { "download" } else { "download-unregistered" });
                let published = if download.is_last { descriptor.published } else { S::now_ns() };
                let metadata = self.system.load_metadata(*source, descriptor.metadata);
                // A large area may have become one that its new publication lacks.
                let (length, encoded) = self.store_metadata(area, sequence, &metadata);
                let mut descriptor = Descriptor { area, published, metadata: length, ..descriptor.clone() };
                self.offer_all(&Offer {
                    slot: &download.slot,
                    area,
                    sequence,
                    oversized: oversized.as_ref().or(encoded.as_ref()),
                    is_download: true,
                    is_late: false,
                    unit: Unit::Whole,
                });
                self.publish_offered(&mut descriptor);
                self.end_lease(area);
            }
            self.skip_undelivered();
            if let Some(downloads) = &mut self.downloads {
                downloads.recycle(download);
            }
        }
    }

    /// Returns the sequence number of the newest download under way.
    pub fn newest_download(&self) -> Option<Sequence> {
        self.downloads.as_ref().and_then(Downloads::newest)
    }

    /// Returns whether downloads are under way.
    pub fn is_downloading(&self) -> bool {
        self.count_downloads() > 0
    }
}
