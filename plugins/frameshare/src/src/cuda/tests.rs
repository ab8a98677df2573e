// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the source on a GPU, fed by exporters in other processes.
//!
//! If GStreamer's CUDA library or a driver is missing, these tests are skipped with a message;
//! `make test` runs them on the simulated driver.

mod downstream;
mod exporter;

use super::*;
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

#[test]
fn cuda_memory_must_be_named_in_caps() {
    assert_eq!(takes("ANY"), Takes::System);
    assert_eq!(takes("EMPTY"), Takes::System);
    assert_eq!(takes("video/x-raw; video/x-raw(ANY)"), Takes::System);
    assert_eq!(takes("video/x-raw(memory:GLMemory)"), Takes::System);
    assert_eq!(takes("video/x-raw(memory:CUDAMemory)"), Takes::Cuda);
    assert_eq!(takes("video/x-raw(memory:CUDAMemory, meta:GstVideoOverlayComposition)"), Takes::Cuda);
    assert_eq!(takes("video/x-raw; video/x-raw(memory:CUDAMemory)"), Takes::Both);
    assert_eq!(takes("video/x-raw(memory:CUDAMemory); video/x-raw(ANY)"), Takes::Both);
}

#[test]
fn caps_name_the_memory_of_the_frames() {
    gst::init().unwrap();
    let caps = |text: &str| text.parse::<gst::Caps>().unwrap();
    let system = caps("video/x-raw, width=(int)4");
    let on_gpu = caps("video/x-raw(memory:CUDAMemory), width=(int)4");
    assert_eq!(caps_in(&system, true), on_gpu);
    assert_eq!(caps_in(&on_gpu, true), on_gpu);
    assert_eq!(caps_in(&on_gpu, false), system);
    assert_eq!(caps_in(&system, false), system);
    let with_meta = "video/x-raw(memory:CUDAMemory, meta:GstVideoOverlayComposition), width=(int)4";
    let without_cuda = caps("video/x-raw(meta:GstVideoOverlayComposition), width=(int)4");
    assert_eq!(caps_in(&caps(with_meta), false), without_cuda);
    let encoded = caps("video/x-h264");
    assert_eq!(caps_in(&encoded, true), encoded);
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
        exporter.tell("readers 1");
        exporter.tell("publish 40 0");
        exporter.tell("eos");
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

/// Returns a source that has read a frame, its context, and a stream of that context with work
/// still running.
fn read_with_work_left(
    work: impl FnOnce() + Send + 'static,
) -> (Exporter, Reader, gst_cuda::Context, Stream) {
    let mut exporter = Exporter::start("vmm", "timeline");
    let reader = Reader::cuda(&exporter).buffers().play();
    exporter.tell("readers 1");
    exporter.tell("publish 1 0");
    drop(reader.next());
    let context = reader.source.imp().context().unwrap();
    let engine = crate::ffi::cuda::engine_context(&context).unwrap();
    let stream = crate::ffi::cuda::engine_stream(&engine, &gst_cuda::Stream::new(&context).unwrap());
    stream.call(work).unwrap();
    (exporter, reader, context, stream)
}

/// An application that stops a source may then destroy the context that it read in.
#[test]
fn stopped_source_keeps_no_context() {
    if !is_there("stopped") {
        return;
    }
    for _ in 0..10 {
        let (_exporter, reader, context, stream) =
            read_with_work_left(|| std::thread::sleep(Duration::from_millis(30)));
        let kept = context.downgrade();
        let begin = Instant::now();
        drop(reader);
        let took = begin.elapsed();
        // Dropping a stream waits for its work.
        drop((stream, context));
        // The stop waits at most that long for the work, and a busy machine may exceed it.
        if took < crate::cuda::SETTLED {
            assert!(kept.upgrade().is_none(), "the context is still referenced");
            return;
        }
    }
    panic!("no stop took less than {:?}", crate::cuda::SETTLED);
}

/// An element without a context does not wait for the pending teardown of others.
#[test]
fn element_without_context_stops_at_once() {
    if !is_there("stops-at-once") {
        return;
    }
    let (done, busy) = std::sync::mpsc::channel::<()>();
    let (exporter, reader, _context, _stream) = read_with_work_left(move || _ = busy.recv_timeout(PATIENCE));
    drop(reader);
    assert!(!frameshare::wait_for_deferred_drops(Duration::ZERO), "no teardown is pending");
    let stop = |element: &gst::Element| {
        element.set_property("socket-path", exporter.path().with_extension("other"));
        element.set_state(gst::State::Paused).unwrap();
        let begin = Instant::now();
        element.set_state(gst::State::Null).unwrap();
        begin.elapsed()
    };
    let sink: gst::Element = glib::Object::new::<crate::sink::FrameshareSink>().upcast();
    sink.set_property_from_str("memory", "host");
    let source: gst::Element = glib::Object::new::<FrameshareSrc>().upcast();
    for element in [sink, source] {
        let quickest = (0..5).map(|_| stop(&element)).min().unwrap();
        assert!(quickest < crate::cuda::SETTLED, "{} took {quickest:?}", element.name());
    }
    drop(done);
}

/// Speculatively delivered frames are flagged, and a reader that waits as GStreamer's elements do
/// reads them correctly.
#[test]
fn gpu_wait_controls_speculative_delivery() {
    if !is_there("gpu-wait") {
        return;
    }
    for (fence, wait, ahead) in [
        ("timeline", "auto", true),
        ("timeline", "false", false),
        ("event", "auto", false),
        ("event", "true", true),
    ] {
        let mut exporter = Exporter::start("vmm", fence);
        let seen = Arc::new(Mutex::new((None::<Gpu>, 0)));
        let note = seen.clone();
        let reader = Reader::cuda(&exporter).set("gpu-wait", wait).each(move |buffer| {
            let (gpu, pending) = &mut *note.lock().unwrap();
            *pending += usize::from(memory(&buffer).is_pending());
            gpu.get_or_insert_with(|| Gpu::of(&buffer)).copy(&buffer, 0);
        });
        let reader = reader.play();
        exporter.tell("readers 1");
        exporter.tell(&format!("publish 30 {LATE_US}"));
        exporter.tell("eos");
        reader.finish();
        let (gpu, pending) = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(gpu.unwrap().look(), (30, vec![]), "{fence}, gpu-wait={wait}");
        assert_eq!(
            pending > 0,
            ahead,
            "{fence}, gpu-wait={wait}: {pending} frames were delivered speculatively"
        );
    }
}

/// Waits until 40 frames are copied, and checks the copies while the source still runs: it unmaps
/// memory that no registered stream reads when it stops or its stream ends.
fn look_at_forty(gpu: &Mutex<Option<Gpu>>) -> (usize, Vec<u64>) {
    let until = Instant::now() + PATIENCE;
    while gpu.lock().unwrap().as_ref().is_none_or(|gpu| gpu.count() < 40) {
        assert!(Instant::now() < until, "forty frames did not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    let gpu = gpu.lock().unwrap().take();
    gpu.unwrap().look()
}

/// Reads late on an unregistered stream, and drops each frame at once.
fn read_on_another_stream(fence: &str, in_order: bool) -> (usize, Vec<u64>) {
    let mut exporter = Exporter::start("vmm", fence);
    let gpu = Arc::new(Mutex::new(None::<Gpu>));
    let note = gpu.clone();
    let reader = Reader::cuda(&exporter).each(move |buffer| {
        note.lock().unwrap().get_or_insert_with(|| Gpu::of(&buffer)).copy(&buffer, LATE_US);
    });
    reader.source.imp().releases_in_order.store(in_order, Relaxed);
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 40 0");
    if in_order {
        return look_at_forty(&gpu);
    }
    exporter.tell("eos");
    reader.finish();
    let gpu = gpu.lock().unwrap().take();
    gpu.unwrap().look()
}

#[test]
fn release_waits_for_every_stream_of_the_context() {
    if !is_there("other-stream") {
        return;
    }
    for fence in ["timeline", "event"] {
        assert_eq!(read_on_another_stream(fence, false), (40, vec![]), "{fence}");
    }
}

/// Negative control of the test above.
#[test]
fn release_on_memory_stream_alone_is_detected() {
    if !is_there("other-stream-control") {
        return;
    }
    for fence in ["timeline", "event"] {
        let (count, wrong) = read_on_another_stream(fence, true);
        assert!(count == 40 && !wrong.is_empty(), "{fence}: none of {count} frames is wrong");
    }
}

/// Reads in a context of the application, with or without naming the stream.
fn read_in_another_context(named: bool) -> (usize, Vec<u64>) {
    let mut exporter = Exporter::start("vmm", "timeline");
    let gpu = Arc::new(Mutex::new(None::<Gpu>));
    let note = gpu.clone();
    let copied = Arc::new(Mutex::new(0));
    let unnamed = copied.clone();
    let reader = Reader::cuda(&exporter).set("max-held", "16").each(move |buffer| {
        let mut gpu = note.lock().unwrap();
        let gpu = gpu.get_or_insert_with(|| Gpu::with(Context::create(&Device::get(0).unwrap()).unwrap()));
        gpu.copy(&buffer, LATE_US);
        if named {
            // SAFETY: the stream is kept until the frames are released.
            #[allow(unsafe_code)]
            if !unsafe { crate::FrameshareMeta::used_on(&buffer, gpu.stream.as_raw()) } {
                gpu.stream.synchronize().unwrap();
                *unnamed.lock().unwrap() += 1;
            }
        }
    });
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 40 0");
    let looked = look_at_forty(&gpu);
    // A copy is the pipeline's own memory; no stream can be named for it.
    assert_eq!(*copied.lock().unwrap(), if named { reader.stat("copied-for-credit") } else { 0 });
    looked
}

#[test]
fn release_waits_for_named_stream_of_other_context() {
    if !is_there("other-context") {
        return;
    }
    assert_eq!(read_in_another_context(true), (40, vec![]));
    // Negative control.
    let (count, wrong) = read_in_another_context(false);
    assert!(count == 40 && !wrong.is_empty(), "none of {count} frames is wrong");
    // Naming a stream does not query the list of GPUs; only `Device::get` above does.
    let asked = frameshare_cuda::calls::snapshot().count("cuDeviceGetCount");
    assert!(asked <= 1, "the GPUs were listed {asked} times");
}

#[test]
fn downstream_keeping_every_buffer_gets_gpu_copies() {
    if !is_there("copies") {
        return;
    }
    for late_us in [0, LATE_US] {
        let mut exporter = Exporter::start("vmm", "timeline");
        let reader = Reader::cuda(&exporter).set("max-held", "4").buffers();
        let reader = reader.play();
        exporter.tell("readers 1");
        exporter.tell(&format!("publish 20 {late_us}"));
        let kept: Vec<_> = (0..20).map(|_| reader.next()).collect();
        assert_eq!(reader.stat("copied-for-credit"), 17, "three buffers stay in place");
        let mut gpu = Gpu::of(&kept[0]);
        kept.iter().for_each(|buffer| gpu.copy(buffer, 0));
        assert_eq!(gpu.look(), (20, vec![]));
        kept.iter().for_each(check_on_cpu);
        assert!(kept.iter().map(|buffer| sequence(buffer)).eq(1..=20));
    }
}

/// Copies are read on any stream and dropped at once too, and their memory is reused.
#[test]
fn copies_stay_intact_until_pending_reads_complete() {
    if !is_there("copies-other-stream") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "timeline");
    exporter.tell("format-system I420 320 240");
    let gpu = Arc::new(Mutex::new(None::<Gpu>));
    let note = gpu.clone();
    let reader = Reader::cuda(&exporter).each(move |buffer| {
        note.lock().unwrap().get_or_insert_with(|| Gpu::of(&buffer)).copy(&buffer, LATE_US);
    });
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 40 0");
    exporter.tell("eos");
    reader.finish();
    assert_eq!(reader.stat("copied-for-layout") + reader.stat("copied-for-credit"), 40);
    let gpu = gpu.lock().unwrap().take();
    assert_eq!(gpu.unwrap().look(), (40, vec![]));
}

#[test]
fn size_change_keeps_held_frames_intact() {
    if !is_there("renegotiation") {
        return;
    }
    for kind in ["vmm", "pool"] {
        let mut exporter = Exporter::start(kind, "auto");
        let reader = Reader::cuda(&exporter).set("max-held", "16").buffers();
        let reader = reader.play();
        exporter.tell("readers 1");
        let mut held = Vec::new();
        for size in ["320 240", "640 480", "64 48", "1280 720"] {
            exporter.tell(&format!("format NV12 {size}"));
            exporter.tell("publish 4 1000");
            let mut of_size: Vec<_> = (0..4).map(|_| reader.next()).collect();
            held.extend(of_size.drain(..2));
            of_size.iter().for_each(check_on_cpu);
            let meta = of_size[0].meta::<gst_video::VideoMeta>().unwrap();
            assert_eq!(format!("{} {}", meta.width(), meta.height()), size);
        }
        held.iter().for_each(check_on_cpu);
        drop(held);
        reader.wait_until_held(0);
    }
}

#[test]
fn proposed_stream_is_adopted() {
    if !is_there("stream") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "timeline");
    let reader = Reader::cuda(&exporter).buffers();
    let proposed = Arc::new(Mutex::new(None::<gst_cuda::Stream>));
    let note = proposed.clone();
    let source = reader.source.clone();
    reader.sink.static_pad("sink").unwrap().add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, move |_, info| {
        let Some(gst::QueryViewMut::Allocation(query)) = info.query_mut().map(|query| query.view_mut())
        else {
            return gst::PadProbeReturn::Ok;
        };
        let context = source.imp().context().unwrap();
        let stream = gst_cuda::Stream::new(&context).unwrap();
        let pool = gst_cuda::BufferPool::new(&context);
        let mut config = pool.config();
        config.set_params(query.get().0.map(|caps| caps.to_owned()).as_ref(), 1, 0, 0);
        gst_cuda::pool::set_stream(&mut config, &stream);
        pool.set_config(config).unwrap();
        query.add_allocation_pool(Some(&pool), 1, 0, 0);
        *note.lock().unwrap() = Some(stream);
        gst::PadProbeReturn::Handled
    });
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 1 0");
    let buffer = reader.next();
    assert_eq!(memory(&buffer).stream(), proposed.lock().unwrap().clone());
    check_on_cpu(&buffer);
}

