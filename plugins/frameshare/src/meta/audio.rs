// SPDX-License-Identifier: MIT OR Apache-2.0

//! `GstAudioMeta` and `GstAudioClippingMeta`.
//!
//! Non-interleaved audio cannot be mapped without its `GstAudioMeta`, and decoders of Opus cut off
//! priming and padding by `GstAudioClippingMeta`. GStreamer 1.22 serializes neither, later versions
//! only the first, and parse it only if a library has registered it already.
//!
//! GStreamer's own functions assert on values that do not fit: [`Audio::is_sound`] and
//! [`Audio::add`] check first.

use gst_audio::{AudioChannelPosition, AudioClippingMeta, AudioFormat, AudioInfo, AudioLayout, AudioMeta};
use serde::{Deserialize, Serialize};

/// Maximum number of channels that a `GstAudioInfo` has positions for.
const MAX_CHANNELS: u32 = 64;

/// One of the two metas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Audio {
    Planes(Planes),
    /// Samples to cut off at the start and at the end.
    Clipping {
        start: u32,
        end: u32,
    },
}

/// The layout of a buffer's channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Planes {
    /// GStreamer's name of the sample format.
    format: String,
    rate: u32,
    channels: u32,
    /// The channels' positions as a mask; none if they have no positions.
    mask: Option<u64>,
    is_interleaved: bool,
    /// Samples per channel.
    samples: u64,
    /// Offsets in bytes from the start of the buffer to each channel; empty if they are
    /// interleaved.
    offsets: Vec<u64>,
}

impl Audio {
    /// Returns the form of a meta; none for a meta of another type, or for values that no element
    /// of GStreamer writes.
    pub fn of(meta: &gst::MetaRef<'_, gst::Meta>) -> Option<Self> {
        if let Some(audio) = meta.downcast_ref::<AudioMeta>() {
            return Planes::of(audio).map(Self::Planes);
        }
        let clipping = meta.downcast_ref::<AudioClippingMeta>()?;
        // opusdec aborts on any other unit than samples.
        let samples = |value| match value {
            gst::GenericFormattedValue::Default(Some(samples)) => u32::try_from(*samples).ok(),
            _ => None,
        };
        Some(Self::Clipping { start: samples(clipping.start())?, end: samples(clipping.end())? })
    }

    /// Returns whether the values are consistent.
    pub fn is_sound(&self) -> bool {
        match self {
            Self::Planes(planes) => planes.info().is_some(),
            Self::Clipping { .. } => true,
        }
    }

    /// Adds the meta to a buffer; false if it does not fit the buffer.
    pub fn add(&self, buffer: &mut gst::BufferRef) -> bool {
        match self {
            Self::Planes(planes) => planes.add(buffer),
            Self::Clipping { start, end } => {
                let samples = |count: u32| gst::format::Default::from_u64(count.into());
                AudioClippingMeta::add(buffer, samples(*start), samples(*end));
                true
            }
        }
    }
}

impl Planes {
    fn of(meta: &AudioMeta) -> Option<Self> {
        let info = meta.info();
        let positions = info.positions().unwrap_or_default();
        let is_interleaved = info.layout() == AudioLayout::Interleaved;
        let offsets = if is_interleaved { &[] } else { meta.offsets() };
        let offsets = offsets.iter().map(|offset| u64::try_from(*offset).ok()).collect::<Option<_>>()?;
        Some(Self {
            format: info.format().to_str().to_string(),
            rate: info.rate(),
            channels: info.channels(),
            mask: AudioChannelPosition::positions_to_mask(positions, true).ok().filter(|mask| *mask != 0),
            is_interleaved,
            samples: u64::try_from(meta.samples()).ok()?,
            offsets,
        })
    }

    /// Returns the description of the audio; none if the values describe none.
    fn info(&self) -> Option<AudioInfo> {
        let is_name = self.format.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let format = is_name.then(|| self.format.parse::<AudioFormat>().ok()).flatten()?;
        let is_raw = !matches!(format, AudioFormat::Unknown | AudioFormat::Encoded);
        let fits = (1..=MAX_CHANNELS).contains(&self.channels) && (1..=i32::MAX as u32).contains(&self.rate);
        if !is_raw || !fits {
            return None;
        }
        let mut positions = vec![AudioChannelPosition::None; self.channels as usize];
        match self.mask {
            Some(mask) if mask.count_ones() != self.channels => return None,
            Some(mask) => AudioChannelPosition::positions_from_mask(mask, &mut positions).ok()?,
            None if self.channels == 1 => positions[0] = AudioChannelPosition::Mono,
            None => {}
        }
        let layout = if self.is_interleaved { AudioLayout::Interleaved } else { AudioLayout::NonInterleaved };
        let builder = AudioInfo::builder(format, self.rate, self.channels).layout(layout);
        builder.positions(&positions).build().ok()
    }

