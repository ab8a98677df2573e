// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events, tags, metas and caps that nest deeply, or that need far more memory than they have
//! bytes.
//!
//! The encodings are the plugin's own: plugins/frameshare/src/events and
//! plugins/frameshare/src/meta/form.

use super::{
    SLOT,
    metas::{number, text},
};
use crate::Result;
use frameshare::Sequence;
use frameshare_protocol::{
    limits::MAX_PAYLOAD,
    message::{Payload, ToReader},
};
use frameshare_tests::raw::{Listener, Offer, PATIENCE, Page, RawExporter, Seals, memfd};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering::Relaxed,
};

/// Codes of events.
const TAGS: u32 = 7;
const CUSTOM: u32 = 9;
const STICKY: u32 = 1 << 30;
/// Codes of value nodes.
const TEXT: u8 = 7;
const SAMPLE: u8 = 19;
const LIST: u8 = 20;
const STRUCTURE: u8 = 22;
/// Codes of earlier versions whose content was in GStreamer's text format.
const OF_TEXT: [u32; 4] = [5, 6, 1 << 31, 1 << 31 | 1];

fn accept(listener: &Listener) -> Result<RawExporter> {
    Ok(Offer::new(4, 2, 1)?.send(listener, PATIENCE)?)
}

/// Creates a sealed file of `size` bytes that starts with `head`.
fn file(head: &[u8], size: usize) -> Result<OwnedFd> {
    let file = memfd(size as u64)?;
    let page = Page::writable(&file, size.next_multiple_of(8))?;
    for (word, chunk) in page.iter().zip(head.chunks(8)) {
        let mut value = [0; 8];
        value[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(value), Relaxed);
    }
    Seals::SizeAndWrites.put_on(&file)?;
    Ok(file)
}

fn event(exporter: &mut RawExporter, kind: u32, content: &[u8]) -> Result<()> {
    let size = content.len();
    let file = file(content, size)?;
    let payload = Payload::Sealed(size as u64);
    exporter.send_message(
        &ToReader::Event { before: exporter.next, kind, sticky: false, payload },
        Some(file.as_fd()),
    )?;
    exporter.wake_reader();
    Ok(())
}

/// Encodes a structure of one field, up to the field's value.
fn structure(name: &str) -> Vec<u8> {
    [text(name), vec![1, 1, b'd']].concat()
}

/// Texts that GStreamer's parser recurses on, quoted ones among them, and one that raises a
/// critical.
fn nested_texts() -> Vec<String> {
    vec![
        // A quoted bracket closes nothing.
        format!("a, b={}", "{\")\",".repeat(40_000)),
        format!("a, b={}", "<\")\",".repeat(40_000)),
        format!("a, b={}", "[a,b=\")\",c=".repeat(40_000)),
        format!("a, b={}", "< ".repeat(100_000)),
        format!("a, b={}", "[a,b=".repeat(50_000)),
        format!("a, b={}", "{".repeat(200_000)),
        format!("a, b={}", "(structure)\"a\\,b\\=".repeat(20_000)),
        "a, c=(taglist)\"x\"".into(),
    ]
}

pub fn nested_events(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    for text in nested_texts() {
        for kind in OF_TEXT.into_iter().chain([CUSTOM, STICKY, TAGS]) {
            event(&mut exporter, kind, text.as_bytes())?;
        }
    }
    let inner = [vec![STRUCTURE], structure("a")].concat();
    let lists = [structure("a"), [LIST, 1].repeat(100_000)].concat();
    let tags = [text("title"), vec![1], [LIST, 1].repeat(100_000)].concat();
    for content in [[structure("a"), inner.repeat(50_000)].concat(), lists, tags] {
        for kind in [CUSTOM, STICKY, TAGS] {
            event(&mut exporter, kind, &content)?;
        }
    }
    Ok(exporter)
}

