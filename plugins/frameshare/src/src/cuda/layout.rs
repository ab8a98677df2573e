// SPDX-License-Identifier: MIT OR Apache-2.0

//! Layout of an image as one GstCudaMemory.

use crate::src::{layout::Layout, picture::Picture};
use gst_video::VideoInfo;

/// Returns the rows of a plane and the bytes of pixels in each, as GStreamer's CUDA library counts
/// them; zero bytes for formats that it does not support.
pub(super) fn size_of_plane(info: &VideoInfo, plane: usize) -> (usize, usize) {
    let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == plane);
    let rows = components.clone().map(|c| info.comp_height(c) as usize).max().unwrap_or(0);
    let bytes = components.map(|c| info.comp_width(c) as usize * info.comp_pstride(c).max(0) as usize).max();
    (rows, bytes.unwrap_or(0))
}

/// Image as one GstCudaMemory: starts at the first byte of the first plane, with one pitch for all
/// planes. The CPU mapping of such memory relies on that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CudaLayout {
    /// Bytes from the start of the frame.
    pub start: usize,
    pub info: VideoInfo,
    pub layout: Layout,
}

impl CudaLayout {
    /// Returns the layout of the image in a frame of `size` bytes; none if GstCudaMemory cannot
    /// describe it.
    pub fn of(picture: &Picture<'_>, size: usize) -> Option<Self> {
        let (info, layout) = (&picture.info, &picture.layout);
        let (&start, &stride) = (layout.offsets().first()?, layout.strides().first()?);
        let pitch = usize::try_from(stride).ok().filter(|pitch| *pitch > 0)?;
        let mut rows = 0;
        for (plane, (offset, plane_stride)) in layout.offsets().iter().zip(layout.strides()).enumerate() {
            let down = offset.checked_sub(start)?;
            if *plane_stride != stride || down % pitch != 0 {
                return None;
            }
            rows = rows.max(down / pitch + size_of_plane(info, plane).0);
        }
        // Bytes accessed in each row, of any plane.
        let (_, row) = size_of_plane(info, 0);
        let end = rows.checked_sub(1)?.checked_mul(pitch)?.checked_add(start)?.checked_add(row)?;
        if row == 0 || row > pitch || end > size {
            return None;
        }
        let layout = layout.from(start);
        let info = VideoInfo::builder(info.format(), info.width(), info.height())
            .interlace_mode(info.interlace_mode())
            .colorimetry(&info.colorimetry())
            .size(rows.checked_mul(pitch)?)
            .offset(layout.offsets())
            .stride(layout.strides())
            .build()
            .ok()?;
        Some(Self { start, info, layout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare::Plane;
    use gst_video::VideoFormat;

    fn place(format: VideoFormat, planes: &[(u64, i32)], size: usize) -> Option<CudaLayout> {
        gst::init().unwrap();
        let info = VideoInfo::builder(format, 320, 240).build().unwrap();
        let planes: Vec<_> = planes.iter().map(|&(offset, stride)| Plane { offset, stride }).collect();
        let layout = Layout::of(&planes, &info, size).unwrap();
        let picture = Picture::lying(info, layout);
        CudaLayout::of(&picture, size)
    }

    #[test]
    fn planes_with_one_pitch_form_one_cuda_memory() {
        let found = place(VideoFormat::Nv12, &[(512, 512), (512 * 257, 512)], 512 * 400).unwrap();
        assert_eq!(found.start, 512);
        assert_eq!((found.info.offset(), found.info.stride()), (&[0, 512 * 256][..], &[512, 512][..]));
        // Whole rows: the CPU mapping copies all of them.
        assert_eq!(found.info.size(), 512 * (256 + 120));
        // The last row may lack its padding.
        let size = 512 * (257 + 119) + 320;
        assert!(place(VideoFormat::Nv12, &[(512, 512), (512 * 257, 512)], size).is_some());
    }

    #[test]
    fn unsupported_cuda_layout_is_copied() {
        // Half the pitch for the chroma planes, as in system memory.
        let planes = [(0, 512), (512 * 240, 256), (512 * 300, 256)];
        assert!(place(VideoFormat::I420, &planes, 512 * 400).is_none());
        // Chroma before luma, and chroma rows not aligned with those of the first plane.
        assert!(place(VideoFormat::Nv12, &[(512 * 120, 512), (0, 512)], 512 * 400).is_none());
        assert!(place(VideoFormat::Nv12, &[(0, 512), (512 * 240 + 8, 512)], 512 * 400).is_none());
        // The last chroma row is shorter than the copied row.
        let planes = [(0, 512), (512 * 240, 512), (512 * 360, 512)];
        assert!(place(VideoFormat::I420, &planes, 512 * 479 + 160).is_none());
        assert!(place(VideoFormat::I420, &planes, 512 * 479 + 320).is_some());
    }
}
