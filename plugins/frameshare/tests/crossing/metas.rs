// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps, timestamps, counters, flags and metas.

use super::*;
use gst_video::prelude::*;

fn video_meta(query: &mut gst::query::Allocation) {
    query.add_allocation_meta::<gst_video::VideoMeta>(None);
}

fn crop_meta(query: &mut gst::query::Allocation) {
    query.add_allocation_meta::<gst_video::VideoCropMeta>(None);
}

#[test]
fn caps_are_delivered_unchanged() {
    let video = "video/x-raw, format=(string)I420, width=(int)32, height=(int)16, framerate=(fraction)25/1";
    let all = [
        format!(
            "{video}, interlace-mode=(string)interleaved, field-order=(string)top-field-first, \
             pixel-aspect-ratio=(fraction)12/11, chroma-site=(string)v-cosited, colorimetry=(string)bt601"
        ),
        format!(
            "{video}, multiview-mode=(string)side-by-side, \
             multiview-flags=(GstVideoMultiviewFlagsSet)0:ffffffff:/right-view-first/left-flipped"
        ),
        format!(
            "{video}, colorimetry=(string)bt2100-pq, \
             mastering-display-info=(string)34000:16000:13250:34500:7500:3000:15635:16450:10000000:1, \
             content-light-level=(string)1000:400"
        ),
        format!("{video}, views=(int)2, max-framerate=(fraction)60/1, custom=(string)\"a \\\"b\\\"; {{c}}\""),
        "video/x-h264, stream-format=(string)avc, alignment=(string)au, codec_data=(buffer)0142c01effe1, \
         width=(int)32, height=(int)16"
            .into(),
        "audio/x-vorbis, channels=(int)2, rate=(int)44100, streamheader=(buffer)< 01766f, 03766f, 05766f >"
            .into(),
    ];
    let mut exporter = Exporter::with(GRAY, "encoded=true");
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    reader.buffer();
    for text in all {
        let caps = text.parse::<gst::Caps>().unwrap();
        exporter.event(gst::event::Caps::new(&caps));
        exporter.push(gst::Buffer::from_slice(noise(1, 32 * 16 * 3 / 2)));
        assert_eq!(reader.next_buffer().1, Some(caps), "{text}");
    }
}

#[test]
fn alternate_fields_keep_caps_and_flags() {
    let caps = "video/x-raw(format:Interlaced), format=(string)GRAY8, width=(int)16, height=(int)8, \
                framerate=(fraction)25/1, interlace-mode=(string)alternate";
    let mut exporter = Exporter::new(caps);
    let reader = Reader::new(&exporter.path);
    for flag in [gst_video::VideoBufferFlags::TOP_FIELD, gst_video::VideoBufferFlags::BOTTOM_FIELD] {
        let content = noise(3, GRAY_SIZE / 2);
        let mut buffer = gst::Buffer::from_slice(content.clone());
        buffer.get_mut().unwrap().set_video_flags(flag | gst_video::VideoBufferFlags::INTERLACED);
        exporter.push(buffer);
        let (buffer, arrived, _) = reader.next_buffer();
        assert_eq!(arrived, caps.parse().ok());
        assert!(buffer.video_flags().contains(flag | gst_video::VideoBufferFlags::INTERLACED));
        assert_eq!(bytes(&buffer), content);
    }
}

