// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps of frames in dma-bufs: `memory:DMABuf` with a `drm-format` (GStreamer 1.24).
//!
//! A drm-format is a fourcc of Linux's `drm_fourcc.h`. A modifier after it names a layout of a
//! device; without one, rows follow each other.

pub(super) const FEATURE: &str = "memory:DMABuf";

/// Fourccs, and the formats that GStreamer has for them (`gst_video_dma_drm_fourcc_to_format`).
const FORMATS: &[(&str, &str)] = &[
    ("NV12", "NV12"),
    ("NV21", "NV21"),
    ("NV16", "NV16"),
    ("NV61", "NV61"),
    ("NV24", "NV24"),
    ("P010", "P010_10LE"),
    ("YU12", "I420"),
    ("YV12", "YV12"),
    ("YU11", "Y41B"),
    ("YU16", "Y42B"),
    ("YU24", "Y444"),
    ("YUYV", "YUY2"),
    ("YVYU", "YVYU"),
    ("UYVY", "UYVY"),
    ("VYUY", "VYUY"),
    ("AYUV", "VUYA"),
    ("Y210", "Y210"),
    ("Y410", "Y410"),
    ("XR24", "BGRx"),
    ("AR24", "BGRA"),
    ("XB24", "RGBx"),
    ("AB24", "RGBA"),
    ("RX24", "xBGR"),
    ("RA24", "ABGR"),
    ("BX24", "xRGB"),
    ("BA24", "ARGB"),
    ("RG24", "BGR"),
    ("BG24", "RGB"),
    ("RG16", "RGB16"),
    ("BG16", "BGR16"),
];

/// The caps of frames in dma-bufs whose rows follow each other.
pub(super) fn linear() -> gst::Caps {
    gst_video::VideoCapsBuilder::new()
        .features([FEATURE])
        .field("format", "DMA_DRM")
        .field("drm-format", gst::List::new(FORMATS.iter().map(|(fourcc, _)| *fourcc)))
        .build()
}

/// Returns whether frames are in dma-bufs, by their caps.
pub(super) fn is_drm(caps: &gst::CapsRef) -> bool {
    caps.features(0).is_some_and(|features| features.contains(FEATURE))
}

/// Returns the caps of the same frames without the kind of memory; none if their layout is a
/// modifier's, or the fourcc unknown.
pub(super) fn plain(caps: &gst::CapsRef) -> Option<gst::Caps> {
    let of = caps.structure(0).filter(|of| of.get::<&str>("format") == Ok("DMA_DRM"))?;
    let format = format_of(of.get::<&str>("drm-format").ok()?)?;
    let mut structure = of.to_owned();
    structure.remove_field("drm-format");
    structure.set("format", format);
    let mut features = caps.features(0)?.to_owned();
    features.remove(FEATURE);
    Some([(structure, features)].into_iter().collect())
}

/// The format of a drm-format without a modifier, or with that of linear layouts.
fn format_of(drm_format: &str) -> Option<&'static str> {
    let (fourcc, modifier) = drm_format.split_once(':').unwrap_or((drm_format, "0x0"));
    let is_linear = u64::from_str_radix(modifier.strip_prefix("0x")?, 16) == Ok(0);
    FORMATS.iter().find(|(known, _)| is_linear && *known == fourcc).map(|(_, format)| *format)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gst_video::VideoFormat;

    fn plain_text(drm_format: &str) -> Option<String> {
        let text = format!(
            "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format={drm_format}, width=64, height=48, framerate=30/1"
        );
        plain(&text.parse::<gst::Caps>().unwrap()).map(|caps| caps.to_string())
    }

    #[test]
    fn linear_frames_have_plain_caps() {
        gst::init().unwrap();
        for drm_format in ["YUYV", "YUYV:0x0", "YUYV:0x0000000000000000"] {
            let caps: gst::Caps = plain_text(drm_format).unwrap().parse().unwrap();
            let expected = "video/x-raw, format=YUY2, width=64, height=48, framerate=30/1";
            assert!(caps.is_strictly_equal(&expected.parse::<gst::Caps>().unwrap()), "{caps}");
        }
    }

    #[test]
    fn frames_with_modifier_or_unknown_format_have_none() {
        gst::init().unwrap();
        for drm_format in ["NV12:0x0100000000000002", "NV99", "NV12:", "NV12:0", "NV12:0xzz"] {
            assert_eq!(plain_text(drm_format), None, "{drm_format}");
        }
    }

    #[test]
    fn formats_are_those_of_gstreamer_and_linear_caps_name_each() {
        gst::init().unwrap();
        let caps = linear();
        for (fourcc, format) in FORMATS {
            assert_ne!(VideoFormat::from_string(format), VideoFormat::Unknown, "{format}");
            let offered = format!(
                "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format={fourcc}, width=64, height=48, framerate=30/1"
            );
            assert!(offered.parse::<gst::Caps>().unwrap().is_subset(&caps), "{fourcc}");
        }
    }
}