/// Two pipelines with different contexts cannot both read legacy memory of the same exporter.
/// Memory of another exporter is not affected.
#[test]
fn legacy_memory_opens_in_one_context_per_process() {
    if !is_there("legacy") {
        return;
    }
    let mut exporters = [Exporter::start("legacy", "auto"), Exporter::start("legacy", "auto")];
    let first = Reader::cuda(&exporters[0]).buffers();
    let first = first.play();
    exporters[0].tell("readers 1");
    exporters[0].tell("publish 1 0");
    let held = first.next();
    check_on_cpu(&held);

    let other = Reader::cuda(&exporters[1]).buffers().play();
    exporters[1].tell("readers 1");
    exporters[1].tell("publish 1 0");
    let buffer = other.next();
    check_on_cpu(&buffer);
    assert_ne!(memory(&buffer).context(), memory(&held).context());

    let second = Reader::cuda(&exporters[0]).play();
    exporters[0].tell("readers 2");
    exporters[0].begin("publish 1 0");
    let error = second.error();
    assert!(error.message().contains("another CUDA context of this process"), "{error}");
    assert!(error.message().contains("share that context"), "{error}");
    exporters[0].answer();
    drop(second);
    // Otherwise it could be counted as the next reader.
    exporters[0].tell("readers 1");

    // Reading in the context of the first reader works.
    let third = Reader::cuda(&exporters[0]).buffers();
    third.source.set_context(&context_of(&first));
    let third = third.play();
    exporters[0].tell("readers 2");
    exporters[0].tell("publish 1 0");
    let buffer = third.next();
    check_on_cpu(&buffer);
    assert_eq!(memory(&buffer).context(), memory(&held).context());
}

