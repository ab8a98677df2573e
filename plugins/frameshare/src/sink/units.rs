// SPDX-License-Identifier: MIT OR Apache-2.0

//! Units of encoded video: which buffers start a group of pictures, and which depend on others.

use frameshare::exporter::Unit;

/// Family of media.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Family {
    /// Every frame is independent: raw video, audio, anything else.
    #[default]
    Independent,
    /// Images: each is a key unit.
    Images,
    /// Encoded video, and containers of it.
    Video,
}

/// Parts of a key unit so far.
#[derive(Clone, Copy, Debug)]
struct KeyParts {
    pts: Option<gst::ClockTime>,
    dts: Option<gst::ClockTime>,
    /// The last part is marked as a header.
    ends_with_header: bool,
}

/// The units of a stream, from buffer to buffer.
#[derive(Debug, Default)]
pub(super) struct Units {
    family: Family,
    /// Set while the last buffer belongs to a key unit.
    key: Option<KeyParts>,
    /// Buffers are parts of frames, and no key unit has begun yet: those before it, such as the
    /// parameter sets that it needs, have the flag DELTA_UNIT.
    is_before_key: bool,
}

impl Units {
    /// The units of a stream with these caps.
    pub(super) fn of(caps: &gst::CapsRef) -> Self {
        let structure = caps.structure(0);
        let name = structure.map_or("", |structure| structure.name().as_str());
        let alignment = structure.and_then(|structure| structure.get::<&str>("alignment").ok());
        let family = match name {
            "video/x-raw" | "video/x-bayer" => Family::Independent,
            _ if name.starts_with("image/") => Family::Images,
            _ if name.starts_with("video/") => Family::Video,
            _ => Family::Independent,
        };
        Self { family, key: None, is_before_key: alignment == Some("nal") }
    }

    /// Ends the present unit: the next buffer follows a discontinuity.
    pub(super) fn reset(&mut self) {
        self.key = None;
    }

    /// Returns the dependency of the next buffer.
    ///
    /// Parsers send the parts of a frame in separate buffers if asked to, and some encoders send
    /// headers alone. A part that follows the first of a key unit depends on it: it has the same
    /// time or none, or it follows a header without a time.
    pub(super) fn next(&mut self, buffer: &gst::BufferRef) -> Unit {
        if self.family == Family::Independent {
            return Unit::Whole;
        }
        // Encoders of images do not all clear the flag.
        if self.family == Family::Video && buffer.flags().contains(gst::BufferFlags::DELTA_UNIT) {
            self.key = None;
            return if self.is_before_key { Unit::Whole } else { Unit::Delta };
        }
        self.is_before_key = false;
        let (pts, dts) = (buffer.pts(), buffer.dts());
        let is_part = |key: &KeyParts| match key.pts {
            Some(_) => pts.is_none() || pts == key.pts,
            None => key.ends_with_header || (pts.is_none() && dts.is_some() && dts == key.dts),
        };
        let begun = self.key.filter(|key| self.family == Family::Video && is_part(key));
        let ends_with_header = buffer.flags().contains(gst::BufferFlags::HEADER);
        self.key = Some(KeyParts { pts: begun.and_then(|key| key.pts).or(pts), dts, ends_with_header });
        if begun.is_some() { Unit::Delta } else { Unit::Key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Unit::{Delta, Key, Whole};
    use gst::BufferFlags;

    /// Returns the units of buffers with these times in ms and flags.
    fn units(caps: &str, buffers: &[(Option<u64>, BufferFlags)]) -> Vec<Unit> {
        gst::init().unwrap();
        let mut units = Units::of(&caps.parse::<gst::Caps>().unwrap());
        let unit = |(pts, flags): &(Option<u64>, BufferFlags)| {
            let mut buffer = gst::Buffer::new();
            let content = buffer.get_mut().unwrap();
            content.set_pts(pts.map(gst::ClockTime::from_mseconds));
            content.set_flags(*flags);
            units.next(&buffer)
        };
        buffers.iter().map(unit).collect()
    }

    const NONE: BufferFlags = BufferFlags::empty();
    const DELTA: BufferFlags = BufferFlags::DELTA_UNIT;
    const HEADER: BufferFlags = BufferFlags::HEADER;

    #[test]
    fn raw_video_and_audio_have_no_units() {
        for caps in ["video/x-raw", "video/x-raw(memory:CUDAMemory)", "video/x-bayer", "audio/x-opus"] {
            assert_eq!(units(caps, &[(Some(0), NONE), (Some(1), DELTA)]), [Whole, Whole], "{caps}");
        }
    }

    #[test]
    fn frames_without_delta_flag_are_key_units() {
        let buffers = [(Some(0), HEADER), (Some(1), DELTA), (Some(2), NONE), (Some(3), HEADER)];
        assert_eq!(units("video/x-h264", &buffers), [Key, Delta, Key, Key]);
        assert_eq!(units("image/jpeg", &[(Some(0), NONE), (Some(0), NONE)]), [Key, Key]);
        // Nothing is known of frames without times.
        assert_eq!(units("video/x-prores", &[(None, NONE), (None, NONE)]), [Key, Key]);
    }

    /// `pngenc` of GStreamer 1.22 sets the flag on all, and `h264parse alignment=nal` on parameter
    /// sets.
    #[test]
    fn images_and_parts_before_first_key_are_no_delta_units() {
        assert_eq!(units("image/png", &[(Some(0), DELTA), (Some(1), DELTA)]), [Key, Key]);
        let parts = [(Some(0), DELTA), (Some(0), DELTA), (Some(0), NONE), (Some(1), DELTA)];
        assert_eq!(units("video/x-h264,alignment=nal", &parts), [Whole, Whole, Key, Delta]);
        assert_eq!(units("video/x-h264,alignment=au", &parts), [Delta, Delta, Key, Delta]);
    }

    #[test]
    fn parts_with_one_decoding_time_belong_together() {
        gst::init().unwrap();
        let mut units = Units::of(&"video/x-h264".parse::<gst::Caps>().unwrap());
        let mut unit = |dts| {
            let mut buffer = gst::Buffer::new();
            buffer.get_mut().unwrap().set_dts(gst::ClockTime::from_mseconds(dts));
            units.next(&buffer)
        };
        assert_eq!([unit(1), unit(1), unit(1), unit(2)], [Key, Delta, Delta, Key]);
    }

    #[test]
    fn parts_belong_to_their_key_unit() {
        let slices = [(Some(0), HEADER), (None, HEADER), (Some(0), NONE), (None, NONE), (Some(1), DELTA)];
        assert_eq!(units("video/x-h264", &slices), [Key, Delta, Delta, Delta, Delta]);
        let headers = [(None, HEADER), (None, HEADER), (Some(5), NONE), (Some(6), NONE), (None, HEADER)];
        assert_eq!(units("video/x-theora", &headers), [Key, Delta, Delta, Key, Delta]);
        let key = [(Some(1), DELTA), (Some(2), NONE), (Some(3), DELTA), (Some(3), NONE)];
        assert_eq!(units("video/x-h264", &key), [Delta, Key, Delta, Key]);
    }
}