#[test]
fn timestamps_counters_and_flags_are_delivered() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    let flags = gst::BufferFlags::MARKER | gst::BufferFlags::DELTA_UNIT | gst::BufferFlags::DROPPABLE;
    let media = gst_video::VideoBufferFlags::INTERLACED | gst_video::VideoBufferFlags::TFF;
    let mut arrived = Vec::new();
    for number in 0..3_u64 {
        let mut buffer = gst::Buffer::from_slice([number as u8; GRAY_SIZE]);
        let content = buffer.get_mut().unwrap();
        // Far in the future, so that the start of no reader falls in between.
        content.set_pts(gst::ClockTime::from_seconds(1000) + number * gst::ClockTime::from_mseconds(40));
        content.set_dts(gst::ClockTime::from_seconds(999) + number * gst::ClockTime::from_mseconds(40));
        content.set_duration(gst::ClockTime::from_mseconds(40));
        content.set_offset(100 + number);
        content.set_offset_end(101 + number);
        content.set_flags(flags);
        content.set_video_flags(media);
        exporter.push(buffer);
        arrived.push(reader.buffer());
    }
    for (number, buffer) in arrived.iter().enumerate() {
        assert_eq!(buffer.duration(), Some(gst::ClockTime::from_mseconds(40)));
        assert_eq!((buffer.offset(), buffer.offset_end()), (100 + number as u64, 101 + number as u64));
        assert!(buffer.flags().contains(flags) && buffer.video_flags().contains(media), "{buffer:?}");
        // Both clocks are read for each frame, so steps are exact up to the sampling error.
        let step = |time: Option<gst::ClockTime>| {
            time.unwrap()
                .absdiff(arrived[0].pts().unwrap() + number as u64 * gst::ClockTime::from_mseconds(40))
        };
        assert!(step(buffer.pts()) < gst::ClockTime::from_mseconds(5), "{buffer:?}");
        let earlier = step(buffer.dts()).absdiff(gst::ClockTime::SECOND);
        assert!(earlier < gst::ClockTime::from_mseconds(5), "{buffer:?}");
    }
    let mut timeless = gst::Buffer::from_slice([9; GRAY_SIZE]);
    timeless.get_mut().unwrap().set_pts(None);
    exporter.push(timeless);
    let buffer = reader.buffer();
    assert_eq!((buffer.pts(), buffer.dts(), buffer.duration()), (None, None, None));
    assert_eq!((buffer.offset(), buffer.offset_end()), (u64::MAX, u64::MAX));
}

/// Hundreds of metas do not fit beside the frame and are sent as a separate message (oversized
/// metadata).
#[test]
fn few_and_many_metas_are_delivered() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    gst::meta::CustomMeta::register("frameshare-test-crossing", &[]);
    let ntp = "timestamp/x-ntp".parse::<gst::Caps>().unwrap();
    let time_code = gst_video::ValidVideoTimeCode::new(
        gst::Fraction::new(25, 1),
        None,
        gst_video::VideoTimeCodeFlags::empty(),
        1,
        2,
        3,
        4,
        0,
    );
    let time_code = time_code.unwrap();
    for regions in [0, 1, 500, 2, 800, 0] {
        let mut buffer = gst::Buffer::from_slice(noise(regions.into(), GRAY_SIZE));
        let content = buffer.get_mut().unwrap();
        for number in 0..regions {
            let mut region = gst_video::VideoRegionOfInterestMeta::add(content, "face", (number, 1, 2, 3));
            region.set_id(number as i32);
            region.add_param(gst::Structure::builder("detection").field("confidence", 0.25).build());
        }
        gst_video::VideoTimeCodeMeta::add(content, &time_code);
        gst::ReferenceTimestampMeta::add(content, &ntp, gst::ClockTime::from_seconds(5), None);
        let mut custom = gst::meta::CustomMeta::add(content, "frameshare-test-crossing").unwrap();
        custom.mut_structure().set("n", regions);
        exporter.push(buffer);

        let buffer = reader.buffer();
        assert_eq!(bytes(&buffer), noise(regions.into(), GRAY_SIZE));
        let found = buffer.iter_meta::<gst_video::VideoRegionOfInterestMeta>().collect::<Vec<_>>();
        assert_eq!(found.len(), regions as usize);
        for (number, region) in found.iter().enumerate() {
            assert_eq!((region.id(), region.rect()), (number as i32, (number as u32, 1, 2, 3)));
            assert_eq!(region.param("detection").unwrap().get::<f64>("confidence"), Ok(0.25));
        }
        assert_eq!(buffer.meta::<gst_video::VideoTimeCodeMeta>().unwrap().tc(), time_code);
        let reference = buffer.meta::<gst::ReferenceTimestampMeta>().unwrap();
        assert_eq!((reference.reference(), reference.timestamp().seconds()), (ntp.as_ref(), 5));
        let custom = gst::meta::CustomMeta::from_buffer(&buffer, "frameshare-test-crossing").unwrap();
        assert_eq!(custom.structure().get::<u32>("n"), Ok(regions));
    }
}

const WHOLE: (u32, u32) = (48, 32);
const SHOWN: (u32, u32) = (40, 24);
/// Even, as chroma subsampling requires.
const CROP: (u32, u32) = (6, 4);

