// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps that the sink accepts.

use crate::drm::{self, DrmFrames};
use gst::prelude::*;
use gst_video::VideoFormat;

/// Families of media besides raw video and audio: encoded media, containers and metadata, and the
/// frames of Bayer sensors.
const FAMILIES: &[&str] = &[
    "video/x-h263",
    "video/x-h264",
    "video/x-h265",
    "video/x-h266",
    "video/x-av1",
    "video/x-vp8",
    "video/x-vp9",
    "video/x-theora",
    "video/x-dirac",
    "video/x-prores",
    "video/x-dnxhd",
    "video/x-ffv",
    "video/x-dv",
    "video/x-wmv",
    "video/x-msmpeg",
    "video/x-flash-video",
    "video/x-cavs",
    "video/x-bayer",
    "video/mpeg",
    "video/mpegts",
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/x-jpc",
    "image/x-j2c",
    "image/x-jxsc",
    "audio/mpeg",
    "audio/x-opus",
    "audio/x-vorbis",
    "audio/x-flac",
    "audio/x-speex",
    "audio/x-ac3",
    "audio/x-eac3",
    "audio/x-dts",
    "audio/x-alac",
    "audio/x-alaw",
    "audio/x-mulaw",
    "audio/x-adpcm",
    "audio/x-wma",
    "audio/x-sbc",
    "audio/AMR",
    "audio/AMR-WB",
    "audio/G722",
    "audio/G723",
    "audio/G726",
    "audio/G729",
    "meta/x-klv",
];

/// Returns whether media of this type is raw.
pub(super) fn is_raw(media: &str) -> bool {
    matches!(media, "video/x-raw" | "video/x-bayer" | "audio/x-raw")
}

/// Returns the type of media that is shared with `encoded` only, if it is of a listed family.
pub(super) fn encoded_media(caps: &gst::CapsRef) -> Option<&'static str> {
    let media = caps.structure(0)?.name();
    FAMILIES.iter().copied().find(|family| *family == media.as_str() && !is_raw(family))
}

/// The raw media among these caps.
pub(super) fn raw_of(caps: &gst::CapsRef) -> gst::Caps {
    let raw = caps.iter_with_features().filter(|(structure, _)| is_raw(structure.name()));
    raw.map(|(structure, features)| (structure.to_owned(), features.to_owned())).collect()
}

/// Formats that upstream uses if it has the choice, best first: compact ones that most elements
/// take.
const PREFERRED: &[VideoFormat] = &[
    VideoFormat::Nv12,
    VideoFormat::I420,
    VideoFormat::Rgb,
    VideoFormat::Bgr,
    VideoFormat::Rgbx,
    VideoFormat::Bgrx,
    VideoFormat::Xrgb,
    VideoFormat::Xbgr,
    VideoFormat::Rgba,
    VideoFormat::Bgra,
    VideoFormat::Argb,
    VideoFormat::Abgr,
];

/// Raw video of every format, with these features. Each preferred format has a structure of its
/// own, and so have those with 8 bits a component: elements between a source and the sink order the
/// formats of one structure as the source does, which is by quality.
fn raw_video(features: &[&str]) -> impl Iterator<Item = gst::Caps> {
    let others = VideoFormat::iter_raw().filter(|format| !PREFERRED.contains(format));
    let is_deep = |format: &VideoFormat| {
        gst_video::VideoFormatInfo::from_format(*format).depth().iter().any(|bits| *bits > 8)
    };
    let (deep, others) = others.partition(is_deep);
    let groups = PREFERRED.iter().map(|format| vec![*format]).chain([others, deep]);
    let features = gst::CapsFeatures::new(features.iter().copied());
    groups.map(move |formats| {
        let builder = gst_video::VideoCapsBuilder::new();
        let mut caps =
            if let [format] = formats[..] { builder.format(format) } else { builder.format_list(formats) }
                .build();
        if !features.is_empty() {
            caps.make_mut().set_features_simple(Some(features.clone()));
        }
        caps
    })
}

