// SPDX-License-Identifier: MIT OR Apache-2.0

//! Release of frames whose reads are still queued, and copies for downstream that keeps them.

use super::*;

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
    exporter.execute("readers 1");
    exporter.execute("publish 40 0");
    if in_order {
        return look_at_forty(&gpu);
    }
    exporter.execute("eos");
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
        // Slower than the exporter even on a busy machine, where its frames are to be overwritten.
        gpu.copy(&buffer, if named { LATE_US } else { 10 * LATE_US });
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
    exporter.execute("readers 1");
    exporter.execute("publish 40 0");
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
    // Naming a stream does not query the list of GPUs; only `Device::get` above does, and other
    // tests.
    let asked = frameshare_cuda::calls::snapshot().count("cuDeviceGetCount");
    assert!(asked < 40, "the GPUs were listed {asked} times");
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
        exporter.execute("readers 1");
        exporter.execute(&format!("publish 20 {late_us}"));
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
    exporter.execute("format-system I420 320 240");
    let gpu = Arc::new(Mutex::new(None::<Gpu>));
    let note = gpu.clone();
    let reader = Reader::cuda(&exporter).each(move |buffer| {
        note.lock().unwrap().get_or_insert_with(|| Gpu::of(&buffer)).copy(&buffer, LATE_US);
    });
    let reader = reader.play();
    exporter.execute("readers 1");
    exporter.execute("publish 40 0");
    exporter.execute("eos");
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
        exporter.execute("readers 1");
        let mut held = Vec::new();
        for size in ["320 240", "640 480", "64 48", "1280 720"] {
            exporter.execute(&format!("format NV12 {size}"));
            exporter.execute("publish 4 1000");
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