/// Returns an image in memory larger than its caps, with a crop meta, and the cropped image in the
/// default layout.
fn cropped(format: gst_video::VideoFormat, seed: u64) -> (gst::Buffer, gst_video::VideoInfo, Vec<u8>) {
    let info =
        |(width, height)| gst_video::VideoInfo::builder(format, width, height).fps((25, 1)).build().unwrap();
    let (whole, shown) = (info(WHOLE), info(SHOWN));
    // The rows are padded as well.
    let strides = whole.stride().iter().map(|stride| stride + 16).collect::<Vec<_>>();
    let mut offsets = Vec::new();
    let mut size = 0;
    for (plane, stride) in strides.iter().enumerate() {
        offsets.push(size);
        size += *stride as usize * if plane == 0 { WHOLE.1 as usize } else { whole.comp_height(1) as usize };
    }
    let mut buffer = gst::Buffer::from_mut_slice(noise(seed, size));
    let flags = gst_video::VideoFrameFlags::empty();
    let content = buffer.get_mut().unwrap();
    gst_video::VideoMeta::add_full(content, flags, format, WHOLE.0, WHOLE.1, &offsets, &strides).unwrap();
    gst_video::VideoCropMeta::add(content, (CROP.0, CROP.1, SHOWN.0, SHOWN.1));
    let picture = visible(&buffer, &shown, CROP);
    (buffer, shown, picture)
}

/// Returns the pixels of an image from (x, y) on.
fn visible(buffer: &gst::Buffer, info: &gst_video::VideoInfo, (x, y): (u32, u32)) -> Vec<u8> {
    let frame = gst_video::VideoFrame::from_buffer_readable(buffer.clone(), info).ok().unwrap();
    let mut picture = Vec::new();
    for plane in 0..info.n_planes() {
        let component = (0..info.n_components() as u8).find(|c| info.comp_plane(*c) == plane).unwrap();
        let format = info.format_info();
        let pixel = info.comp_pstride(component) as usize;
        let row = info.comp_width(component) as usize * pixel;
        let left = (x >> format.w_sub()[component as usize]) as usize * pixel;
        let top = (y >> format.h_sub()[component as usize]) as usize;
        let stride = frame.plane_stride()[plane as usize] as usize;
        for line in 0..info.comp_height(component) as usize {
            let start = (top + line) * stride + left;
            picture.extend_from_slice(&frame.plane_data(plane).unwrap()[start..start + row]);
        }
    }
    picture
}

/// The sink copies the whole memory, so that the crop offsets stay valid.
#[test]
fn crop_is_correct_after_copy_for_every_meta_support() {
    use gst_video::VideoFormat;
    type Metas = &'static [fn(&mut gst::query::Allocation)];
    let readers: [Metas; 3] = [&[], &[video_meta], &[video_meta, crop_meta]];
    for format in [VideoFormat::I420, VideoFormat::Nv12, VideoFormat::Rgba, VideoFormat::Gray8] {
        for (seed, knows) in readers.into_iter().enumerate() {
            let (buffer, info, picture) = cropped(format, seed as u64 + 1);
            let mut exporter = Exporter::new(&info.to_caps().unwrap().to_string());
            let reader = Reader::knowing(&exporter.path, knows);
            exporter.push(buffer);
            let (buffer, caps, _) = reader.next_buffer();
            assert_eq!(caps, info.to_caps().ok());
            let crop = buffer.meta::<gst_video::VideoCropMeta>().map(|crop| crop.rect());
            let place = match crop {
                Some((x, y, width, height)) => {
                    assert_eq!(((x, y), (width, height), knows.len()), (CROP, SHOWN, 2));
                    let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
                    assert_eq!((meta.width(), meta.height()), WHOLE);
                    (x, y)
                }
                None => (0, 0),
            };
            assert_eq!(crop.is_some(), knows.len() == 2, "only readers with crop support get the crop meta");
            assert!(visible(&buffer, &info, place) == picture, "{format} {}", knows.len());
        }
    }
}

/// Negative control: the cropped image differs from that at the corner, where a copy of the size in
/// the caps would start.
#[test]
fn lost_crop_is_detected() {
    let (buffer, info, picture) = {
        init();
        cropped(gst_video::VideoFormat::Nv12, 1)
    };
    assert!(visible(&buffer, &info, (0, 0)) != picture);
}
