// SPDX-License-Identifier: MIT OR Apache-2.0

//! Planes of frames, as an application without GStreamer reads them.

use crate::stream::{Stream, byte, fill, format};
use frameshare::{
    Plane, Policy, Wait,
    exporter::{Exporter, Frame, InvalidFrame, PublishError, Purpose},
    fence::Written,
    reader,
    video::{CROPPED, VideoError, VideoFormat},
};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const CAPS: &str = "video/x-raw, format=NV12, width=5, height=3, framerate=25/1";

/// Publishes a frame of `size` bytes with these planes, and returns it as a reader gets it.
fn send(stream: &Stream, exporter: &Exporter, caps: &str, planes: &[Plane], size: u64) -> reader::Frame {
    send_with_flags(stream, exporter, caps, planes, size, 0)
}

fn send_with_flags(
    stream: &Stream,
    exporter: &Exporter,
    caps: &str,
    planes: &[Plane],
    size: u64,
    flags: u64,
) -> reader::Frame {
    let mut reader = stream.reader(Policy::Latest);
    if !caps.is_empty() {
        exporter.set_format(format(caps));
    }
    let slot = exporter.acquire(size, Purpose::Copy, Wait::No).unwrap();
    fill(slot.as_ptr().unwrap().as_ptr(), size, 1);
    let frame = Frame { planes, flags, ..Frame::new(&slot, size, Written::Cpu) };
    exporter.publish(frame, Wait::Forever).unwrap();
    stream.next_frame(&mut reader)
}

fn load(bytes: &[AtomicU8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte.load(Relaxed)).collect()
}

/// Returns the content of the frame from `start` on.
fn content(start: u64, len: u64) -> Vec<u8> {
    (start..start + len).map(|index| byte(1, index)).collect()
}

#[test]
fn frame_without_planes_has_default_layout() {
    let stream = Stream::new();
    let frame = send(&stream, &stream.exporter(), CAPS, &[], 8 * 6);
    let video = frame.format().unwrap();
    assert_eq!((video.pixels.name(), video.width, video.height), ("NV12", 5, 3));
    let chroma = frame.plane(1).unwrap();
    assert_eq!((chroma.width, chroma.height, chroma.stride, chroma.row_bytes), (3, 2, 8, 6));
    assert_eq!(load(chroma.row(1)), content(8 * 4 + 8, 6));
    assert!(chroma.row(2).is_empty() && chroma.device_pointer().is_none());
    assert_eq!(chroma.row_slice(1), Some(content(8 * 4 + 8, 6).as_slice()));
    assert_eq!(load(chroma.bytes()), content(8 * 4, 14));
    assert!(matches!(frame.plane(2), Err(VideoError::NoSuchPlane { index: 2, .. })));
}

#[test]
fn rows_are_copied_with_strides_of_both_sides() {
    let stream = Stream::new();
    // The first plane is bottom-up, the second has padded rows.
    let planes = [Plane { offset: 2 * 7, stride: -7 }, Plane { offset: 30, stride: 9 }];
    let frame = send(&stream, &stream.exporter(), CAPS, &planes, 30 + 9 + 6);
    let mut target = [0; 2 * 10 + 5];
    frame.plane(0).unwrap().copy_to(&mut target, 10).unwrap();
    let mut expected = [0; 25];
    for (row, start) in [14, 7, 0].into_iter().enumerate() {
        expected[10 * row..][..5].copy_from_slice(&content(start, 5));
    }
    assert_eq!(target, expected);
    let chroma = frame.plane(1).unwrap();
    let mut target = [0; 12];
    chroma.copy_to(&mut target, 6).unwrap();
    assert_eq!(target[..], [content(30, 6), content(39, 6)].concat());
    let too_small = |len, stride| VideoError::Target { len, rows: 2, row_bytes: 6, stride };
    assert_eq!(chroma.copy_to(&mut target[..11], 6), Err(too_small(11, 6)));
    assert_eq!(chroma.copy_to(&mut target, 5), Err(too_small(12, 5)));
    assert_eq!(chroma.copy_to(&mut target, usize::MAX), Err(too_small(12, usize::MAX)));
}

