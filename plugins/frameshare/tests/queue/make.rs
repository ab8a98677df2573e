// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps, buffers and events of a program's steps.

use crate::program::{Buffer, MS, Media, Meta, RATES, SIZES, Segment, Step};
use frameshare_tests::content::bytes;

pub const CUSTOM_META: &str = "frameshare-test-queue";

pub fn caps(media: Media, number: u8) -> gst::Caps {
    let number = usize::from(number);
    let (width, height) = SIZES[number];
    match media {
        Media::Gray => gst::Caps::builder("video/x-raw")
            .field("format", "GRAY8")
            .field("width", width as i32)
            .field("height", height as i32)
            .field("framerate", gst::Fraction::new(25, 1))
            .build(),
        Media::Sound => gst::Caps::builder("audio/x-raw")
            .field("format", "S16LE")
            .field("layout", "interleaved")
            .field("channels", 2)
            .field("channel-mask", gst::Bitmask::new(3))
            .field("rate", RATES[number] as i32)
            .build(),
        Media::H264 => gst::Caps::builder("video/x-h264")
            .field("stream-format", "avc")
            .field("alignment", "au")
            .field("codec_data", gst::Buffer::from_slice(bytes(number as u64, 20)))
            .field("width", width as i32)
            .build(),
        Media::Images => gst::Caps::builder("image/jpeg").field("width", width as i32).build(),
        Media::Bytes => gst::Caps::builder("application/x-test").field("number", number as i32).build(),
    }
}

pub fn buffer(step: &Buffer) -> gst::Buffer {
    let content = bytes(step.content, step.size);
    let mut buffer = gst::Buffer::new();
    let made = buffer.make_mut();
    let part = content.len().div_ceil(step.parts.into()).max(1);
    for part in content.chunks(part) {
        made.append_memory(gst::Memory::from_slice(part.to_vec()));
    }
    made.set_pts(step.pts.map(gst::ClockTime::from_nseconds));
    made.set_dts(step.dts.map(gst::ClockTime::from_nseconds));
    made.set_duration(step.duration.map(gst::ClockTime::from_nseconds));
    made.set_offset(step.offset.unwrap_or(u64::MAX));
    made.set_offset_end(step.offset.map_or(u64::MAX, |offset| offset + 1));
    made.set_flags(gst::BufferFlags::from_bits_retain(step.flags));
    for meta in &step.metas {
        match *meta {
            Meta::Region(number) => {
                let mut region = gst_video::VideoRegionOfInterestMeta::add(made, "face", (number, 1, 2, 3));
                region.add_param(gst::Structure::builder("detection").field("n", number).build());
            }
            Meta::Reference(time) => {
                let caps = gst::Caps::new_empty_simple("timestamp/x-ntp");
                gst::ReferenceTimestampMeta::add(made, &caps, gst::ClockTime::from_nseconds(time), None);
            }
            Meta::Custom(number) => {
                if let Ok(mut custom) = gst::meta::CustomMeta::add(made, CUSTOM_META) {
                    custom.mut_structure().set("n", number);
                }
            }
        }
    }
    buffer
}

/// The events of a step that is no buffer and no act of a reader.
pub fn events(media: Media, step: &Step) -> Vec<gst::Event> {
    match step {
        Step::Stream(number) => {
            let id = format!("stream-{number}");
            vec![gst::event::StreamStart::builder(&id).group_id(gst::GroupId::next()).build()]
        }
        Step::Caps(number) => vec![gst::event::Caps::new(&caps(media, *number))],
        Step::Segment(segment) => vec![gst::event::Segment::new(&self::segment(segment))],
        Step::Gap { pts, duration } => vec![
            gst::event::Gap::builder(gst::ClockTime::from_nseconds(*pts))
                .duration(duration.map(gst::ClockTime::from_nseconds))
                .build(),
        ],
        Step::Tags { is_global, title } => {
            let mut list = gst::TagList::new();
            let made = list.make_mut();
            made.add::<gst::tags::Title>(&format!("title {title}").as_str(), gst::TagMergeMode::Append);
            made.set_scope(if *is_global { gst::TagScope::Global } else { gst::TagScope::Stream });
            vec![gst::event::Tag::new(list)]
        }
        Step::Custom { is_sticky, number } => {
            let fields = gst::Structure::builder("test").field("n", u32::from(*number)).build();
            vec![if *is_sticky {
                gst::event::CustomDownstreamSticky::new(fields)
            } else {
                gst::event::CustomDownstream::new(fields)
            }]
        }
        Step::Flush(segment) => vec![
            gst::event::FlushStart::new(),
            gst::event::FlushStop::new(false),
            gst::event::Segment::new(&self::segment(segment)),
        ],
        Step::Eos => vec![gst::event::Eos::new()],
        _ => vec![],
    }
}

fn segment(segment: &Segment) -> gst::FormattedSegment<gst::ClockTime> {
    let ns = gst::ClockTime::from_nseconds;
    let mut made = gst::FormattedSegment::<gst::ClockTime>::new();
    made.set_rate(segment.rate);
    made.set_applied_rate(segment.applied_rate);
    made.set_start(ns(segment.start));
    made.set_position(ns(segment.start));
    made.set_stop(segment.stop.map(ns));
    made.set_time(ns(segment.time));
    made.set_base(ns(segment.base));
    made.set_offset(ns(segment.offset));
    made
}

/// A time in ms, for messages.
pub fn ms(time: i128) -> String {
    format!("{:.6} ms", time as f64 / MS as f64)
}