/// Returns the context that a source offers to its neighbors.
fn context_of(reader: &Reader) -> gst::Context {
    let mut query = gst::query::Context::new("gst.cuda.context");
    assert!(reader.source.query(&mut query), "the source does not answer the context query");
    query.context_owned().expect("the answer has a context")
}

#[test]
fn neighbor_elements_share_the_context() {
    if !is_there("context") || gst::ElementFactory::find("cudadownload").is_none() {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    let reader = Reader::cuda(&exporter);
    let download = gst::ElementFactory::make("cudadownload").build().unwrap();
    reader.pipeline.add(&download).unwrap();
    let filter = reader.sink.static_pad("sink").unwrap().peer().unwrap().parent_element().unwrap();
    filter.unlink(&reader.sink);
    gst::Element::link_many([&filter, &download, &reader.sink]).unwrap();
    let reader = reader.buffers();
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 3 1000");
    for _ in 0..3 {
        check_on_cpu(&reader.next());
    }
    let mut query = gst::query::Context::new("gst.cuda.context");
    assert!(download.query(&mut query));
    let structure = |context: gst::Context| context.structure().to_owned();
    assert_eq!(structure(query.context_owned().unwrap()), structure(context_of(&reader)));
}

#[test]
fn killed_exporter_leaves_no_blocked_waiters() {
    if !is_there("killed") {
        return;
    }
    for (fence, wait) in [("timeline", "true"), ("event", "auto")] {
        let mut exporter = Exporter::start("vmm", fence);
        let reader = Reader::cuda(&exporter).set("gpu-wait", wait).buffers();
        let reader = reader.play();
        exporter.tell("readers 1");
        exporter.tell("publish 2 0");
        let mut held: Vec<_> = (0..2).map(|_| reader.next()).collect();
        // A speculatively delivered frame counts as torn until its fence is signaled; this holds
        // for these two as well.
        held.iter().for_each(|buffer| memory(buffer).sync());
        exporter.begin("publish 1 3000000");
        if wait == "true" {
            held.push(reader.next());
            assert!(memory(&held[2]).is_pending());
        }
        exporter.kill();
        let error = reader.error();
        assert!(error.matches(gst::ResourceError::Read), "{error}");
        assert_eq!(
            error.message().contains("1 delivered frames were never written"),
            wait == "true",
            "{error}"
        );
        // It is torn, but a wait for it ends.
        held.iter().for_each(|buffer| memory(buffer).sync());
        held[..2].iter().for_each(check_on_cpu);
        reader.pipeline.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn any_caps_get_system_memory() {
    if !is_there("any") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    let reader = Reader::new(&exporter, "ANY").buffers();
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 3 1000");
    for _ in 0..3 {
        let buffer = reader.next();
        assert!(gst_cuda::memory::Memory::of(buffer.peek_memory(0)).is_none());
        check_on_cpu(&with_video_meta(&buffer));
    }
    let caps = reader.sink.static_pad("sink").unwrap().current_caps().unwrap();
    assert!(!caps.features(0).unwrap().contains("memory:CUDAMemory"));
}

/// Adds a GstVideoMeta to buffers in the default layout, which come without one.
fn with_video_meta(buffer: &gst::BufferRef) -> gst::Buffer {
    let mut buffer = buffer.copy();
    if buffer.meta::<gst_video::VideoMeta>().is_none() {
        let (flags, format) = (gst_video::VideoFrameFlags::empty(), gst_video::VideoFormat::Nv12);
        gst_video::VideoMeta::add(buffer.make_mut(), flags, format, 320, 240).unwrap();
    }
    buffer
}

#[test]
fn cuda_device_id_selects_the_gpu() {
    if !is_there("device") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    let error = Reader::cuda(&exporter).set("cuda-device-id", "99").play().error();
    assert!(error.message().contains("GPU 99") && error.message().contains("cuda-device-id"), "{error}");
    if Device::all().unwrap().len() < 2 {
        return skip("second-device", "there is one GPU");
    }
    // In place, over peer access.
    let reader = Reader::cuda(&exporter).set("cuda-device-id", "1").buffers();
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 3 1000");
    for _ in 0..3 {
        let buffer = reader.next();
        assert_eq!(memory(&buffer).context().device(), 1);
        check_on_cpu(&buffer);
    }
}

#[test]
fn host_frames_for_cuda_reader_are_an_error_with_remedy() {
    gst::init().unwrap();
    let mut exporter = Exporter::start("host", "auto");
    let reader = Reader::cuda(&exporter).play();
    if let Err(missing) = gst_cuda::load() {
        let error = reader.error();
        assert!(error.message().contains(&missing.to_string()), "{error}");
        assert!(error.message().contains("system memory"), "{error}");
        return skip("not-taken", &missing.to_string());
    }
    exporter.tell("readers 1");
    exporter.begin("publish 1 0");
    let error = reader.error();
    assert!(error.matches(gst::CoreError::Negotiation), "{error}");
    assert!(error.message().contains("cudaupload"), "{error}");
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
fn caps_follow_memory_when_it_changes_mid_stream() {
    if !is_there("caps-follow") {
        return;
    }
    for (fence, first) in [("timeline", false), ("timeline", true), ("event", false)] {
        let mut exporter = Exporter::start("vmm", fence);
        if first {
            exporter.tell("host yes");
        }
        let (reader, seen) = read_either(&exporter);
        let reader = reader.play();
        exporter.tell("readers 1");
        for host in ["yes", "no", "yes", "no"] {
            if !first || host == "no" {
                exporter.tell(&format!("host {host}"));
            }
            exporter.tell("publish 5 0");
        }
        exporter.tell("eos");
        reader.finish();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 20, "{fence}");
        assert!(seen.iter().all(|(named, is_cuda)| named == is_cuda), "{fence}: {seen:?}");
        assert_eq!(seen.iter().filter(|(_, is_cuda)| *is_cuda).count(), if first { 15 } else { 10 });
    }
}

#[test]
fn host_switch_for_cuda_reader_recommends_upload() {
    if !is_there("told-to-upload") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    exporter.tell("host yes");
    let reader = Reader::cuda(&exporter).play();
    exporter.tell("readers 1");
    exporter.begin("publish 1 0");
    let error = reader.error();
    assert!(error.matches(gst::CoreError::Negotiation), "{error}");
    assert!(error.message().contains("cudaupload"), "{error}");
}

/// A host frame has no fence: it is released although the GPU of its reader is busy.
#[test]
fn host_frame_returns_while_reader_gpu_is_busy() {
    if !is_there("host-frame-returns") {
        return;
    }
    for fence in ["timeline", "event"] {
        let mut exporter = Exporter::start("vmm", fence);
        let (reader, seen) = read_either(&exporter);
        let reader = reader.play();
        exporter.tell("readers 1");
        exporter.tell("publish 1 0");
        exporter.tell("host yes");
        let until = Instant::now() + PATIENCE;
        while seen.lock().unwrap().is_empty() {
            assert!(Instant::now() < until, "no frame arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
        reader.wait_until_held(0);
        let context = reader.source.imp().context().unwrap();
        let engine = crate::ffi::cuda::engine_context(&context).unwrap();
        let stream = crate::ffi::cuda::engine_stream(&engine, &gst_cuda::Stream::new(&context).unwrap());
        let (done, busy) = std::sync::mpsc::channel::<()>();
        stream.call(move || _ = busy.recv_timeout(PATIENCE)).unwrap();
        // Far more frames than the reader may hold.
        exporter.tell("publish 40 0");
        drop(done);
        exporter.tell("eos");
        reader.finish();
        assert_eq!(reader.stat("lost"), 0);
        assert_eq!(seen.lock().unwrap().len(), 41);
    }
}

/// Two pipelines of one process, each with its own context, read surfaces: CUDA opens them in one
/// context only.
#[test]
fn second_context_of_process_gets_copied_surfaces() {
    if !is_there("second-context") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    exporter.tell("surfaces 6");
    let first = Reader::cuda(&exporter).buffers().play();
    exporter.tell("readers 1");
    exporter.tell("publish 3 0");
    let held = first.next();
    check_on_cpu(&held);
    let second = Reader::cuda(&exporter).buffers().play();
    exporter.tell("readers 2");
    for _ in 0..2 {
        drop(first.next());
    }
    for count in [3, 3] {
        exporter.tell(&format!("publish {count} 0"));
        for reader in [&first, &second] {
            (0..count).for_each(|_| check_on_cpu(&reader.next()));
        }
    }
    assert_ne!(first.source.imp().context(), second.source.imp().context());
    exporter.tell("eos");
    [&first, &second].into_iter().for_each(Reader::finish);
    assert_eq!([first.stat("lost"), second.stat("lost")], [0, 0]);
    check_on_cpu(&held);
}

/// A context unknown to the exporter has opened the same process's memory: the reader reports the
/// failed import.
#[test]
fn failed_surface_import_switches_to_copies() {
    if !inner("failed_surface_import_switches_to_copies", "cuIpcOpenMemHandle:1+:400") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    exporter.tell("surfaces 6");
    let reader = Reader::cuda(&exporter).buffers().play();
    exporter.tell("readers 1");
    // Frames are lost, and counted, until the exporter receives the report.
    let mut lost = 0;
    let buffer = loop {
        exporter.tell("publish 1 0");
        if let Some(buffer) = reader.next_within(Duration::from_millis(200)) {
            break buffer;
        }
        lost += 1;
        assert!(lost < 50, "no frame arrived");
    };
    check_on_cpu(&buffer);
    exporter.tell("publish 10 0");
    (0..10).for_each(|_| check_on_cpu(&reader.next()));
    exporter.tell("eos");
    reader.finish();
    assert_eq!(reader.stat("lost"), lost);
    assert!(lost > 0, "no frame was shared in place");
}

/// Runs a test again in a child process that sees the first GPU only and in which driver calls
/// fail; returns true in the child.
fn inner(test: &str, fail: &str) -> bool {
    const INNER: &str = "FRAMESHARE_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        gst::init().unwrap();
        gst_cuda::load().unwrap();
        return true;
    }
    if !is_there(test) {
        return false;
    }
    if frameshare_cuda::device::Device::all().unwrap().len() < 2
        || std::env::var_os("SIMCUDA_DEVICES").is_none()
    {
        skip(test, "it needs the simulated driver with two devices");
        return false;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("src::cuda::tests::{test}"), "--nocapture"]);
    command.env(INNER, "1").env("CUDA_VISIBLE_DEVICES", "0").env("SIMCUDA_FAIL", fail);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    false
}

#[test]
fn reader_of_both_on_another_gpu_gets_host_frames() {
    if !inner("reader_of_both_on_another_gpu_gets_host_frames", "") {
        return;
    }
    let mut exporter = Exporter::seeing("1", "vmm", "auto");
    let (reader, seen) = read_either(&exporter);
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 20 0");
    exporter.tell("eos");
    reader.finish();
    assert_eq!((seen.lock().unwrap().as_slice(), reader.stat("lost")), (&[(false, false); 20][..], 0));
    // If downstream accepts CUDA memory only, it remains an error.
    let error = Reader::cuda(&exporter).play().error();
    assert!(error.message().contains("cannot see") && error.message().contains("cuda-device-id"), "{error}");
}

/// The ordinals of the GPUs differ between the two processes.
#[test]
fn reader_without_device_id_uses_exporter_gpu() {
    const TEST: &str = "reader_without_device_id_uses_exporter_gpu";
    if !is_there(TEST) {
        return;
    }
    if Device::all().unwrap().len() < 2 {
        return skip(TEST, "there is one GPU");
    }
    for caps in ["video/x-raw(memory:CUDAMemory)", "video/x-raw(memory:CUDAMemory); video/x-raw"] {
        let mut exporter = Exporter::seeing("1", "vmm", "auto");
        let reader = Reader::new(&exporter, caps).play();
        exporter.tell("readers 1");
        exporter.tell("publish 20 0");
        exporter.tell("eos");
        reader.finish();
        assert_eq!(reader.stat("lost"), 0, "{caps}");
        let context = reader.source.imp().context().expect("the source has a context");
        assert_eq!(context.device(), 1, "{caps}");
    }
}

#[test]
fn reader_of_both_whose_imports_fail_gets_host_frames() {
    if !inner("reader_of_both_whose_imports_fail_gets_host_frames", "cuMemImportFromShareableHandle:1+:999") {
        return;
    }
    let mut exporter = Exporter::seeing("0", "vmm", "auto");
    let (reader, seen) = read_either(&exporter);
    let reader = reader.play();
    exporter.tell("readers 1");
    exporter.tell("publish 1 0");
    let mut published = 1;
    let until = Instant::now() + PATIENCE;
    while seen.lock().unwrap().is_empty() {
        assert!(Instant::now() < until, "no frame arrived");
        exporter.tell("publish 1 0");
        published += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    exporter.tell("publish 10 0");
    exporter.tell("eos");
    reader.finish();
    // The first frame is lost unless the exporter reads the report of the failed import before it.
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 10 && seen.iter().all(|seen| *seen == (false, false)), "{seen:?}");
    assert_eq!(reader.stat("lost") + seen.len() as u64, published + 10);
    // If downstream accepts CUDA memory only, it remains an error.
    let error = {
        let mut exporter = Exporter::seeing("0", "vmm", "auto");
        let reader = Reader::cuda(&exporter).play();
        exporter.tell("readers 1");
        exporter.begin("publish 1 0");
        reader.error()
    };
    assert!(error.message().contains("cannot import"), "{error}");
}

/// A reader in the exporter's process, in another context.
#[test]
fn local_reader_in_other_context_gets_copied_surfaces() {
    if !is_there("local-reader") {
        return;
    }
    let context = Context::create(&Device::get(0).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let endpoint = frameshare::Endpoint::at(&path).unwrap();
    let config = frameshare::exporter::Config::default().gpu(Some(context.clone()));
    let exporter = frameshare::exporter::Exporter::bind(&endpoint, config, drop).unwrap();
    assert_eq!(exporter.can_adopt(), Ok(()));
    let caps = "video/x-raw(memory:CUDAMemory),format=(string)GRAY8,width=(int)512,height=(int)16";
    exporter.set_format(frameshare::Format { caps: caps.into(), video: None });
    let reader = Reader::at(&path, "video/x-raw(memory:CUDAMemory)").play();
    exporter.wait_for_reader(&frameshare::Interrupt::new().unwrap()).unwrap();
    let why = exporter.can_adopt().unwrap_err();
    assert!(why.why.contains("another CUDA context"), "{why}");
    drop(reader);
}

/// Connected readers follow an exporter that begins to use a GPU, without loss.
#[test]
fn readers_follow_exporter_to_gpu_memory() {
    if !is_there("late-gpu") {
        return;
    }
    for fence in ["timeline", "event"] {
        let mut exporter = Exporter::start("late", fence);
        let (either, seen) = read_either(&exporter);
        let either = either.play();
        let system = Reader::new(&exporter, "video/x-raw").buffers().play();
        exporter.tell("readers 2");
        exporter.tell("publish 5 0");
        (0..5).for_each(|_| check_on_cpu(&with_video_meta(&system.next())));
        exporter.tell("gpu");
        // Readers that join later get their frames there, too, and wait for the GPU.
        let cuda = Reader::cuda(&exporter).buffers().play();
        exporter.tell("readers 3");
        exporter.tell(&format!("publish 20 {LATE_US}"));
        exporter.tell("eos");
        for _ in 0..20 {
            check_on_cpu(&with_video_meta(&system.next()));
            check_on_cpu(&cuda.next());
        }
        [&either, &system, &cuda].into_iter().for_each(Reader::finish);
        let expected: Vec<_> = (0..25).map(|index| (index >= 5, index >= 5)).collect();
        assert_eq!(*seen.lock().unwrap(), expected, "{fence}");
        assert_eq!([either.stat("lost"), system.stat("lost"), cuda.stat("lost")], [0; 3], "{fence}");
    }
}

/// Returns whether a sink behind these elements has a context before and after its first caps.
fn contexts_of(upstream: &str, properties: &str) -> (bool, bool) {
    crate::plugin_register_static().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let sink = format!(
        "framesharesink name=sink wait-for-connection=false socket-path={} {properties}",
        path.display()
    );
    let pipeline = gst::parse::launch(&format!("{upstream} ! {sink}")).unwrap();
    let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
    let sink = pipeline.by_name("sink").unwrap().downcast::<crate::sink::FrameshareSink>().unwrap();
    let has = || sink.imp().has_context();
    sink.set_state(gst::State::Paused).unwrap();
    let before = has();
    pipeline.set_state(gst::State::Playing).unwrap();
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let message = pipeline.bus().unwrap().timed_pop_filtered(gst::ClockTime::from_seconds(30), &kinds);
    assert_eq!(message.map(|message| message.type_()), Some(gst::MessageType::Eos), "{upstream}");
    let after = has();
    pipeline.set_state(gst::State::Null).unwrap();
    (before, after)
}

#[test]
fn sink_creates_context_for_cuda_frames_only() {
    if !is_there("sink-context") || gst::ElementFactory::find("cudaupload").is_none() {
        return;
    }
    let test = "videotestsrc num-buffers=3 ! video/x-raw,format=NV12,width=64,height=64";
    assert_eq!(contexts_of(test, ""), (false, false));
    assert_eq!(contexts_of(test, "memory=vmm"), (true, true));
    // A bin that adds pads later, such as decodebin, may also send anything.
    let any = "fakesrc num-buffers=3 format=time";
    assert_eq!(contexts_of(any, "any-caps=true"), (false, false));
    assert_eq!(contexts_of(any, "any-caps=true cuda-device-id=0"), (true, true));
}
