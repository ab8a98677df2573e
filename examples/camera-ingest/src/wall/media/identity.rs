// SPDX-License-Identifier: MIT OR Apache-2.0

//! Identity of a frame across encoding and decoding.

use crate::clock::{CLOCK, ns_since_1970};
use gstframeshare::FrameshareMeta;

/// Numbers that identify a frame for the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Capture time in ns since 1970; without one, the frame's sequence number; 0 for neither. The
    /// results of the frame have the same.
    pub key: u64,
    /// Time since the capture in ms, if the capture time is known.
    pub age: Option<u32>,
}

impl Identity {
    pub fn of(buffer: &gst::BufferRef) -> Self {
        let captured = buffer.iter_meta::<gst::ReferenceTimestampMeta>().find_map(|meta| {
            let is_unix = meta.reference().structure(0).is_some_and(|caps| caps.name() == CLOCK);
            is_unix.then(|| meta.timestamp().nseconds())
        });
        match captured {
            Some(key) => {
                Self { key, age: u32::try_from(ns_since_1970().saturating_sub(key) / 1_000_000).ok() }
            }
            None => {
                Self { key: buffer.meta::<FrameshareMeta>().map_or(0, |meta| meta.sequence()), age: None }
            }
        }
    }
}
