// SPDX-License-Identifier: MIT OR Apache-2.0

//! Round trip of every raw video format at odd sizes, compared pixel by pixel.
//!
//! Through both elements, frames come from foreign memory, which the sink copies, and from the
//! sink's pool, which it does not. Directly from an exporter of the engine, frames have padded rows
//! and separated planes, as from decoders, for a downstream with and without GstVideoMeta support.
//! Each format is a caps change after the previous one.
//!
//! # Safety
//!
//! Slots are written through their pointers before they are published.
#![allow(unsafe_code)]

use frameshare::{
    Endpoint, Format, Plane, Wait,
    exporter::{Config, Exporter, Frame, Purpose},
};
use frameshare_tests::content;
use gst::prelude::*;
use gst_video::{VideoFormat, VideoFrameRef, VideoInfo};
use std::{
    path::Path,
    sync::{Mutex, mpsc},
    time::Duration,
};

const SIZES: [(u32, u32); 3] = [(321, 241), (17, 5), (1, 1)];

/// Returns the visible bytes of a frame in the default layout of its format, without padding
/// between rows.
fn pixels(buffer: &gst::BufferRef, info: &VideoInfo) -> Vec<u8> {
    let wide = with_wide_rows(info);
    let to = wide.as_ref().unwrap_or(info);
    let mut plain = gst::Buffer::from_mut_slice(vec![0; to.size()]);
    {
        let from = VideoFrameRef::from_buffer_ref_readable(buffer, info).unwrap();
        let mut to = VideoFrameRef::from_buffer_ref_writable(plain.make_mut(), to).unwrap();
        from.copy(&mut to).unwrap();
    }
    plain.map_readable().unwrap().to_vec()
}

/// Returns the same image with unusually wide rows: if the strides on both sides are equal,
/// GStreamer 1.26 copies the padding as well. `None` for formats whose rows GStreamer treats as
/// bytes, padding included.
fn with_wide_rows(info: &VideoInfo) -> Option<VideoInfo> {
    if info.format_info().pixel_stride().contains(&0) {
        return None;
    }
    let mut wide = info.clone();
    wide.align(&mut gst_video::VideoAlignment::new(0, 0, 0, 96, &[0; 4])).ok()?;
    Some(wide)
}

/// Returns all formats in all sizes.
fn infos() -> impl Iterator<Item = VideoInfo> {
    VideoFormat::iter_raw().flat_map(|format| SIZES.map(|size| (format, size))).filter_map(
        |(format, (width, height))| {
            VideoInfo::builder(format, width, height).fps(gst::Fraction::new(25, 1)).build().ok()
        },
    )
}

/// `framesharesrc policy=lossless ! fakesink`, and the buffers that arrive at the sink.
struct Downstream {
    pipeline: gst::Pipeline,
    source: gst::Element,
    arrivals: mpsc::Receiver<(gst::Buffer, gst::Caps)>,
}

impl Downstream {
    fn new(socket: &Path, knows_video_meta: bool) -> Self {
        gst::init().unwrap();
        gstframeshare::plugin_register_static().unwrap();
        let source = gst::ElementFactory::make("framesharesrc")
            .property("socket-path", socket.to_str().unwrap())
            .property_from_str("policy", "lossless")
            .build()
            .unwrap();
        let end = gst::ElementFactory::make("fakesink").property("signal-handoffs", true).build().unwrap();
        let (sender, arrivals) = mpsc::channel();
        let sender = Mutex::new(sender);
        end.connect("handoff", false, move |values| {
            let caps = values[2].get::<gst::Pad>().unwrap().current_caps().unwrap();
            let _ = sender.lock().unwrap().send((values[1].get().unwrap(), caps));
            None
        });
        let pad = end.static_pad("sink").unwrap();
        pad.add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, move |_, info| {
            match info.query_mut().map(|query| query.view_mut()) {
                Some(gst::QueryViewMut::Allocation(query)) if knows_video_meta => {
                    query.add_allocation_meta::<gst_video::VideoMeta>(None);
                    gst::PadProbeReturn::Handled
                }
                _ => gst::PadProbeReturn::Ok,
            }
        });
        let pipeline = gst::Pipeline::new();
        pipeline.add_many([&source, &end]).unwrap();
        source.link(&end).unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
        Self { pipeline, source, arrivals }
    }

    /// Returns the pixels of the next frame, whose caps must match `info`.
    fn next(&self, info: &VideoInfo) -> Vec<u8> {
        let error = || self.pipeline.bus()?.pop_filtered(&[gst::MessageType::Error]);
        let (buffer, caps) = self
            .arrivals
            .recv_timeout(Duration::from_secs(20))
            .unwrap_or_else(|_| panic!("no frame received for {info:?}: {:?}", error()));
        assert_eq!(caps, info.to_caps().unwrap());
        pixels(&buffer, info)
    }

    fn stat(&self, name: &str) -> u64 {
        self.source.property::<gst::Structure>("stats").get(name).unwrap()
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn every_format_survives_foreign_memory_and_pool() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let downstream = Downstream::new(&socket, true);
    let sink = gst::ElementFactory::make("framesharesink")
        .property("socket-path", socket.to_str().unwrap())
        .property("wait-for-connection", true)
        .property("sync", false)
        .build()
        .unwrap();
    let mut upstream = gst_check::Harness::with_element(&sink, Some("sink"), None);
    upstream.play();
    let mut seed = 0;
    for info in infos() {
        upstream.set_src_caps(info.to_caps().unwrap());
        for from_pool in [false, true] {
            seed += 1;
            let mut buffer = match from_pool {
                true => upstream.create_buffer(info.size()).unwrap(),
                false => gst::Buffer::with_size(info.size()).unwrap(),
            };
            content::fill(&mut buffer.make_mut().map_writable().unwrap(), seed);
            let sent = pixels(&buffer, &info);
            upstream.push(buffer).unwrap();
            assert!(downstream.next(&info) == sent, "{info:?} from_pool={from_pool}");
        }
    }
    assert!(seed > 80 * 6, "only {seed} frames");
    assert_eq!(downstream.stat("copied-for-layout") + downstream.stat("copied-for-credit"), 0);
}

