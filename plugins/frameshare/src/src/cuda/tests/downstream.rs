//! What follows the source: it looks at frames on the CPU, or copies them on a stream of its own and looks later.
//!
//! # Safety
//! Hands addresses of memory to streams. That it stays as it is until they got there, though the buffer is dropped at
//! once, is what is tested; the copies are kept until the stream is done.
#![allow(unsafe_code)]

use super::{
    PATIENCE,
    exporter::{Exporter, byte_of},
    size_of_plane,
};
use crate::{FrameshareMeta, src::FrameshareSrc};
use frameshare::cuda::{
    context::Context,
    copy::{Place, Plane},
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

    /// A reader of the stream at a path.
    pub fn at(path: &Path, caps: &str) -> Self {
        let source = glib::Object::builder::<FrameshareSrc>()
            .property("socket-path", path.to_str().unwrap())
            .property("policy", crate::src::FrameshareSrcPolicy::Lossless)
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

    /// One that takes CUDA memory.
    pub fn cuda(exporter: &Exporter) -> Self {
        Self::new(exporter, "video/x-raw(memory:CUDAMemory)")
    }

    pub fn set(self, name: &str, value: &str) -> Self {
        self.source.set_property_from_str(name, value);
        self
    }

    /// Does something with each buffer, on the streaming thread, and lets it go at once.
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

    /// The next buffer.
    pub fn next(&self) -> gst::Buffer {
        let buffer = self.buffers.as_ref().unwrap().recv_timeout(PATIENCE);
        buffer.unwrap_or_else(|_| panic!("no buffer came: {}", self.error()))
    }

    /// The next buffer, if one comes within a while.
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
        self.pipeline.bus().unwrap().timed_pop_filtered(patience, kinds).expect("a message comes")
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.source.property::<gst::Structure>("stats").get(name).unwrap()
    }

    /// Waits until downstream holds so many frames in place.
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
    Memory::of(buffer.peek_memory(0)).expect("it is CUDA memory")
}

/// The format's own layout of a buffer's picture.
fn picture(meta: &gst_video::VideoMeta) -> VideoInfo {
    VideoInfo::builder(meta.format(), meta.width(), meta.height()).build().unwrap()
}

/// Checks every pixel, on the CPU.
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

/// A reader on a stream of its own, which the pipeline knows nothing of.
pub struct Gpu {
    pub context: Arc<Context>,
    pub stream: Stream,
    copies: Vec<Copy>,
}

/// A picture without its padding.
struct Copy {
    memory: vmm::Allocation,
    size: usize,
    sequence: u64,
}

impl Gpu {
    pub fn with(context: Arc<Context>) -> Self {
        Self { stream: Stream::new(&context).unwrap(), context, copies: Vec::new() }
    }

    /// In the context of a buffer.
    pub fn of(buffer: &gst::BufferRef) -> Self {
        let context = memory(buffer).context();
        // SAFETY: the context goes along.
        Self::with(unsafe { Context::handed_in(context.handle(), context.clone()) }.unwrap())
    }

    /// Puts a copy of a picture on the stream, so many µs late, once it is written.
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
            let to = Plane { at: Place::Device(copy.ptr() + size as u64), pitch: bytes };
            let from = Plane { at: Place::Device(start + offset), pitch };
            // SAFETY: the buffer has these rows, and the copy room for them; see the head of the file.
            unsafe { self.stream.copy_2d(to, from, bytes, rows) }.unwrap();
            size += rows * bytes;
        }
        self.copies.push(Copy { memory: copy, size, sequence: sequence(buffer) });
    }

    /// How many copies were made.
    pub fn count(&self) -> usize {
        self.copies.len()
    }

    /// Looks at the copies: how many there were, and the frames of which a byte is wrong.
    pub fn look(mut self) -> (usize, Vec<u64>) {
        self.stream.synchronize().unwrap();
        let copies = std::mem::take(&mut self.copies);
        let count = copies.len();
        let mut wrong = Vec::new();
        for copy in copies {
            let mut bytes = vec![0; copy.size];
            // SAFETY: both are that big, and kept until the stream is done.
            unsafe { self.stream.download(bytes.as_mut_ptr(), copy.memory.ptr(), copy.size) }.unwrap();
            self.stream.synchronize().unwrap();
            if bytes.iter().any(|byte| *byte != byte_of(copy.sequence)) {
                wrong.push(copy.sequence);
            }
        }
        (count, wrong)
    }
}