/// The caps of the pad template: raw video in CUDA memory first.
pub(super) fn template() -> gst::Caps {
    let of =
        |features: &[&str]| gst_video::VideoCapsBuilder::new().features(features.iter().copied()).build();
    let mut caps = of(&[gst_cuda::CAPS_FEATURE]);
    let content = caps.make_mut();
    content.append(of(&[]));
    content.append(of(FIELDS));
    content.append(drm::linear());
    content.append(other_media());
    content.append(drm::any_layout());
    caps
}

/// Accepted caps without `any-caps`, in order of preference: CUDA memory first, if there is a GPU.
pub(super) fn accepted(has_gpu: bool) -> gst::Caps {
    let memories: &[&[&str]] = &[&[gst_cuda::CAPS_FEATURE], &[], FIELDS];
    let memories = &memories[usize::from(!has_gpu)..];
    let mut caps: gst::Caps = memories.iter().flat_map(|features| raw_video(features)).collect();
    let content = caps.make_mut();
    content.append(drm::linear());
    content.append(other_media());
    // Fewer readers can have them: see `require_dma_bufs`.
    content.append(drm::any_layout());
    caps
}

/// The accepted caps that upstream can send: media and memories in upstream's order, formats in the
/// sink's, since upstream's order is often by quality. Layouts of devices come last.
pub(super) fn preferred(accepted: &gst::Caps, sent: &gst::CapsRef) -> gst::Caps {
    let theirs = sent.intersect_with_mode(accepted, gst::CapsIntersectMode::First);
    let ours = accepted.intersect_with_mode(sent, gst::CapsIntersectMode::First);
    let rows = drm::linear();
    let place = |(structure, features): &(&gst::StructureRef, &gst::CapsFeaturesRef)| {
        let alone: gst::Caps = [((*structure).to_owned(), (*features).to_owned())].into_iter().collect();
        let has_device_layout = drm::is_drm(&alone) && !alone.is_subset(&rows);
        let is_same = |(other, of): (&gst::StructureRef, &gst::CapsFeaturesRef)| {
            other.name() == structure.name() && of.is_equal(features)
        };
        (has_device_layout, theirs.iter_with_features().position(is_same))
    };
    let mut all: Vec<_> = ours.iter_with_features().collect();
    all.sort_by_key(place);
    all.into_iter().map(|(structure, features)| (structure.to_owned(), features.to_owned())).collect()
}

/// The feature of fields of interlaced video in separate buffers.
const FIELDS: &[&str] = &["format:Interlaced"];

/// Media besides raw video.
fn other_media() -> gst::Caps {
    let families = ["audio/x-raw"].iter().chain(FAMILIES);
    families.map(|family| gst::Caps::new_empty_simple(*family)).collect()
}

/// The error for caps whose text readers do not accept.
pub(super) fn unreadable(caps: &str) -> gst::ErrorMessage {
    gst::error_msg!(
        gst::StreamError::WrongType,
        (
            "Caps {} cannot be shared: readers take fixed caps of numbers, fractions, texts, buffers and arrays of these; \
             remove other fields with capssetter",
            caps
        )
    )
}

/// GstBaseSink drops buffers that have only a DTS before the segment, as all parts of an encoded
/// frame but the first have. Without any time they are sent at once, after the first part.
pub(super) fn keep_timeless(pad: &gst::Pad, info: &mut gst::PadProbeInfo<'_>) -> gst::PadProbeReturn {
    if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data
        && let (None, Some(dts)) = (buffer.pts(), buffer.dts())
        && let Some(segment) = pad.sticky_event::<gst::event::Segment>(0)
        && let Some(segment) = segment.segment().downcast_ref::<gst::ClockTime>()
        && segment.start().is_some_and(|start| dts < start)
    {
        buffer.make_mut().set_dts(None);
    }
    gst::PadProbeReturn::Ok
}

/// The element that converts frames from a kind of memory that cannot be shared.
fn converter(feature: &str) -> &'static str {
    match feature {
        "memory:GLMemory" => "gldownload",
        "memory:NVMM" => "nvvideoconvert",
        "memory:VAMemory" | "memory:VASurface" => "vapostproc",
        drm::FEATURE => "vapostproc or glupload ! gldownload",
        "memory:VulkanImage" | "memory:VulkanBuffer" => "vulkandownload",
        "meta:GstVideoOverlayComposition" => "overlaycomposition or videoconvert",
        _ => "the converter of that kind of memory",
    }
}