/// Returns separated planes with padded rows, and the size of the frame.
fn padded(info: &VideoInfo) -> (Vec<Plane>, usize) {
    let mut end = 0;
    let ends = info.offset().iter().skip(1).copied().chain([info.size()]);
    let planes = info.offset().iter().zip(ends).zip(info.stride()).map(|((from, to), stride)| {
        let rows = (to - from).div_ceil(*stride as usize);
        let plane = Plane { offset: end as u64 + 128, stride: stride + 64 };
        end += 128 + rows * plane.stride as usize;
        plane
    });
    (planes.collect(), end)
}

/// Sends frames with padded rows in all formats that allow them; returns the numbers of frames
/// received and copied.
fn send_padded(knows_video_meta: bool) -> (usize, u64) {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
    let exporter = Exporter::bind(&endpoint, Config::default(), |_| {}).unwrap();
    let downstream = Downstream::new(endpoint.path(), knows_video_meta);
    exporter.wait_for_reader(Wait::Forever).unwrap();
    let mut sent = 0;
    // Tiled formats have no rows, and a palette has only one.
    let plain = |info: &VideoInfo| !info.format_info().is_tiled() && !info.format_info().has_palette();
    for info in infos().filter(plain) {
        let (planes, size) = padded(&info);
        exporter.set_format(Format { caps: info.to_caps().unwrap().to_string(), video: None });
        let mut bytes = vec![0; size];
        content::fill(&mut bytes, sent as u64 + 1);
        let slot = exporter.acquire(size as u64, Purpose::Copy, Wait::No).unwrap();
        // SAFETY: the slot has at least the requested size, and no reader has it before it is
        // published.
        unsafe { slot.as_ptr().unwrap().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), size) };
        let frame =
            Frame { planes: &planes, ..Frame::new(&slot, size as u64, frameshare::fence::Written::Cpu) };
        exporter.publish(frame, Wait::Forever).unwrap();

        let mut expected = gst::Buffer::from_mut_slice(bytes);
        let offsets = planes.iter().map(|plane| plane.offset as usize).collect::<Vec<_>>();
        let strides = planes.iter().map(|plane| plane.stride).collect::<Vec<_>>();
        gst_video::VideoMeta::add_full(
            expected.make_mut(),
            gst_video::VideoFrameFlags::empty(),
            info.format(),
            info.width(),
            info.height(),
            &offsets,
            &strides,
        )
        .unwrap();
        assert!(downstream.next(&info) == pixels(&expected, &info), "{info:?}");
        sent += 1;
    }
    exporter.end_of_stream();
    (sent, downstream.stat("copied-for-layout"))
}

#[test]
fn padded_rows_stay_in_place_with_video_meta_support() {
    let (sent, copied) = send_padded(true);
    assert!(sent > 70 * 3, "only {sent} frames");
    assert_eq!(copied, 0);
}

#[test]
fn padded_rows_are_copied_without_video_meta_support() {
    let (sent, copied) = send_padded(false);
    assert!(sent > 70 * 3, "only {sent} frames");
    assert_eq!(copied, sent as u64);
}
