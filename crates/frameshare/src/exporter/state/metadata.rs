// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metadata of publications: in an area, or in a message to each reader.

use super::State;
use crate::exporter::{
    link::{Link, Packet},
    resources::LargeAreas,
};
use frameshare_protocol::{
    AreaIndex, Sequence,
    limits::METADATA_AREA,
    message::{Payload, ToReader},
};

impl State {
    /// Returns the number of large areas to make for metadata of this length, if they are needed
    /// and missing.
    pub fn wants_large_areas(&self, metadata: usize) -> Option<u32> {
        let count = self.metadata.missing_large_areas(metadata, self.config.max_slots);
        count.filter(|_| self.has_metadata_readers())
    }

    /// Hands large areas to all readers, ahead of their backlogs, unless there are some already.
    pub fn add_large_areas(&mut self, areas: LargeAreas) {
        if let Some(packet) = self.metadata.add_large_areas(areas) {
            self.each_link(|link: &mut Link| link.send_now(&packet));
        }
    }

    /// Returns whether a reader gets the next frame, now or later.
    fn has_metadata_readers(&self) -> bool {
        !self.readers.present().is_empty() || self.config.history.keeps_frames()
    }

    /// Stores the metadata of a publication where its length permits. Returns the length for the
    /// descriptor, and the message for all readers if no area takes it.
    pub(super) fn store_metadata(
        &mut self,
        area: AreaIndex,
        sequence: Sequence,
        metadata: &[u8],
    ) -> (u32, Option<Packet>) {
        if metadata.len() > METADATA_AREA && !self.has_metadata_readers() {
            return (0, None);
        }
        if let Some(length) = self.metadata.store(area, metadata) {
            return (length, None);
        }
        let payload = Payload::Inline(metadata.to_vec());
        (0, self.packet_of(&ToReader::Metadata { sequence, payload }))
    }
}
