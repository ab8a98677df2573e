// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the source on a GPU, fed by exporters in other processes.
//!
//! If GStreamer's CUDA library or a driver is missing, these tests are skipped with a message;
//! `make test` runs them on the simulated driver.

mod contexts;
mod devices;
mod downstream;
mod exporter;
mod negotiation;
mod release;

use super::{line::Line, *};
use crate::src::leased_memory::LeasedMemory;
use downstream::{Gpu, Reader, check_on_cpu, memory, sequence};
use exporter::Exporter;
use frameshare_cuda::{context::Context, device::Device, stream::Stream};
use glib::subclass::types::ObjectSubclassIsExt;
use gst::prelude::*;
use layout::{CudaLayout, size_of_plane};
use std::{
    collections::BTreeSet,
    io::Write as _,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Time limit of each wait; only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Delay of a GPU write, long enough that a reader without a wait reads too early.
const LATE_US: u64 = 5_000;

/// Returns whether the library and a driver are present. A skip is written past the harness's
/// capture, where it is counted.
fn is_there(test: &str) -> bool {
    gst::init().unwrap();
    let missing = gst_cuda::load().err();
    if let Some(missing) = &missing {
        skip(test, &missing.to_string());
    }
    missing.is_none()
}

fn skip(test: &str, reason: &str) {
    let line = format!("SKIP framesharesrc-cuda/{test}: {reason}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Negative control in place of a lease: the frame is released in the order of its memory's stream.
struct InOrder(Option<(LeasedMemory, Arc<frameshare_cuda::stream::Stream>)>);

impl Drop for InOrder {
    fn drop(&mut self) {
        if let Some((lease, stream)) = self.0.take() {
            lease.into_frame().release_on(&stream).unwrap();
        }
    }
}

/// Loans memory as the source would without the context-wide record.
pub(super) fn lend_in_order(
    cuda: &Cuda,
    lease: LeasedMemory,
    place: &CudaLayout,
    address: u64,
    pending: bool,
) -> Option<gst::Memory> {
    let rules = gst_cuda::memory::Rules { read_only: true, fixed_pool: true };
    let stream = &cuda.line.gst;
    let memory = gst_cuda::Reusable::wrap(&cuda.context, Some(stream), &place.info, address, rules)?;
    memory.lend(InOrder(Some((lease, Line::new(stream.clone(), &cuda.engine).engine.into()))), pending)
}

fn takes(caps: &str) -> Takes {
    gst::init().unwrap();
    Takes::of(&caps.parse::<gst::Caps>().unwrap())
}

/// For each frame: whether its caps name CUDA memory, and whether it is in CUDA memory.
type Seen = Arc<Mutex<Vec<(bool, bool)>>>;

/// Reads in either kind of memory, and records both facts for each frame.
fn read_either(exporter: &Exporter) -> (Reader, Seen) {
    let reader = Reader::new(exporter, "video/x-raw(memory:CUDAMemory); video/x-raw");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (note, sink) = (seen.clone(), reader.sink.clone());
    let reader = reader.each(move |buffer| {
        let caps = sink.static_pad("sink").unwrap().current_caps().unwrap();
        let named = caps.features(0).unwrap().contains("memory:CUDAMemory");
        let is_cuda = gst_cuda::memory::Memory::of(buffer.peek_memory(0)).is_some();
        note.lock().unwrap().push((named, is_cuda));
    });
    (reader, seen)
}

#[test]
fn frames_are_in_place_in_reused_memories() {
    if !is_there("in-place") {
        return;
    }
    for kind in ["vmm", "pool"] {
        let mut exporter = Exporter::start(kind, "auto");
        let seen = Arc::new(Mutex::new((Vec::new(), BTreeSet::new())));
        let note = seen.clone();
        let reader = Reader::cuda(&exporter).each(move |buffer| {
            check_on_cpu(&buffer);
            let look = memory(&buffer);
            assert!(look.is_from_fixed_pool());
            assert!(buffer.peek_memory(0).flags().contains(gst::MemoryFlags::READONLY));
            let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
            assert_eq!((meta.offset(), meta.stride()), (&[0, 512 * 240][..], &[512, 512][..]));
            assert_eq!((look.info().offset(), look.info().stride()), (meta.offset(), meta.stride()));
            let mut seen = note.lock().unwrap();
            seen.0.push(sequence(&buffer));
            seen.1.insert(buffer.peek_memory(0).as_ptr() as usize);
        });
        let reader = reader.play();
        exporter.execute("readers 1");
        exporter.execute("publish 40 0");
        exporter.execute("eos");
        reader.finish();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.0, (1..=40).collect::<Vec<_>>());
        assert!(seen.1.len() <= 8, "{} memories for 40 frames", seen.1.len());
        let caps = reader.sink.static_pad("sink").unwrap().current_caps().unwrap();
        assert!(caps.features(0).unwrap().contains("memory:CUDAMemory"));
        let stats = reader.source.property::<gst::Structure>("stats");
        assert_eq!(stats.get::<&str>("memory"), Ok("cuda"));
        assert_eq!((reader.stat("copied-for-credit"), reader.stat("copied-for-layout")), (0, 0));
    }
}

/// Speculatively delivered frames are flagged, and a reader that waits as GStreamer's elements do
/// reads them correctly.
#[test]
fn fence_controls_speculative_delivery() {
    if !is_there("speculative") {
        return;
    }
    for (theirs, ours, ahead) in [
        ("timeline", "auto", true),
        ("event", "auto", false),
        ("event", "event", true),
        ("auto", "event", true),
    ] {
        let mut exporter = Exporter::start("vmm", theirs);
        let seen = Arc::new(Mutex::new((None::<Gpu>, 0)));
        let note = seen.clone();
        let reader = Reader::cuda(&exporter).set("fence", ours).each(move |buffer| {
            let (gpu, pending) = &mut *note.lock().unwrap();
            *pending += usize::from(memory(&buffer).is_pending());
            gpu.get_or_insert_with(|| Gpu::of(&buffer)).copy(&buffer, 0);
        });
        let reader = reader.play();
        exporter.execute("readers 1");
        exporter.execute(&format!("publish 30 {LATE_US}"));
        exporter.execute("eos");
        reader.finish();
        let (gpu, pending) = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(gpu.unwrap().look(), (30, vec![]), "{theirs}, fence={ours}");
        assert_eq!(
            pending > 0,
            ahead,
            "{theirs}, fence={ours}: {pending} frames were delivered speculatively"
        );
    }
}

#[test]
fn killed_exporter_leaves_no_blocked_waiters() {
    if !is_there("killed") {
        return;
    }
    for (fence, waits) in [("timeline", true), ("event", false)] {
        let mut exporter = Exporter::start("vmm", fence);
        let reader = Reader::cuda(&exporter).buffers();
        let reader = reader.play();
        exporter.execute("readers 1");
        exporter.execute("publish 2 0");
        let mut held: Vec<_> = (0..2).map(|_| reader.next()).collect();
        // A speculatively delivered frame counts as torn until its fence is signaled; this holds
        // for these two as well.
        held.iter().for_each(|buffer| memory(buffer).sync());
        exporter.begin("publish 1 3000000");
        if waits {
            held.push(reader.next());
            assert!(memory(&held[2]).is_pending());
        }
        exporter.kill();
        let error = reader.error();
        assert!(error.matches(gst::ResourceError::Read), "{error}");
        assert_eq!(error.message().contains("1 delivered frames were never written"), waits, "{error}");
        // It is torn, but a wait for it ends.
        held.iter().for_each(|buffer| memory(buffer).sync());
        held[..2].iter().for_each(check_on_cpu);
        reader.pipeline.set_state(gst::State::Null).unwrap();
    }
}