#[test]
fn tiles_are_bytes_and_no_rows() {
    let stream = Stream::new();
    let caps = "video/x-raw, format=NV12_4L4, width=9, height=9";
    let frame = send(&stream, &stream.exporter(), caps, &[], (9 + 6) * 16);
    let plane = frame.plane(1).unwrap();
    assert_eq!((plane.tile.unwrap().bytes(), plane.stride, plane.offset), (16, 48, 144));
    assert_eq!(load(plane.row(1)), content(144 + 48, 48));
    assert!(matches!(plane.copy_to(&mut [0; 1000], 100), Err(VideoError::NoRows { index: 1, .. })));
}

#[test]
fn frame_without_usable_format_is_an_error() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let error = |caps: &str, planes: &[Plane], size| {
        let frame = send(&stream, &exporter, caps, planes, size);
        assert_eq!(frame.format().err(), frame.plane(0).err().filter(|_| frame.format().is_err()));
        frame.plane(0).unwrap_err()
    };
    assert_eq!(error("", &[], 100), VideoError::NoFormat);
    assert_eq!(error("audio/x-raw, rate=1", &[], 100), VideoError::NotRaw { media: "audio/x-raw".into() });
    let unknown = "video/x-raw, format=NV99, width=5, height=3";
    assert_eq!(error(unknown, &[], 100), VideoError::UnknownFormat { name: "NV99".into() });
    for (field, caps) in [
        ("width", "video/x-raw, format=NV12, height=3"),
        ("height", "video/x-raw, format=NV12, width=5, height=-3"),
        ("framerate", "video/x-raw, format=NV12, width=5, height=3, framerate=1/0"),
    ] {
        assert_eq!(error(caps, &[], 100), VideoError::Caps { field, caps: caps.into() });
    }
    assert!(matches!(error(CAPS, &[], 8 * 2), VideoError::OutOfBounds { index: 0, size: 16, .. }));
    let one = [Plane { offset: 0, stride: 8 }];
    assert!(matches!(error(CAPS, &one, 100), VideoError::PlaneCount { found: 1, expected: 2, .. }));
    let cropped = send_with_flags(&stream, &exporter, CAPS, &[], 100, CROPPED);
    assert_eq!(cropped.plane(0).unwrap_err(), VideoError::Cropped);
}

#[test]
fn frame_with_overlapping_rows_is_not_published() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    exporter.set_format(format(CAPS));
    let mut reader = stream.reader(Policy::Latest);
    let slot = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
    let publish = |planes: &[Plane]| {
        exporter.publish(Frame { planes, ..Frame::new(&slot, 100, Written::Cpu) }, Wait::No)
    };
    let [luma, chroma] = [Plane { offset: 0, stride: 5 }, Plane { offset: 15, stride: -6 }];
    for (plane, stride) in [(0, 0), (0, 1), (0, 4), (0, -4), (1, 5), (1, 0)] {
        let mut planes = [luma, chroma];
        planes[plane].stride = stride;
        let refused = PublishError::Invalid(InvalidFrame::OverlappingRows { plane });
        assert_eq!(publish(&planes), Err(refused), "{plane} {stride}");
    }
    let planes = [luma, Plane { offset: 21, ..chroma }];
    publish(&planes).unwrap();
    let frame = stream.next_frame(&mut reader);
    assert_eq!((frame.lost_before(), frame.plane(1).unwrap().stride), (0, -6));
    // Nothing is known about planes of other media.
    exporter.set_format(format("application/x-test"));
    publish(&[Plane { offset: 0, stride: 0 }]).unwrap();
}

#[test]
fn frames_before_new_format_keep_theirs() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Lossless);
    for width in [5, 6] {
        let caps = VideoFormat::new("GRAY8".parse().unwrap(), width, 1).to_caps();
        exporter.set_format(format(&caps));
        stream.publish(&exporter, 1).unwrap();
    }
    let frames = [(); 2].map(|()| stream.next_frame(&mut reader));
    assert_eq!(frames.map(|frame| frame.plane(0).unwrap().width), [5, 6]);
}
