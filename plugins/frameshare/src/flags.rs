// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffer flags, and their word in a descriptor.
//!
//! The word has bits of its own, so that a reader need not run the exporter's GStreamer version.
//! Flags about the pipeline instead of the frame are left out: the memory tag and sync-after.

const PAIRS: &[(gst::BufferFlags, u64)] = &[
    (gst::BufferFlags::LIVE, 1 << 0),
    (gst::BufferFlags::DECODE_ONLY, 1 << 1),
    (gst::BufferFlags::DISCONT, 1 << 2),
    (gst::BufferFlags::RESYNC, 1 << 3),
    (gst::BufferFlags::CORRUPTED, 1 << 4),
    (gst::BufferFlags::MARKER, 1 << 5),
    (gst::BufferFlags::HEADER, 1 << 6),
    (gst::BufferFlags::GAP, 1 << 7),
    (gst::BufferFlags::DROPPABLE, 1 << 8),
    (gst::BufferFlags::DELTA_UNIT, 1 << 9),
    (gst::BufferFlags::NON_DROPPABLE, 1 << 10),
];
/// Flags of media libraries (interlacing, multiview) keep their order from this bit on.
const MEDIA_SHIFT: u32 = 32;
/// `GST_BUFFER_FLAG_LAST` and the nine bits above it: the part of the 32 bits for media libraries.
const MEDIA_FIRST: u32 = gst::ffi::GST_BUFFER_FLAG_LAST.trailing_zeros();

/// Returns the word for a buffer's flags.
pub(crate) fn to_word(flags: gst::BufferFlags) -> u64 {
    let common = PAIRS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, bit)| bit).sum::<u64>();
    common | u64::from(flags.bits() >> MEDIA_FIRST) << MEDIA_SHIFT
}

/// Returns the bit that tells readers without GStreamer of a crop.
pub(crate) fn of_crop(buffer: &gst::BufferRef) -> u64 {
    if buffer.meta::<gst_video::VideoCropMeta>().is_some() { frameshare::video::CROPPED } else { 0 }
}

/// Returns the flags of a word. Unknown bits are ignored.
pub(crate) fn from_word(word: u64) -> gst::BufferFlags {
    let common = PAIRS
        .iter()
        .filter(|(_, bit)| word & bit != 0)
        .fold(gst::BufferFlags::empty(), |flags, (flag, _)| flags | *flag);
    let media = ((word >> MEDIA_SHIFT) as u32) << MEDIA_FIRST;
    common | gst::BufferFlags::from_bits_retain(media)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::buffer_flags::all_flags;

    #[test]
    fn every_flag_of_a_frame_survives() {
        for (flag, _) in PAIRS {
            assert_eq!(from_word(to_word(*flag)), *flag);
        }
        let all = PAIRS.iter().fold(gst::BufferFlags::empty(), |all, (flag, _)| all | *flag);
        let interlaced = gst::BufferFlags::from_bits_retain(
            gst_video::ffi::GST_VIDEO_BUFFER_FLAG_INTERLACED | gst_video::ffi::GST_VIDEO_BUFFER_FLAG_TFF,
        );
        assert_eq!(from_word(to_word(all | interlaced)), all | interlaced);
    }

    #[test]
    fn flags_of_media_libraries_are_read_from_a_buffer() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        let media = gst::BufferFlags::from_bits_retain(gst_video::ffi::GST_VIDEO_BUFFER_FLAG_TFF);
        buffer.make_mut().set_flags(media | gst::BufferFlags::LIVE);
        assert!(all_flags(&buffer).contains(media | gst::BufferFlags::LIVE));
    }

    #[test]
    fn pipeline_flags_do_not_cross() {
        assert_eq!(to_word(gst::BufferFlags::TAG_MEMORY | gst::BufferFlags::SYNC_AFTER), 0);
    }
}
