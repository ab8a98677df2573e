// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of `framesharesink` alone: properties, negotiation, allocation, errors, and the frames
//! that a reader of the engine receives.

mod copies;
mod flow;
mod messages;
mod properties;
mod setup;
mod slots;

use frameshare::{
    Endpoint, Interrupt, Plane, Policy,
    reader::{self, Item, Reader},
};
use frameshare_tests::{content::bytes as noise, process::wait_until, skip::skip};
use gst::prelude::*;
use std::{
    path::Path,
    sync::{Arc, Mutex, Once},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(10);

fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().unwrap();
        gstframeshare::plugin_register_static().unwrap();
    });
}

/// Sink with its own socket, fed by a harness.
struct Sink {
    harness: gst_check::Harness,
    folder: tempfile::TempDir,
}

impl Sink {
    fn new(caps: &str, properties: &[(&str, &str)]) -> Self {
        init();
        let folder = tempfile::tempdir().unwrap();
        let sink = element(&folder.path().join("s"), properties);
        let mut harness = gst_check::Harness::with_element(&sink, Some("sink"), None);
        harness.set_src_caps(caps.parse().unwrap());
        harness.play();
        Self { harness, folder }
    }

    /// Creates a sink and its pool, which is active.
    fn with_pool(info: &gst_video::VideoInfo, properties: &[(&str, &str)]) -> (Self, gst::BufferPool) {
        let caps = info.to_caps().unwrap();
        let sink = Self::new(&caps.to_string(), properties);
        let (pool, _) = sink.pool(&caps);
        pool.set_active(true).unwrap();
        (sink, pool)
    }

    fn element(&self) -> gst::Element {
        self.harness.element().unwrap()
    }

    fn reader(&self, policy: Policy, max_held: u32) -> Reader {
        connect(&self.folder.path().join("s"), policy, max_held)
    }

    fn push(&mut self, buffer: gst::Buffer) {
        self.harness.push(buffer).unwrap();
    }

    /// Returns the pool that the sink proposes.
    fn pool(&self, caps: &gst::Caps) -> (gst::BufferPool, u32) {
        let mut query = gst::query::Allocation::new(Some(caps), true);
        assert!(self.element().static_pad("sink").unwrap().query(&mut query));
        assert!(query.find_allocation_meta::<gst_video::VideoMeta>().is_some());
        let (pool, size, min, max) = query.allocation_pools().next().unwrap();
        assert_eq!((min, max), (0, 0));
        (pool.unwrap().to_owned(), size)
    }

    fn copies(&self) -> u64 {
        stats(&self.element()).get("copies").unwrap()
    }

    fn copies_for(&self, reason: &str) -> u64 {
        stats(&self.element()).get::<gst::Structure>("copy-reasons").unwrap().get(reason).unwrap()
    }
}

fn element(path: &Path, properties: &[(&str, &str)]) -> gst::Element {
    init();
    let sink = gst::ElementFactory::make("framesharesink")
        .property("socket-path", path.to_str().unwrap())
        .property("sync", false)
        .build()
        .unwrap();
    for (name, value) in properties {
        sink.set_property_from_str(name, value);
    }
    sink
}

fn connect(path: &Path, policy: Policy, max_held: u32) -> Reader {
    let config = reader::Config::default().policy(policy).max_held(max_held);
    Reader::connect(&Endpoint::at(path).unwrap(), config, &Interrupt::new().unwrap()).unwrap()
}

fn stats(sink: &gst::Element) -> gst::Structure {
    sink.property("stats")
}

fn next(reader: &mut Reader) -> Item {
    reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap().expect("no item received")
}

fn next_frame(reader: &mut Reader) -> reader::Frame {
    loop {
        if let Item::Frame(frame) = next(reader) {
            return frame;
        }
    }
}

fn bytes(frame: &reader::Frame) -> Vec<u8> {
    frame.bytes().iter().map(|byte| byte.load(std::sync::atomic::Ordering::Relaxed)).collect()
}

fn video_info(format: gst_video::VideoFormat, width: u32, height: u32) -> gst_video::VideoInfo {
    init();
    gst_video::VideoInfo::builder(format, width, height).fps((30, 1)).build().unwrap()
}

/// Returns the rows of the image in `bytes`, without padding. `planes` locates the rows.
fn picture(info: &gst_video::VideoInfo, bytes: &[u8], planes: &[Plane]) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for (index, plane) in planes.iter().enumerate() {
        let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == index);
        let Some(component) = components.min() else { continue };
        let height = info.comp_height(component) as usize;
        // Packed formats group several pixels; compare the bytes that every layout has.
        let width = info.stride()[index].unsigned_abs() as usize;
        let visible = match info.comp_pstride(component) {
            0 => width,
            pixel => info.comp_width(component) as usize * pixel as usize,
        };
        for row in 0..height {
            let start = (plane.offset as i64 + row as i64 * i64::from(plane.stride)) as usize;
            rows.push(bytes[start..start + visible.min(width)].to_vec());
        }
    }
    rows
}

fn default_planes(info: &gst_video::VideoInfo) -> Vec<Plane> {
    let pairs = info.offset().iter().zip(info.stride());
    pairs.map(|(offset, stride)| Plane { offset: *offset as u64, stride: *stride }).collect()
}

fn error_on(bus: &gst::Bus) -> (glib::Error, String) {
    let message = bus.timed_pop_filtered(gst::ClockTime::from_seconds(10), &[gst::MessageType::Error]);
    match message.expect("no error on the bus").view() {
        gst::MessageView::Error(error) => (error.error(), error.error().to_string()),
        _ => unreachable!(),
    }
}

fn launch(description: &str) -> gst::Pipeline {
    init();
    gst::parse::launch(description).unwrap().downcast().unwrap()
}

fn wait_for_eos(pipeline: &gst::Pipeline) {
    let bus = pipeline.bus().unwrap();
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let message = bus.timed_pop_filtered(gst::ClockTime::from_seconds(30), &kinds).expect("no end of stream");
    if let gst::MessageView::Error(error) = message.view() {
        panic!("{}: {:?}", error.error(), error.debug());
    }
}

/// Returns a buffer of the sink's pool filled with noise, and the image in it.
fn in_slot(pool: &gst::BufferPool, info: &gst_video::VideoInfo, seed: u64) -> (gst::Buffer, Vec<Vec<u8>>) {
    let mut buffer = pool.acquire_buffer(None).unwrap();
    let content = noise(seed, buffer.size());
    buffer.get_mut().unwrap().map_writable().unwrap().copy_from_slice(&content);
    let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
    let pairs = meta.offset().iter().zip(meta.stride());
    let planes: Vec<_> =
        pairs.map(|(offset, stride)| Plane { offset: *offset as u64, stride: *stride }).collect();
    let picture = picture(info, &content, &planes);
    (buffer, picture)
}

fn picture_of(frame: &reader::Frame, info: &gst_video::VideoInfo) -> Vec<Vec<u8>> {
    picture(info, &bytes(frame), frame.descriptor().used_planes())
}
