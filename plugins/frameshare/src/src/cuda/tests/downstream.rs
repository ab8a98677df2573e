// SPDX-License-Identifier: MIT OR Apache-2.0

//! Downstream of the source: reads frames on the CPU, or copies them on its own stream for a later
//! check.
//!
//! # Safety
//! Passes memory addresses to streams. The tests check that the memory stays valid until the
//! streams have completed, although the buffer is dropped at once; the copies are kept until the
//! stream is done.
#![allow(unsafe_code)]

use super::{
    PATIENCE,
    exporter::{Exporter, byte_of},
    size_of_plane,
};
use crate::{FrameshareMeta, src::FrameshareSrc};
use frameshare_cuda::{
    context::Context,
    copy::{Plane, Side},
    memory::vmm,
    stream::Stream,
};
use gst::prelude::*;
use gst_cuda::memory::Memory;
use gst_video::{VideoInfo, prelude::*};
use std::{
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// `framesharesrc ! caps ! fakesink`.
pub struct Reader {
    pub pipeline: gst::Pipeline,
    pub source: FrameshareSrc,
    pub sink: gst::Element,
    buffers: Option<mpsc::Receiver<gst::Buffer>>,
}

impl Reader {
    pub fn new(exporter: &Exporter, caps: &str) -> Self {
        Self::at(&exporter.path(), caps)
    }

    /// Creates a reader of the stream at a path.
    pub fn at(path: &Path, caps: &str) -> Self {
        let source = glib::Object::builder::<FrameshareSrc>()
            .property("socket-path", path.to_str().unwrap())
            .property("policy", crate::src::settings::FrameshareSrcPolicy::Lossless)
            .build();
        let make = |name: &'static str| gst::ElementFactory::make(name);
        let filter = make("capsfilter").property("caps", caps.parse::<gst::Caps>().unwrap()).build().unwrap();
        let sink = make("fakesink")
            .property("signal-handoffs", true)
            .property("enable-last-sample", false)
            .build()
            .unwrap();
        let pipeline = gst::Pipeline::new();
        pipeline.add_many([source.upcast_ref(), &filter, &sink]).unwrap();
        gst::Element::link_many([source.upcast_ref(), &filter, &sink]).unwrap();
        Self { pipeline, source, sink, buffers: None }
    }

    /// Creates a reader that accepts CUDA memory.
    pub fn cuda(exporter: &Exporter) -> Self {
        Self::new(exporter, "video/x-raw(memory:CUDAMemory)")
    }

    pub fn set(self, name: &str, value: &str) -> Self {
        self.source.set_property_from_str(name, value);
        self
    }

    /// Runs `act` for each buffer on the streaming thread, and drops the buffer at once.
    pub fn each(self, act: impl FnMut(gst::Buffer) + Send + 'static) -> Self {
        let act = Mutex::new(act);
        self.sink.connect("handoff", false, move |values| {
            (act.lock().unwrap())(values[1].get::<gst::Buffer>().unwrap());
            None
        });
        self
    }

    /// Keeps the buffers for [`Reader::next`].
    pub fn buffers(self) -> Self {
        let (sender, buffers) = mpsc::channel();
        let mut reader = self.each(move |buffer| drop(sender.send(buffer)));
        reader.buffers = Some(buffers);
        reader
    }

    /// Returns the next buffer.
    pub fn next(&self) -> gst::Buffer {
        let buffer = self.buffers.as_ref().unwrap().recv_timeout(PATIENCE);
        buffer.unwrap_or_else(|_| panic!("no buffer received: {}", self.error()))
    }

    /// Returns the next buffer, if one arrives within `time`.
    pub fn next_within(&self, time: Duration) -> Option<gst::Buffer> {
        self.buffers.as_ref().unwrap().recv_timeout(time).ok()
    }

    pub fn play(self) -> Self {
        self.pipeline.set_state(gst::State::Playing).unwrap();
        self
    }

    /// Waits for the end of the stream.
    pub fn finish(&self) {
        let message = self.message(&[gst::MessageType::Eos, gst::MessageType::Error]);
        if let gst::MessageView::Error(error) = message.view() {
            panic!("{}", error.error());
        }
    }

    pub fn error(&self) -> glib::Error {
        match self.message(&[gst::MessageType::Error]).view() {
            gst::MessageView::Error(error) => error.error(),
            _ => unreachable!(),
        }
    }

    fn message(&self, kinds: &[gst::MessageType]) -> gst::Message {
        let patience = gst::ClockTime::from_nseconds(PATIENCE.as_nanos() as u64);
        self.pipeline.bus().unwrap().timed_pop_filtered(patience, kinds).expect("a message on the bus")
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.source.property::<gst::Structure>("stats").get(name).unwrap()
    }

    /// Waits until downstream holds `count` frames in place.
    pub fn wait_until_held(&self, count: u32) {
        let until = Instant::now() + PATIENCE;
        while self.source.property::<gst::Structure>("stats").get::<u32>("held").unwrap() != count {
            assert!(Instant::now() < until, "{count} frames should be held");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.pipeline.set_state(gst::State::Null);
    }
}

pub fn sequence(buffer: &gst::BufferRef) -> u64 {
    buffer.meta::<FrameshareMeta>().unwrap().sequence()
}

pub fn memory(buffer: &gst::BufferRef) -> Memory<'_> {
    Memory::of(buffer.peek_memory(0)).expect("CUDA memory")
}

/// Returns the default layout of a buffer's image.
fn picture(meta: &gst_video::VideoMeta) -> VideoInfo {
    VideoInfo::builder(meta.format(), meta.width(), meta.height()).build().unwrap()
}

/// Checks every pixel on the CPU.
pub fn check_on_cpu(buffer: &gst::Buffer) {
    let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
    let info = picture(&meta);
    let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(buffer, &info).unwrap();
    let expected = byte_of(sequence(buffer));
    for plane in 0..info.n_planes() as usize {
        let (rows, bytes) = size_of_plane(&info, plane);
        let data = frame.plane_data(plane as u32).unwrap();
        for row in 0..rows {
            let start = row * frame.plane_stride()[plane] as usize;
            let wrong = data[start..start + bytes].iter().find(|byte| **byte != expected);
            assert_eq!(wrong, None, "frame {}, plane {plane}, row {row}: {expected}", sequence(buffer));
        }
    }
}

/// GPU reader on a stream unknown to the pipeline.
pub struct Gpu {
    pub context: Arc<Context>,
    pub stream: Stream,
    copies: Vec<Copy>,
}

/// Copied image without padding.
struct Copy {
    memory: vmm::Allocation,
    size: usize,
    sequence: u64,
}

impl Gpu {
    pub fn with(context: Arc<Context>) -> Self {
        Self { stream: Stream::new(&context).unwrap(), context, copies: Vec::new() }
    }

    /// Creates a reader in the context of a buffer.
    pub fn of(buffer: &gst::BufferRef) -> Self {
        let context = memory(buffer).context();
        // SAFETY: the context is kept along with the handle.
        Self::with(unsafe { Context::handed_in(context.handle(), context.clone()) }.unwrap())
    }

    /// Queues a copy of an image, delayed by `late_us` µs, after its write is complete.
    pub fn copy(&mut self, buffer: &gst::BufferRef, late_us: u64) {
        memory(buffer).sync();
        let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
        let info = picture(&meta);
        let copy = vmm::Allocation::new(&self.context, info.size()).unwrap();
        if late_us > 0 {
            self.stream.call(move || thread::sleep(Duration::from_micros(late_us))).unwrap();
        }
        let start = memory(buffer).map().unwrap().address();
        let mut size = 0;
        for plane in 0..info.n_planes() as usize {
            let (rows, bytes) = size_of_plane(&info, plane);
            let (offset, pitch) = (meta.offset()[plane] as u64, meta.stride()[plane] as usize);
            let to = Plane { at: Side::Device(copy.ptr() + size as u64), pitch: bytes };
            let from = Plane { at: Side::Device(start + offset), pitch };
            // SAFETY: the buffer has these rows, and the copy has room for them; see the module
            // header.
            unsafe { self.stream.copy_2d(to, from, bytes, rows) }.unwrap();
            size += rows * bytes;
        }
        self.copies.push(Copy { memory: copy, size, sequence: sequence(buffer) });
    }

    /// Returns the number of copies.
    pub fn count(&self) -> usize {
        self.copies.len()
    }

    /// Checks the copies; returns their number and the frames with a wrong byte.
    pub fn look(mut self) -> (usize, Vec<u64>) {
        self.stream.synchronize().unwrap();
        let copies = std::mem::take(&mut self.copies);
        let count = copies.len();
        let mut wrong = Vec::new();
        for copy in copies {
            let mut bytes = vec![0; copy.size];
            // SAFETY: both have that size, and both are kept until the stream is done.
            unsafe { self.stream.download(bytes.as_mut_ptr(), copy.memory.ptr(), copy.size) }.unwrap();
            self.stream.synchronize().unwrap();
            if bytes.iter().any(|byte| *byte != byte_of(copy.sequence)) {
                wrong.push(copy.sequence);
            }
        }
        (count, wrong)
    }
}
