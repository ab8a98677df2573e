// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metadata of publications: in an area, or in a message to each reader.

use super::State;
use crate::exporter::{
    link::{Link, Packet},
    system::System,
};
use frameshare_protocol::{
    AreaIndex, Sequence,
    limits::METADATA_AREA,
    message::{Payload, ToReader},
};

impl<S: System> State<S> {
    /// Hands the large areas to all readers, ahead of their backlogs.
    pub fn send_large_areas(&mut self) {
        if let Some(packet) = self.large_areas() {
            self.each_link(|link: &mut Link<S>| link.send_now(&packet));
        }
    }

    /// The message that hands the large areas to a reader, if there are some.
    pub(super) fn large_areas(&self) -> Option<Packet<S::Attachment>> {
        let (file, count) = self.system.large_areas()?;
        Packet::with(&ToReader::LargeAreas { count }, vec![file]).ok().map(Packet::kept)
    }

    /// Returns whether a reader gets the next frame, now or later.
    pub fn has_metadata_readers(&self) -> bool {
        !self.readers.present().is_empty() || self.limits.keeps_frames
    }

    /// Stores the metadata of a publication where its length permits. Returns the length for the
    /// descriptor, and the message for all readers if no area takes it.
    pub fn store_metadata(
        &mut self,
        area: AreaIndex,
        sequence: Sequence,
        metadata: &[u8],
    ) -> (u32, Option<Packet<S::Attachment>>) {
        if metadata.len() > METADATA_AREA && !self.has_metadata_readers() {
            return (0, None);
        }
        if let Some(length) = self.system.store_metadata(area, metadata) {
            return (length, None);
        }
        let payload = Payload::Inline(metadata.to_vec());
        (0, self.packet_of(&ToReader::Metadata { sequence, payload }))
    }
}
