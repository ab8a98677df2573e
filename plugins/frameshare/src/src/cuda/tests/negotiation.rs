// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps and memory: frames in GPU memory, in host memory, and the change between them.

use super::*;

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
fn any_caps_get_system_memory() {
    if !is_there("any") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    let reader = Reader::new(&exporter, "ANY").buffers();
    let reader = reader.play();
    exporter.execute("readers 1");
    exporter.execute("publish 3 1000");
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
    exporter.execute("readers 1");
    exporter.begin("publish 1 0");
    let error = reader.error();
    assert!(error.matches(gst::CoreError::Negotiation), "{error}");
    assert!(error.message().contains("cudaupload"), "{error}");
}

#[test]
fn caps_follow_memory_when_it_changes_mid_stream() {
    if !is_there("caps-follow") {
        return;
    }
    for (fence, first) in [("timeline", false), ("timeline", true), ("event", false)] {
        let mut exporter = Exporter::start("vmm", fence);
        if first {
            exporter.execute("host yes");
        }
        let (reader, seen) = read_either(&exporter);
        let reader = reader.play();
        exporter.execute("readers 1");
        for host in ["yes", "no", "yes", "no"] {
            if !first || host == "no" {
                exporter.execute(&format!("host {host}"));
            }
            exporter.execute("publish 5 0");
        }
        exporter.execute("eos");
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
    exporter.execute("host yes");
    let reader = Reader::cuda(&exporter).play();
    exporter.execute("readers 1");
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
        exporter.execute("readers 1");
        exporter.execute("publish 1 0");
        exporter.execute("host yes");
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
        exporter.execute("publish 40 0");
        drop(done);
        exporter.execute("eos");
        reader.finish();
        assert_eq!(reader.stat("lost"), 0);
        assert_eq!(seen.lock().unwrap().len(), 41);
    }
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
        exporter.execute("readers 2");
        exporter.execute("publish 5 0");
        (0..5).for_each(|_| check_on_cpu(&with_video_meta(&system.next())));
        exporter.execute("gpu");
        // Readers that join later get their frames there, too, and wait for the GPU.
        let cuda = Reader::cuda(&exporter).buffers().play();
        exporter.execute("readers 3");
        exporter.execute(&format!("publish 20 {LATE_US}"));
        exporter.execute("eos");
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
