// SPDX-License-Identifier: MIT OR Apache-2.0

//! GStreamer metas in the plugin's own encoding (plugins/frameshare/src/meta/wire.rs).

use super::{CAPS, SLOT, wait_until_taken};
use crate::Result;
use frameshare::{Descriptor, SlotId};
use frameshare_protocol::limits::METADATA_AREA;
use frameshare_tests::raw::{Listener, Offer, PATIENCE, RawExporter};
use std::sync::atomic::Ordering::Relaxed;

/// Encodes a number as postcard does.
pub(super) fn number(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [number(text.len()), text.into()].concat()
}

/// Encodes the head of a custom meta, with the number of fields that follow.
fn custom(name: &str, tags: &[&str], fields: &[u8]) -> Vec<u8> {
    let tags = [number(tags.len()), tags.iter().flat_map(|tag| text(tag)).collect()].concat();
    [vec![2, 5], tags, text(name), fields.to_vec()].concat()
}

/// A closed caption. GStreamer registers the type of its meta when the first one is added.
fn caption() -> Vec<u8> {
    vec![2, 6, 2, 2, 0x80, 0x80]
}

/// An active format description. GStreamer registers its type in the same way.
fn active_format(field: u8, spec: u8, value: u8) -> Vec<u8> {
    vec![2, 7, field, 2 * spec, 2 * value]
}

pub fn metas(listener: &Listener) -> Result<RawExporter> {
    let mut all = vec![vec![9], vec![2, 255, 255, 255, 255, 15], vec![2; 4096]];
    for name in [
        "GstVideoCaptionMeta",
        "GstVideoCaptionMetaAPI",
        "GstVideoAFDMeta",
        "GstVideoAFDMetaAPI",
        "GstVideoBarMeta",
        "GstAncillaryMeta",
        "GstCustomMeta",
        "GstMeta",
        "GstElement",
        "GObject",
        "FrameshareMeta",
        "x",
        "a b",
        "-",
        "",
    ] {
        all.push(custom(name, &["video", "size"], &[0]));
        // An integer, and a structure without fields.
        all.push(custom(name, &[], &[2, 1, b'a', 1, 2, 1, b'b', 22, 1, b'x', 0]));
    }
    all.push(caption());
    all.extend(
        [(0, 1, 2), (2, 1, 2), (0, 0, 0), (0, 7, 2), (0, 1, 1)].map(|(f, s, v)| active_format(f, s, v)),
    );
    all.push(custom("Nested", &[], &[vec![1, 1, b'a'], [20, 1].repeat(1500)].concat()));
    all.push(custom("Zero", &["a\0b"], &[0]));
    // More names than a reader registers for one exporter.
    all.extend((0..600).map(|at| custom(&format!("Foreign{at}"), &["t"], &[0])));
    all.push(caption());

    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.format(CAPS)?;
    exporter.slot(1, SLOT)?;
    for bytes in all {
        let bytes = &bytes[..bytes.len().min(METADATA_AREA)];
        wait_until_taken(&exporter);
        for (word, chunk) in exporter.metadata.iter().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(value), Relaxed);
        }
        let metadata = bytes.len() as u32;
        exporter.publish_as(Descriptor {
            slot: SlotId { generation: 1, index: 0 },
            size: SLOT,
            metadata,
            ..Default::default()
        });
    }
    Ok(exporter)
}
