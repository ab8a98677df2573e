// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publication from slots of the sink's pool.

use super::*;

#[test]
fn upstream_writes_into_slots() {
    init();
    for (format, width, height) in [
        ("NV12", 320, 240),
        ("I420", 321, 243),
        ("BGRA", 17, 5),
        ("GRAY16_LE", 33, 7),
        ("A420", 15, 15),
        ("I420_10LE", 65, 3),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let pipeline = launch(&format!(
            "videotestsrc num-buffers=12 ! video/x-raw,format={format},width={width},height={height} \
             ! framesharesink name=sink sync=false socket-path={}",
            folder.path().join("s").display()
        ));
        pipeline.set_state(gst::State::Playing).unwrap();
        wait_for_eos(&pipeline);
        let stats = stats(&pipeline.by_name("sink").unwrap());
        assert_eq!(stats.get::<u64>("published").unwrap(), 12, "{stats}");
        assert_eq!(stats.get::<u64>("copies").unwrap(), 0, "{stats}");
        pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// The decoder keeps its reference frames mapped for writing while it sends them, and continues to
/// read them.
#[test]
fn decoder_writes_into_slots() {
    init();
    for needed in ["x264enc", "h264parse", "avdec_h264"] {
        if gst::ElementFactory::find(needed).is_none() {
            skip("decoder_writes_into_slots", &format!("{needed} is not installed"));
            return;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, clip) = (folder.path().join("s"), folder.path().join("clip"));
    let clip = clip.display();
    let encoder = launch(&format!(
        "videotestsrc num-buffers=60 pattern=snow ! video/x-raw,format=I420,width=322,height=242 \
         ! x264enc bframes=2 key-int-max=20 ! filesink location={clip}"
    ));
    encoder.set_state(gst::State::Playing).unwrap();
    wait_for_eos(&encoder);
    encoder.set_state(gst::State::Null).unwrap();

    let info = video_info(gst_video::VideoFormat::I420, 322, 242);
    let decode = format!("filesrc location={clip} ! h264parse ! avdec_h264");
    let usual = launch(&format!("{decode} ! fakesink name=sink signal-handoffs=true sync=false"));
    let expected = Arc::new(Mutex::new(Vec::new()));
    {
        let (expected, info) = (expected.clone(), info.clone());
        usual.by_name("sink").unwrap().connect("handoff", false, move |arguments| {
            let buffer: gst::Buffer = arguments[1].get().unwrap();
            let planes = buffer.meta::<gst_video::VideoMeta>().map_or(default_planes(&info), |meta| {
                let pairs = meta.offset().iter().zip(meta.stride());
                pairs.map(|(offset, stride)| Plane { offset: *offset as u64, stride: *stride }).collect()
            });
            expected.lock().unwrap().push(picture(&info, &buffer.map_readable().unwrap(), &planes));
            None
        });
    }
    usual.set_state(gst::State::Playing).unwrap();
    wait_for_eos(&usual);
    usual.set_state(gst::State::Null).unwrap();
    let expected = expected.lock().unwrap();
    assert_eq!(expected.len(), 60);

    let shared = launch(&format!(
        "{decode} ! framesharesink name=sink sync=false wait-for-connection=true socket-path={}",
        path.display()
    ));
    shared.set_state(gst::State::Playing).unwrap();
    wait_until("the socket", || path.exists());
    let mut reader = connect(&path, Policy::Lossless, 8);
    // Read late, after the decoder has written later frames.
    let (mut held, mut ended) = (std::collections::VecDeque::new(), false);
    for expected in expected.iter() {
        while held.len() < 8 && !ended {
            match next(&mut reader) {
                Item::Frame(frame) => held.push_back(frame),
                Item::EndOfStream => ended = true,
                _ => {}
            }
        }
        let frame = held.pop_front().unwrap();
        assert!(&picture_of(&frame, &info) == expected, "frame {} differs", frame.descriptor().sequence.0);
    }
    wait_for_eos(&shared);
    let stats = stats(&shared.by_name("sink").unwrap());
    assert_eq!(stats.get::<u64>("published").unwrap(), 60, "{stats}");
    assert_eq!(stats.get::<u64>("copies").unwrap(), 0, "{stats}");
    shared.set_state(gst::State::Null).unwrap();
}

#[test]
fn repeated_or_copied_buffer_is_published_in_place() {
    let info = video_info(gst_video::VideoFormat::Nv12, 34, 18);
    let (mut sink, pool) = Sink::with_pool(&info, &[]);
    let mut reader = sink.reader(Policy::Lossless, 16);
    let (buffer, expected) = in_slot(&pool, &info, 7);
    sink.push(buffer.clone());
    sink.push(buffer.clone());
    sink.push(buffer.copy());
    let frames: Vec<_> = (0..3).map(|_| next_frame(&mut reader)).collect();
    assert_eq!(frames.iter().map(|frame| frame.descriptor().sequence.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(frames.iter().all(|frame| picture_of(frame, &info) == expected));
    assert_eq!(sink.copies(), 0);

    // While a reader holds a frame of it, the buffer is not writable; the pool provides other
    // buffers.
    let mut buffer = buffer;
    assert!(buffer.get_mut().is_none());
    drop(buffer);
    let (other, other_picture) = in_slot(&pool, &info, 8);
    assert!(frames.iter().all(|frame| picture_of(frame, &info) == expected));
    sink.push(other);
    assert_eq!(picture_of(&next_frame(&mut reader), &info), other_picture);
    pool.set_active(false).unwrap();
}

/// The pool's frames are mapped without locking their memory; write access still depends on whether
/// a memory is shared.
#[test]
fn copied_buffer_shares_its_frame_until_written() {
    let info = video_info(gst_video::VideoFormat::Nv12, 34, 18);
    let (mut sink, pool) = Sink::with_pool(&info, &[]);
    let mut reader = sink.reader(Policy::Lossless, 16);
    let (buffer, expected) = in_slot(&pool, &info, 7);
    // Map for writing and copy to set the times, as decoders do.
    let frame = gst_video::VideoFrame::from_buffer_writable(buffer, &info).unwrap();
    let copied = frame.buffer().copy();
    sink.push(copied.clone());
    let published = next_frame(&mut reader);
    assert_eq!(picture_of(&published, &info), expected);
    assert_eq!(sink.copies(), 0);

    // A write to the copy goes to other memory.
    let mut written = gst_video::VideoFrame::from_buffer_writable(copied.copy(), &info).unwrap();
    written.plane_data_mut(0).unwrap().fill(0);
    assert_eq!(picture_of(&published, &info), expected);
    drop((written, frame));
    pool.set_active(false).unwrap();
}

#[test]
fn resized_buffer_returns_to_pool_at_full_size() {
    let info = video_info(gst_video::VideoFormat::Gray8, 64, 16);
    let caps = info.to_caps().unwrap();
    let sink = Sink::new(&caps.to_string(), &[]);
    let (pool, size) = sink.pool(&caps);
    let size = size as usize;
    pool.set_active(true).unwrap();
    for (start, end) in [(0, 100), (100, 200), (10, size)] {
        let mut buffer = pool.acquire_buffer(None).unwrap();
        assert_eq!((buffer.size(), buffer.peek_memory(0).offset()), (size, 0));
        buffer.get_mut().unwrap().resize(start..end).unwrap();
        assert_eq!(buffer.size(), end - start);
    }
    let buffer = pool.acquire_buffer(None).unwrap();
    assert_eq!((buffer.size(), buffer.peek_memory(0).offset()), (size, 0));
    drop(buffer);
    pool.set_active(false).unwrap();
}

#[test]
fn buffers_return_to_pool_when_leases_end() {
    let info = video_info(gst_video::VideoFormat::Gray8, 64, 64);
    let (mut sink, pool) = Sink::with_pool(&info, &[]);
    let mut reader = sink.reader(Policy::Lossless, 2);
    for seed in 0..100 {
        let (buffer, expected) = in_slot(&pool, &info, seed);
        sink.push(buffer);
        assert_eq!(picture_of(&next_frame(&mut reader), &info), expected);
    }
    let slots: gst::Structure = stats(&sink.element()).get("pool").unwrap();
    assert!(slots.get::<u32>("slots").unwrap() <= 3, "{slots}");
    assert_eq!(sink.copies(), 0);
    pool.set_active(false).unwrap();
}

#[test]
fn region_of_a_slot_is_published_as_that_region() {
    let mut sink = Sink::new("application/x-bytes", &[("any-caps", "true")]);
    let video = video_info(gst_video::VideoFormat::Gray8, 100, 40).to_caps().unwrap();
    let (pool, _) = sink.pool(&video);
    pool.set_active(true).unwrap();
    let mut reader = sink.reader(Policy::Lossless, 8);
    let mut buffer = pool.acquire_buffer(None).unwrap();
    let content = noise(3, buffer.size());
    buffer.get_mut().unwrap().map_writable().unwrap().copy_from_slice(&content);
    let part = buffer.copy_region(gst::BufferCopyFlags::MEMORY, 1001..2002).unwrap();
    let part_of_part = part.copy_region(gst::BufferCopyFlags::MEMORY, 10..20).unwrap();
    sink.push(part);
    sink.push(part_of_part);
    assert_eq!(bytes(&next_frame(&mut reader)), content[1001..2002]);
    assert_eq!(bytes(&next_frame(&mut reader)), content[1011..1021]);
    assert_eq!(sink.copies(), 0);
    pool.set_active(false).unwrap();
}

#[test]
fn pool_keeps_alignment_and_padding() {
    let info = video_info(gst_video::VideoFormat::I420, 30, 20);
    let caps = info.to_caps().unwrap();
    let mut sink = Sink::new(&caps.to_string(), &[]);
    let (pool, size) = sink.pool(&caps);
    let mut config = pool.config();
    config.set_params(Some(&caps), size, 0, 0);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_ALIGNMENT);
    use gst_video::prelude::*;
    config.set_video_alignment(&gst_video::VideoAlignment::new(2, 4, 8, 16, &[63; 4]));
    config.set_allocator(
        None::<&gst::Allocator>,
        Some(&gst::AllocationParams::new(gst::MemoryFlags::empty(), 63, 5, 7)),
    );
    pool.set_config(config).unwrap();
    pool.set_active(true).unwrap();
    let mut reader = sink.reader(Policy::Lossless, 4);
    let (buffer, expected) = in_slot(&pool, &info, 5);
    {
        let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
        assert!(meta.stride().iter().all(|stride| stride % 64 == 0), "{:?}", meta.stride());
        assert!(meta.offset()[0] > 0);
        assert_eq!(buffer.map_readable().unwrap().as_ptr() as usize % 64, 0);
    }
    sink.push(buffer);
    assert_eq!(picture_of(&next_frame(&mut reader), &info), expected);
    assert_eq!(sink.copies(), 0);
    pool.set_active(false).unwrap();
}

#[test]
fn exhausted_pool_falls_back_to_private_memory() {
    let info = video_info(gst_video::VideoFormat::Gray8, 32, 32);
    let (mut sink, pool) = Sink::with_pool(&info, &[("max-slots", "8")]);
    let mut reader = sink.reader(Policy::Lossless, 2);
    let held: Vec<_> = (0..20).map(|seed| in_slot(&pool, &info, seed)).collect();
    for (buffer, expected) in &held {
        sink.push(buffer.clone());
        assert_eq!(&picture_of(&next_frame(&mut reader), &info), expected);
    }
    assert!(sink.copies_for("no-free-slot") >= 12, "{}", stats(&sink.element()));
    assert!(sink.copies() < 20, "{}", stats(&sink.element()));
    pool.set_active(false).unwrap();
}

/// Upstream may hold published frames, so that no slot is left when readers have moved on: the sink
/// then waits for a slot, and uses the next one that returns to upstream's pool.
#[test]
fn sink_waits_for_slot_if_upstream_holds_all() {
    let info = video_info(gst_video::VideoFormat::Gray8, 32, 32);
    let (mut sink, pool) = Sink::with_pool(&info, &[("max-slots", "8")]);
    let mut reader = sink.reader(Policy::Latest, 2);
    let in_slots = |count: u64| (0..count).map(|seed| in_slot(&pool, &info, seed).0).collect::<Vec<_>>();
    let mut upstream = in_slots(4);
    let mut publish = |sink: &mut Sink, buffers: &[gst::Buffer]| {
        let read = |buffer: &gst::Buffer| {
            sink.push(buffer.clone());
            next_frame(&mut reader)
        };
        buffers.iter().map(read).collect::<Vec<_>>()
    };
    let read = publish(&mut sink, &upstream[..2]);
    // The reader holds two of six slots at this moment.
    upstream.extend(in_slots(2));
    drop(read);
    let foreign = gst::Buffer::from_slice(vec![7; info.size()]);
    let held = publish(&mut sink, &[foreign.clone(), foreign.clone()]);
    assert_eq!(sink.copies(), 2, "{}", stats(&sink.element()));
    let returning = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        upstream.pop();
        upstream
    });
    sink.push(foreign);
    assert_eq!(sink.copies(), 3, "{}", stats(&sink.element()));
    drop((held, returning.join().unwrap()));
    pool.set_active(false).unwrap();
}

/// GstBufferPool drops a returned buffer if its memory is shared, and frees all buffers when it
/// stops.
#[test]
fn slots_outlive_their_pool() {
    let info = video_info(gst_video::VideoFormat::Gray8, 32, 32);
    let caps = info.to_caps().unwrap();
    let (mut sink, pool) = Sink::with_pool(&info, &[]);
    let mut reader = sink.reader(Policy::Lossless, 2);
    let (buffer, expected) = in_slot(&pool, &info, 1);
    sink.push(buffer);
    let frame = next_frame(&mut reader);
    pool.set_active(false).unwrap();
    drop(pool);
    let (pool, _) = sink.pool(&caps);
    pool.set_active(true).unwrap();
    for seed in 2..10 {
        let (buffer, later) = in_slot(&pool, &info, seed);
        sink.push(buffer);
        assert_eq!(picture_of(&next_frame(&mut reader), &info), later);
    }
    assert_eq!(picture_of(&frame, &info), expected);
    pool.set_active(false).unwrap();
}

#[test]
fn pool_outliving_the_sink_stays_usable() {
    let info = video_info(gst_video::VideoFormat::Gray8, 32, 32);
    let caps = info.to_caps().unwrap();
    let sink = Sink::new(&caps.to_string(), &[]);
    let (pool, _) = sink.pool(&caps);
    pool.set_active(true).unwrap();
    let (before, expected) = in_slot(&pool, &info, 1);
    sink.element().set_state(gst::State::Null).unwrap();
    let (after, _) = in_slot(&pool, &info, 2);
    assert_eq!(picture(&info, &before.map_readable().unwrap(), &default_planes(&info)), expected);
    drop((before, after));
    drop(sink);
    pool.set_active(false).unwrap();
}
