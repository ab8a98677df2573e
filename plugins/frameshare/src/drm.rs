// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps of frames in dma-bufs: `memory:DMABuf` with a `drm-format` (GStreamer 1.24).
//!
//! A drm-format is a fourcc of Linux's `drm_fourcc.h`. A modifier after it names a layout of a
//! device, such as tiles or compression; without one, rows follow each other.

pub(crate) const FEATURE: &str = "memory:DMABuf";

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

/// Frames in dma-bufs, as their caps describe them.
#[derive(Debug)]
pub(crate) struct DrmFrames {
    /// The caps of the same pictures in rows, in system memory.
    pub picture: gst::Caps,
    /// Devices alone know the layout in memory: the CPU cannot copy the frames.
    pub has_device_layout: bool,
}

impl DrmFrames {
    /// Returns none for other caps, and for those of an unknown fourcc.
    pub(crate) fn of(caps: &gst::CapsRef) -> Option<Self> {
        let of = caps.structure(0).filter(|of| is_drm(caps) && of.get::<&str>("format") == Ok("DMA_DRM"))?;
        let drm_format = of.get::<&str>("drm-format").ok()?;
        let (fourcc, modifier) = drm_format.split_once(':').unwrap_or((drm_format, "0x0"));
        let modifier = u64::from_str_radix(modifier.strip_prefix("0x")?, 16).ok()?;
        let (_, format) = FORMATS.iter().find(|(known, _)| *known == fourcc)?;
        let mut structure = of.to_owned();
        structure.remove_field("drm-format");
        structure.set("format", *format);
        let mut features = caps.features(0)?.to_owned();
        features.remove(FEATURE);
        let picture = [(structure, features)].into_iter().collect();
        Some(Self { picture, has_device_layout: modifier != LINEAR })
    }
}

/// `DRM_FORMAT_MOD_LINEAR`.
const LINEAR: u64 = 0;

/// The caps of frames in dma-bufs whose rows follow each other.
pub(crate) fn linear() -> gst::Caps {
    drm().field("drm-format", gst::List::new(FORMATS.iter().map(|(fourcc, _)| *fourcc))).build()
}

/// The caps of frames in dma-bufs of any layout.
pub(crate) fn any_layout() -> gst::Caps {
    drm().build()
}

fn drm() -> gst_video::VideoCapsBuilder<gst::caps::HasFeatures> {
    gst_video::VideoCapsBuilder::new().features([FEATURE]).field("format", "DMA_DRM")
}

/// Returns whether frames are in dma-bufs, by their caps.
pub(crate) fn is_drm(caps: &gst::CapsRef) -> bool {
    caps.features(0).is_some_and(|features| features.contains(FEATURE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gst_video::VideoFormat;

    fn of(drm_format: &str) -> Option<DrmFrames> {
        let text = format!(
            "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format={drm_format}, width=64, height=48, framerate=30/1"
        );
        DrmFrames::of(&text.parse::<gst::Caps>().unwrap())
    }

    #[test]
    fn pictures_have_plain_caps_and_modifiers_device_layout() {
        gst::init().unwrap();
        for (drm_format, has_device_layout) in [
            ("YUYV", false),
            ("YUYV:0x0", false),
            ("YUYV:0x0000000000000000", false),
            ("YUYV:0x1", true),
            ("YUYV:0x0100000000000002", true),
        ] {
            let frames = of(drm_format).unwrap();
            assert_eq!(frames.has_device_layout, has_device_layout, "{drm_format}");
            let expected = "video/x-raw, format=YUY2, width=64, height=48, framerate=30/1";
            let expected: gst::Caps = expected.parse().unwrap();
            assert!(frames.picture.is_strictly_equal(&expected), "{}", frames.picture);
        }
    }

    #[test]
    fn unknown_formats_have_none() {
        gst::init().unwrap();
        for drm_format in ["NV99", "NV99:0x1", "NV12:", "NV12:0", "NV12:0xzz", "NV12:0x10000000000000000"] {
            assert!(of(drm_format).is_none(), "{drm_format}");
        }
        let list = "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format={NV12,NV21}, width=64, height=48";
        assert!(DrmFrames::of(&list.parse::<gst::Caps>().unwrap()).is_none());
        let plain = "video/x-raw, format=DMA_DRM, drm-format=NV12, width=64, height=48";
        assert!(DrmFrames::of(&plain.parse::<gst::Caps>().unwrap()).is_none());
    }

    #[test]
    fn formats_are_those_of_gstreamer_and_linear_caps_name_each() {
        gst::init().unwrap();
        let caps = linear();
        for (fourcc, format) in FORMATS {
            assert_ne!(VideoFormat::from_string(format), VideoFormat::Unknown, "{format}");
            let offered = |drm_format: &str| {
                let text = format!(
                    "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format={drm_format}, width=64, height=48, framerate=30/1"
                );
                text.parse::<gst::Caps>().unwrap()
            };
            assert!(offered(fourcc).is_subset(&caps), "{fourcc}");
            let tiled = offered(&format!("{fourcc}:0x0100000000000002"));
            assert!(!tiled.is_subset(&caps) && tiled.is_subset(&any_layout()), "{fourcc}");
        }
    }
}