    fn add(&self, buffer: &mut gst::BufferRef) -> bool {
        let Some(info) = self.info() else { return false };
        let number = |value: u64| usize::try_from(value).ok();
        let Some(samples) = number(self.samples) else { return false };
        let Some(offsets) = self.offsets.iter().map(|offset| number(*offset)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        self.fits(&info, buffer.size()) && AudioMeta::add(buffer, &info, samples, &offsets).is_ok()
    }

    /// Returns whether all channels lie in a buffer of `size` bytes; `AudioMeta::add` detects
    /// overlaps.
    fn fits(&self, info: &AudioInfo, size: usize) -> bool {
        let width = u64::from(info.width() / 8);
        let Some(plane) = self.samples.checked_mul(width) else { return false };
        let size = size as u64;
        if self.is_interleaved {
            let frames = plane.checked_mul(self.channels.into());
            return self.offsets.is_empty() && frames.is_some_and(|bytes| bytes <= size);
        }
        self.offsets.len() == self.channels as usize
            && self.offsets.iter().all(|offset| offset.checked_add(plane).is_some_and(|end| end <= size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes() -> Planes {
        Planes {
            format: "F32LE".into(),
            rate: 48000,
            channels: 2,
            mask: Some(3),
            is_interleaved: false,
            samples: 10,
            offsets: vec![0, 40],
        }
    }

    fn added(planes: &Planes, size: usize) -> Option<gst::Buffer> {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::with_size(size).unwrap();
        planes.add(buffer.make_mut()).then_some(buffer)
    }

    #[test]
    fn audio_meta_keeps_all_values() {
        for (channels, mask) in [(1, None), (2, Some(3)), (2, None), (6, Some(0x3f)), (6, None)] {
            let offsets = (0..channels).map(|channel| u64::from(channel) * 40).collect();
            let one = Planes { channels, mask, offsets, ..planes() };
            let buffer = added(&one, 240).unwrap();
            let meta = buffer.meta::<AudioMeta>().unwrap();
            assert_eq!(Planes::of(&meta), Some(one));
        }
    }

    #[test]
    fn interleaved_audio_meta_has_no_offsets() {
        let one = Planes { is_interleaved: true, offsets: vec![], ..planes() };
        let buffer = added(&one, 80).unwrap();
        assert_eq!(Planes::of(&buffer.meta::<AudioMeta>().unwrap()), Some(one));
    }

    #[test]
    fn impossible_audio_metas_are_refused() {
        assert!(added(&planes(), 80).is_some(), "the control");
        let most = u64::MAX;
        for (what, wrong, size) in [
            ("beyond the buffer", planes(), 79),
            ("overlapping", Planes { offsets: vec![0, 39], ..planes() }, 1000),
            ("far beyond", Planes { offsets: vec![0, most], ..planes() }, 1000),
            ("too few planes", Planes { offsets: vec![0], ..planes() }, 1000),
            ("no planes", Planes { offsets: vec![], ..planes() }, 1000),
            ("more than there is", Planes { samples: most, ..planes() }, 1000),
            ("more than 64 bits", Planes { samples: most / 4 + 2, ..planes() }, 1000),
            ("no channels", Planes { channels: 0, offsets: vec![], ..planes() }, 1000),
            ("too many", Planes { channels: 65, offsets: vec![0; 65], samples: 0, ..planes() }, 1000),
            ("unlike the mask", Planes { mask: Some(7), ..planes() }, 1000),
            ("a mask of all", Planes { mask: Some(most), ..planes() }, 1000),
            ("no format", Planes { format: "no format".into(), ..planes() }, 1000),
            ("encoded", Planes { format: "ENCODED".into(), ..planes() }, 1000),
            ("unknown", Planes { format: "UNKNOWN".into(), ..planes() }, 1000),
            ("no rate", Planes { rate: 0, ..planes() }, 1000),
            ("negative rate", Planes { rate: u32::MAX, ..planes() }, 1000),
            ("interleaved with planes", Planes { is_interleaved: true, ..planes() }, 1000),
        ] {
            assert!(added(&wrong, size).is_none(), "{what}");
        }
    }
}
