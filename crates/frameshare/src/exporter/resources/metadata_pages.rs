// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pages with the metadata of publications.

use crate::sys::{Label, Mapping, SealedAgainst, Words, load_bytes, memfd, store_bytes};
use frameshare_protocol::{
    AreaIndex,
    limits::{LARGE_AREA, MAX_LARGE_AREAS, METADATA_AREA},
    page::{large_areas_size, metadata_size},
};
use std::{io, os::fd::OwnedFd, sync::Arc};

/// Owns the pages that all readers map: an area for the metadata of each publication, and large
/// areas from the first frame on that needs one. Metadata that fits into neither is a message of
/// its own.
#[derive(Debug)]
pub struct Metadata {
    areas: Words,
    file: Arc<OwnedFd>,
    large: Option<LargeAreas>,
}

/// Large metadata areas: one file for all readers.
///
/// Without them, metadata that exceeds its area is copied into the socket of each reader. They
/// belong to the publications with the lowest areas, which are the ones in use; other publications
/// still send messages.
#[derive(Debug)]
pub struct LargeAreas {
    words: Words,
    count: u32,
    file: Arc<OwnedFd>,
}

impl LargeAreas {
    /// Makes `count` large areas.
    pub fn new(count: u32, label: &Label) -> io::Result<Self> {
        let (words, file) = page(label, "large-metadata", large_areas_size(count))?;
        Ok(Self { words, count, file: Arc::new(file) })
    }
}

impl Metadata {
    /// Makes areas for so many publications.
    pub fn new(publications: u32, label: &Label) -> io::Result<Self> {
        let (areas, file) = page(label, "metadata", metadata_size(publications))?;
        Ok(Self { areas, file: Arc::new(file), large: None })
    }

    /// The file of the areas.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// The file of the large areas and their number, if there are some.
    pub fn large_areas(&self) -> Option<(&Arc<OwnedFd>, u32)> {
        self.large.as_ref().map(|large| (&large.file, large.count))
    }

    /// Returns the number of large areas to make for metadata of this length, with so many
    /// publications, if they are missing.
    pub fn missing_large_areas(&self, length: usize, publications: u32) -> Option<u32> {
        let fits = (METADATA_AREA + 1..=LARGE_AREA).contains(&length);
        (fits && self.large.is_none()).then(|| publications.min(MAX_LARGE_AREAS))
    }

    /// Takes large areas, unless there are some already. Returns whether it did.
    pub fn add_large_areas(&mut self, areas: LargeAreas) -> bool {
        let is_new = self.large.is_none();
        self.large.get_or_insert(areas);
        is_new
    }

    /// Stores the metadata of a publication if an area takes it. Returns the length for the
    /// descriptor.
    pub fn store(&mut self, area: AreaIndex, metadata: &[u8]) -> Option<u32> {
        if metadata.len() <= METADATA_AREA {
            store_bytes(&self.areas, area.first_word(), metadata);
            return Some(metadata.len() as u32);
        }
        let large = self.large.as_ref().filter(|large| area.0 < large.count);
        let large = large.filter(|_| metadata.len() <= LARGE_AREA)?;
        store_bytes(&large.words, area.first_large_word(), metadata);
        Some(metadata.len() as u32)
    }

    /// Loads metadata of this length that [`Metadata::store`] stored.
    pub fn load(&self, area: AreaIndex, length: u32) -> Vec<u8> {
        let length = length as usize;
        match &self.large {
            Some(large) if length > METADATA_AREA => {
                load_bytes(&large.words, area.first_large_word(), length)
            }
            _ => load_bytes(&self.areas, area.first_word(), length),
        }
    }
}

/// Makes a page that readers can only read.
fn page(label: &Label, name: &str, size: usize) -> io::Result<(Words, OwnedFd)> {
    let file = memfd(&label.file(name), size as u64)?;
    let words = Mapping::writable(&file, size)?.into();
    SealedAgainst::ResizingAndWriting.seal(&file)?;
    Ok((words, file))
}
