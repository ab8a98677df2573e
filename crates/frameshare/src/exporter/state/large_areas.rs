// SPDX-License-Identifier: MIT OR Apache-2.0

//! Large metadata areas: one file for all readers, made when a frame first needs one.
//!
//! Without them, metadata that exceeds its area is copied into the socket of each reader. They
//! belong to the publications with the lowest areas, which are the ones in use; other publications
//! still send messages.

use super::State;
use crate::{
    exporter::link::{Attachment, Link, Packet},
    sys::{Label, Mapping, SealedAgainst, Words, load_bytes, memfd, store_bytes},
};
use frameshare_protocol::{
    AreaIndex, Sequence,
    limits::{LARGE_AREA, MAX_LARGE_AREAS, METADATA_AREA},
    message::{Payload, ToReader},
    page::large_areas_size,
};
use std::{io, sync::Arc};

/// Large metadata areas.
pub struct LargeAreas {
    words: Words,
    count: u32,
    /// The message that hands them to a reader.
    packet: Packet,
}

impl LargeAreas {
    /// Makes `count` large areas.
    pub fn new(count: u32, label: &Label) -> io::Result<Self> {
        let size = large_areas_size(count);
        let fd = memfd(&label.file("large-metadata"), size as u64)?;
        let words = Mapping::writable(&fd, size)?.into();
        SealedAgainst::ResizingAndWriting.seal(&fd)?;
        let attachments = vec![Attachment::File(Arc::new(fd))];
        let packet = Packet::with(&ToReader::LargeAreas { count }, attachments)?.kept();
        Ok(Self { words, count, packet })
    }

    pub(super) fn packet(&self) -> &Packet {
        &self.packet
    }
}

impl State {
    /// Returns the number of large areas to make for metadata of this length, if they are needed
    /// and missing.
    pub fn wants_large_areas(&self, metadata: usize) -> Option<u32> {
        let fits = (METADATA_AREA + 1..=LARGE_AREA).contains(&metadata);
        let wanted = fits && self.large_areas.is_none() && self.has_metadata_readers();
        wanted.then(|| self.config.max_slots.min(MAX_LARGE_AREAS))
    }

    /// Hands large areas to all readers, ahead of their backlogs, unless there are some already.
    pub fn add_large_areas(&mut self, areas: LargeAreas) {
        if self.large_areas.is_none() {
            let packet = areas.packet.clone();
            self.large_areas = Some(areas);
            self.each_link(|link: &mut Link| link.send_now(&packet));
        }
    }

    /// Returns whether a reader gets the next frame, now or later.
    fn has_metadata_readers(&self) -> bool {
        !self.links.is_empty() || self.config.history.keeps_frames()
    }

    /// Stores the metadata of a publication where its length permits. Returns the length for the
    /// descriptor, and the message for all readers if neither area takes it.
    pub(super) fn store_metadata(
        &mut self,
        area: AreaIndex,
        sequence: Sequence,
        metadata: &[u8],
    ) -> (u32, Option<Packet>) {
        if metadata.len() <= METADATA_AREA {
            store_bytes(&self.metadata, area.first_word(), metadata);
            return (metadata.len() as u32, None);
        }
        if !self.has_metadata_readers() {
            return (0, None);
        }
        let large = self.large_areas.as_ref().filter(|large| area.0 < large.count);
        if let Some(large) = large.filter(|_| metadata.len() <= LARGE_AREA) {
            store_bytes(&large.words, area.first_large_word(), metadata);
            return (metadata.len() as u32, None);
        }
        let payload = Payload::Inline(metadata.to_vec());
        (0, self.packet_of(&ToReader::Metadata { sequence, payload }))
    }

    /// Loads metadata that [`State::store_metadata`] stored.
    pub(super) fn load_metadata(&self, area: AreaIndex, length: u32) -> Vec<u8> {
        let length = length as usize;
        match &self.large_areas {
            Some(large) if length > METADATA_AREA => {
                load_bytes(&large.words, area.first_large_word(), length)
            }
            _ => load_bytes(&self.metadata, area.first_word(), length),
        }
    }
}