pub fn nested_metas(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.format(super::CAPS)?;
    exporter.slot(1, SLOT)?;
    let inner = [vec![STRUCTURE], structure("Nested")].concat();
    let custom = [vec![2, 5, 0], structure("Nested"), inner.repeat(30_000)].concat();
    let of_text = nested_texts().into_iter().map(|deep| {
        let deep = deep.replacen('a', "Nested", 1);
        [vec![1, 1, 5], text("Nested"), vec![0], text(&deep)].concat()
    });
    for bytes in of_text.chain([custom]) {
        metadata(&mut exporter, &bytes)?;
    }
    Ok(exporter)
}

/// Publishes a frame with oversized metadata.
fn metadata(exporter: &mut RawExporter, bytes: &[u8]) -> Result<()> {
    super::wait_until_taken(exporter);
    let payload = Payload::Sealed(bytes.len() as u64);
    let file = file(bytes, bytes.len())?;
    exporter.send_message(&ToReader::Metadata { sequence: exporter.next, payload }, Some(file.as_fd()))?;
    exporter.publish(1, SLOT);
    Ok(())
}

fn caps(listener: &Listener, text: &str) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.format(text)?;
    exporter.slot(1, SLOT)?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

pub fn nested_caps(listener: &Listener) -> Result<RawExporter> {
    caps(listener, &format!("video/x-raw, format={}", "{\")\",".repeat(11_000)))
}

pub fn caps_of_a_tag_list(listener: &Listener) -> Result<RawExporter> {
    caps(listener, "a, c=(taglist)\"x\"")
}

pub fn negative_rates(listener: &Listener) -> Result<RawExporter> {
    caps(listener, "audio/x-raw, format=S16LE, layout=interleaved, rate=-48000, channels=2")
}

/// Sticky events of ten megabytes with distinct names: a pad keeps all of them.
pub fn sticky_events(listener: &Listener) -> Result<RawExporter> {
    const SIZE: usize = 10 << 20;
    let mut exporter = accept(listener)?;
    exporter.format(super::CAPS)?;
    for at in 0..300 {
        let mut content = [structure(&format!("name-{at}")), vec![TEXT, 1], number(SIZE)].concat();
        content.resize(content.len() + SIZE, b'x');
        event(&mut exporter, STICKY | at, &content)?;
    }
    Ok(exporter)
}

/// Sixty-four tag lists from one file before the caps, each with an image of sixty megabytes.
pub fn early_tags(listener: &Listener) -> Result<RawExporter> {
    const SIZE: usize = 60 << 20;
    let mut exporter = accept(listener)?;
    let head = [text("image"), vec![1, SAMPLE, 0, 0], number(SIZE)].concat();
    let size = head.len() + SIZE;
    let file = file(&head, size)?;
    for _ in 0..64 {
        let payload = Payload::Sealed(size as u64);
        exporter.send_message(
            &ToReader::Event { before: Sequence(1), kind: TAGS, sticky: false, payload },
            Some(file.as_fd()),
        )?;
        exporter.wake_reader();
    }
    Ok(exporter)
}

/// As many empty tags as fit.
pub fn empty_tags(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.format(super::CAPS)?;
    let tag = [text("title"), vec![0]].concat();
    event(&mut exporter, TAGS, &tag.repeat(MAX_PAYLOAD as usize / tag.len()))?;
    Ok(exporter)
}

/// As many crop metas as fit.
pub fn crop_metas(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.format(super::CAPS)?;
    exporter.slot(1, SLOT)?;
    let crops = [1, 0, 0, 0, 0].repeat((MAX_PAYLOAD as usize - 1) / 5);
    metadata(&mut exporter, &[vec![2], crops].concat())?;
    Ok(exporter)
}

/// Successive caps, each with 250 new field names.
pub fn caps_names(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    for change in 0..3_000 {
        let fields = (0..250).map(|field| format!(",{:x>240}=1", format!("-{change}-{field}")));
        exporter.format(&format!("a/b{}", fields.collect::<String>()))?;
        exporter.wake_reader();
    }
    Ok(exporter)
}
