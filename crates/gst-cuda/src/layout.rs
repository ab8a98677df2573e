// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory layout of video frames on a GPU.

use gst_video::{VideoFormat, VideoInfo};

/// Returns the layout used by the library's own allocators: all planes have the same pitch, a
/// multiple of `alignment`, and follow each other without gaps. The library's CPU mapping and the
/// kernels of 1.24 rely on it.
///
/// `None` for formats unknown to the library.
#[must_use]
pub fn of(info: &VideoInfo, alignment: u32) -> Option<VideoInfo> {
    let heights = plane_heights(info)?;
    let pitch = usize::try_from(*info.stride().first()?).ok()?;
    let pitch = pitch.checked_next_multiple_of(usize::try_from(alignment.max(1)).ok()?)?;
    let mut size = 0usize;
    let mut offsets = [0; 4];
    for (offset, height) in offsets.iter_mut().zip(&heights) {
        *offset = size;
        size = size.checked_add(pitch.checked_mul(*height)?)?;
    }
    let strides = [i32::try_from(pitch).ok()?; 4];
    let planes = info.n_planes() as usize;
    VideoInfo::builder(info.format(), info.width(), info.height())
        .interlace_mode(info.interlace_mode())
        .fps(info.fps())
        .par(info.par())
        .colorimetry(&info.colorimetry())
        .chroma_site(info.chroma_site())
        .size(size)
        .offset(&offsets[..planes])
        .stride(&strides[..planes])
        .build()
        .ok()
}

/// Returns the allocated rows of each plane.
fn plane_heights(info: &VideoInfo) -> Option<Vec<usize>> {
    use VideoFormat as F;
    if info.format().to_str() == "GBR_16LE" {
        // This format has no enum variant before 1.24.
        return Some(vec![info.height() as usize; 3]);
    }
    let height = info.height() as usize;
    let half = height.div_ceil(2);
    Some(match info.format() {
        F::I420 | F::Yv12 | F::I42010le | F::I42012le => vec![height, half, half],
        F::Nv12 | F::Nv21 | F::P01010le | F::P012Le | F::P016Le => vec![height, half],
        F::Y42b | F::I42210le | F::I42212le => vec![height; 3],
        F::Y444 | F::Y44410le | F::Y44412le | F::Y44416le => vec![height; 3],
        F::Rgbp | F::Bgrp | F::Gbr | F::Gbr10le | F::Gbr12le => vec![height; 3],
        F::Gbra => vec![height; 4],
        F::Bgra | F::Rgba | F::Rgbx | F::Bgrx | F::Argb | F::Abgr | F::Argb64 => vec![height],
        F::Rgb | F::Bgr | F::Bgr10a2Le | F::Rgb10a2Le | F::Yuy2 | F::Uyvy | F::Vuya => vec![height],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_share_pitch_and_are_contiguous() {
        gst::init().unwrap();
        let info = VideoInfo::builder(VideoFormat::I420, 322, 241).build().unwrap();
        let layout = of(&info, 256).unwrap();
        assert_eq!(layout.stride(), [512; 3]);
        assert_eq!(layout.offset(), [0, 512 * 241, 512 * (241 + 121)]);
        assert_eq!(layout.size(), 512 * (241 + 121 + 121));
        assert_eq!((layout.width(), layout.height(), layout.format()), (322, 241, VideoFormat::I420));

        let info = VideoInfo::builder(VideoFormat::Rgba, 320, 240).build().unwrap();
        assert_eq!(of(&info, 0).unwrap().stride(), [1280]);
        let info = VideoInfo::builder(VideoFormat::Nv1210le40, 320, 240).build().unwrap();
        assert!(of(&info, 256).is_none());
    }
}