/// Returns whether frames are, or may be, in CUDA memory.
pub(super) fn is_cuda(caps: &gst::CapsRef) -> bool {
    caps.iter_with_features().any(|(_, features)| names_cuda(features))
}

/// Returns whether features include CUDA memory; ANY does as well.
pub(super) fn names_cuda(features: &gst::CapsFeaturesRef) -> bool {
    features.contains(gst_cuda::CAPS_FEATURE)
}

/// The caps of the same frames in system memory, or in the memory that each reader gets.
pub(super) fn without_cuda(caps: &gst::CapsRef) -> gst::Caps {
    let mut plain = caps.to_owned();
    for (_, features) in plain.make_mut().iter_with_features_mut() {
        features.remove(gst_cuda::CAPS_FEATURE);
    }
    plain
}

/// Raw video in any kind of memory. The sink names it only while it is being linked, so that a
/// pipeline with memory that cannot be shared fails with advice, not with "could not link".
pub(super) fn any_memory() -> gst::Caps {
    gst::Caps::builder("video/x-raw").any_features().build()
}

/// Refuses frames in memory that cannot be shared; the error names the element that converts them.
pub(super) fn check_memory(caps: &gst::CapsRef) -> Result<(), gst::ErrorMessage> {
    let features = caps.features(0);
    let mut features = features.iter().flat_map(|features| features.iter());
    let foreign = features.find(|name| {
        name.as_str() != gst::CAPS_FEATURE_MEMORY_SYSTEM_MEMORY
            && name.as_str() != gst_cuda::CAPS_FEATURE
            && !name.starts_with("format:")
            && (name.as_str() != drm::FEATURE || DrmFrames::of(caps).is_none())
    });
    match foreign {
        None => Ok(()),
        Some(name) if name.as_str() == drm::FEATURE => Err(gst::error_msg!(
            gst::CoreError::Negotiation,
            (
                "Frames in dma-bufs with these caps cannot be shared, since their layout is unknown: {}; put {} before \
                 framesharesink",
                caps,
                converter(name)
            )
        )),
        Some(name) => Err(gst::error_msg!(
            gst::CoreError::Negotiation,
            ("Frames with {} cannot be shared: put {} before framesharesink", name, converter(name))
        )),
    }
}

/// The error for frames that cannot be copied, if properties ask for copies.
pub(super) fn not_copyable(caps: &gst::CapsRef) -> gst::ErrorMessage {
    gst::error_msg!(
        gst::ResourceError::Settings,
        (
            "Frames with these caps cannot be copied, since devices alone know their layout: {}; use memory=auto and \
             export=auto, or put {} before framesharesink",
            caps,
            converter(drm::FEATURE)
        )
    )
}

/// The error for frames in CUDA memory without a GPU, for the reason `why`.
pub(super) fn without_gpu(why: &str) -> gst::ErrorMessage {
    gst::error_msg!(
        gst::CoreError::Negotiation,
        ("Frames in CUDA memory cannot be shared here: {}; or put cudadownload before framesharesink", why)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As decoders of VA-API offer frames.
    #[test]
    fn layouts_of_devices_are_preferred_last() {
        gst::init().unwrap();
        let best = |sent: &str| {
            let sent: gst::Caps = sent.parse().unwrap();
            let best = preferred(&accepted(false), &sent);
            (best.size(), best.structure(0).unwrap().to_string(), drm::is_drm(&best))
        };
        let tiled = "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format=NV12:0x0100000000000002";
        let (count, _, is_drm) = best(&format!("{tiled}; video/x-raw, format=NV12"));
        assert_eq!((count, is_drm), (2, false));
        let either = "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format={NV12:0x0100000000000002, NV12}";
        let (count, first, is_drm) = best(&format!("{either}; video/x-raw, format=NV12"));
        assert!(count == 3 && is_drm && !first.contains("NV12:"), "{first}");
        let (_, first, is_drm) = best(tiled);
        assert!(is_drm && first.contains("NV12:0x0100000000000002"), "{first}");
    }
}
