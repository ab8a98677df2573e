// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies in the sink.

use super::*;

#[test]
fn foreign_memory_is_copied_once_in_every_format() {
    init();
    use gst_video::VideoFormat as F;
    let formats = gst_video::VideoFormat::iter_raw().chain([F::Gray8, F::Gray16Le]);
    for (index, format) in formats.enumerate() {
        let info = video_info(format, 37, 23);
        let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[]);
        let mut reader = sink.reader(Policy::Lossless, 2);
        let content = noise(index as u64, info.size());
        sink.push(gst::Buffer::from_slice(content.clone()));
        let frame = next_frame(&mut reader);
        let planes = default_planes(&info);
        assert_eq!(frame.descriptor().used_planes(), planes, "{format}");
        if !info.format_info().is_tiled() {
            assert!(picture_of(&frame, &info) == picture(&info, &content, &planes), "{format}");
        }
        assert_eq!(sink.copies_for("foreign-memory"), 1, "{format}");
    }
}

#[test]
fn unusual_strides_and_offsets_are_respected() {
    let info = video_info(gst_video::VideoFormat::I420, 33, 11);
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[]);
    let mut reader = sink.reader(Policy::Lossless, 2);
    let (offsets, strides) = ([13, 1300, 700], [97, 41, 39]);
    let content = noise(4, 2000);
    let mut buffer = gst::Buffer::from_slice(content.clone());
    gst_video::VideoMeta::add_full(
        buffer.get_mut().unwrap(),
        gst_video::VideoFrameFlags::empty(),
        info.format(),
        info.width(),
        info.height(),
        &offsets,
        &strides,
    )
    .unwrap();
    sink.push(buffer);
    let given: Vec<_> = offsets
        .iter()
        .zip(&strides)
        .map(|(offset, stride)| Plane { offset: *offset as u64, stride: *stride })
        .collect();
    assert_eq!(picture_of(&next_frame(&mut reader), &info), picture(&info, &content, &given));
    assert_eq!(sink.copies_for("foreign-memory"), 1);
}

#[test]
fn multiple_memories_are_merged_into_one_slot() {
    let info = video_info(gst_video::VideoFormat::Nv12, 32, 16);
    let (mut sink, pool) = Sink::with_pool(&info, &[]);
    let mut reader = sink.reader(Policy::Lossless, 4);
    let content = noise(4, info.size());
    let mut buffer = gst::Buffer::new();
    for part in content.chunks(info.offset()[1]) {
        buffer.get_mut().unwrap().append_memory(gst::Memory::from_slice(part.to_vec()));
    }
    sink.push(buffer);
    assert_eq!(bytes(&next_frame(&mut reader)), content);

    // Also if each memory is a part of a slot.
    let (first, picture) = in_slot(&pool, &info, 5);
    let split = info.offset()[1];
    let mut buffer = first.copy_region(gst::BufferCopyFlags::MEMORY, ..split).unwrap();
    buffer.append(first.copy_region(gst::BufferCopyFlags::MEMORY, split..).unwrap());
    sink.push(buffer);
    assert_eq!(picture_of(&next_frame(&mut reader), &info), picture);
    pool.set_active(false).unwrap();
}

#[test]
fn byte_buffers_of_changing_size_are_delivered() {
    let mut sink = Sink::new("video/x-h264,stream-format=byte-stream,alignment=au", &[("encoded", "true")]);
    let mut reader = sink.reader(Policy::Lossless, 2);
    for (seed, size) in [10, 5000, 1, 70_000, 300, 1_000_003, 0, 4096].into_iter().enumerate() {
        let content = noise(seed as u64, size);
        sink.push(gst::Buffer::from_slice(content.clone()));
        let frame = next_frame(&mut reader);
        assert_eq!(bytes(&frame), content, "{size}");
        assert!(frame.descriptor().used_planes().is_empty());
    }
}

#[test]
fn buffer_too_small_for_its_caps_is_an_error() {
    let info = video_info(gst_video::VideoFormat::I420, 64, 64);
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[]);
    let bus = gst::Bus::new();
    sink.element().set_bus(Some(&bus));
    assert_eq!(sink.harness.push(gst::Buffer::from_slice(vec![0; 100])), Err(gst::FlowError::Error));
    let (error, text) = error_on(&bus);
    assert!(error.matches(gst::StreamError::Format), "{error:?}");
    assert!(text.contains("100 bytes"), "{text}");
}

/// A slot of one stream is foreign memory for another stream.
#[test]
fn slot_of_another_stream_is_copied() {
    let info = video_info(gst_video::VideoFormat::Gray8, 40, 40);
    let caps = info.to_caps().unwrap();
    let owner = Sink::new(&caps.to_string(), &[]);
    let mut other = Sink::new(&caps.to_string(), &[]);
    let (pool, _) = owner.pool(&caps);
    pool.set_active(true).unwrap();
    let mut reader = other.reader(Policy::Lossless, 2);
    let (buffer, expected) = in_slot(&pool, &info, 6);
    other.push(buffer);
    assert_eq!(picture_of(&next_frame(&mut reader), &info), expected);
    assert_eq!(other.copies_for("other-stream"), 1);
    pool.set_active(false).unwrap();
}
