// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rows of a frame's planes.

use crate::ffi::plane_bytes;
use gst_video::{VideoFrameRef, VideoInfo, prelude::*};

/// Returns the number of rows of a plane, and the number of bytes that are read of each; none for
/// formats that pack several pixels in one word and have no stride from pixel to pixel.
pub(crate) fn rows(info: &VideoInfo, plane: usize) -> (usize, Option<usize>) {
    let format = info.format_info();
    if format.has_palette() && plane == 1 {
        return (1, Some(256 * 4));
    }
    let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == plane);
    // A buffer holds one of two alternating fields.
    let height = info.field_height();
    let rows = components.clone().map(|c| format.scale_height(c, height) as usize).max();
    let bytes = components.map(|c| info.comp_width(c) as usize * info.comp_pstride(c).max(0) as usize).max();
    let bytes = bytes.filter(|bytes| *bytes > 0 && !format.is_complex());
    (rows.unwrap_or(height as usize), bytes)
}

/// Copies a frame. `gst_video_frame_copy` copies as many bytes of a row as the plane's first
/// component has, which in packed 4:2:2 of odd widths omits the last column's V (gstreamer-video
/// 1.22 to 1.28): those bytes are copied here.
///
/// # Errors
/// The two differ in format or size.
pub(crate) fn copy_picture(
    from: &VideoFrameRef<&gst::BufferRef>,
    to: &mut VideoFrameRef<&mut gst::BufferRef>,
) -> Result<(), glib::BoolError> {
    from.copy(to)?;
    let info = from.info();
    for plane in 0..info.n_planes() {
        let (rows, Some(bytes)) = rows(info, plane as usize) else { continue };
        let component = (0..info.n_components() as u8).find(|c| info.comp_plane(*c) == plane);
        let copied =
            component.map_or(bytes, |c| info.comp_width(c) as usize * info.comp_pstride(c).max(0) as usize);
        if copied >= bytes {
            continue;
        }
        let plane = plane as usize;
        let strides = (from.plane_stride()[plane] as isize, to.plane_stride()[plane] as isize);
        let bytes_of = (plane_bytes::of(from, plane), plane_bytes::of_mut(to, plane));
        let (Some((from, from_first)), Some((to, to_first))) = bytes_of else { continue };
        // The rows of a picture may be from the bottom up.
        let columns = |first: usize, stride: isize, row: usize| {
            let begin = first.checked_add_signed(stride.checked_mul(row as isize)?)?;
            Some(begin + copied..begin + bytes)
        };
        for row in 0..rows {
            let from = columns(from_first, strides.0, row).and_then(|columns| from.get(columns));
            let to = columns(to_first, strides.1, row).and_then(|columns| to.get_mut(columns));
            if let (Some(from), Some(to)) = (from, to) {
                to.copy_from_slice(from);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gst_video::VideoFormat;

    #[test]
    fn picture_of_odd_width_is_copied_whole() {
        gst::init().unwrap();
        let mut checked = 0;
        for format in VideoFormat::iter_raw() {
            // Planes alone matter here: widths and heights that divide by nothing.
            let Ok(info) = VideoInfo::builder(format, 13, 7).build() else { continue };
            let filled = |byte: u8| gst::Buffer::from_mut_slice(vec![byte; info.size()]);
            let (from, mut to) = (filled(0xaa), filled(0));
            {
                let from = VideoFrameRef::from_buffer_ref_readable(&from, &info).unwrap();
                let mut to = VideoFrameRef::from_buffer_ref_writable(to.make_mut(), &info).unwrap();
                copy_picture(&from, &mut to).unwrap();
            }
            let to = VideoFrameRef::from_buffer_ref_readable(&to, &info).unwrap();
            for component in 0..info.n_components() as u8 {
                let (pixels, step) = (info.comp_width(component) as usize, info.comp_pstride(component));
                if step <= 0 || info.format_info().is_complex() || info.format_info().is_tiled() {
                    continue;
                }
                let plane = info.comp_plane(component);
                let data = to.plane_data(plane).unwrap();
                let last = info.comp_poffset(component) as usize + (pixels - 1) * step as usize;
                for row in 0..info.comp_height(component) as usize {
                    let at = row * info.stride()[plane as usize] as usize + last;
                    assert_eq!(data[at], 0xaa, "{format}, component {component}, row {row}");
                }
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked} components");
    }

    /// The rows of decoders and capture drivers that begin at the bottom.
    #[test]
    fn picture_from_the_bottom_up_is_copied_whole() {
        gst::init().unwrap();
        for format in [VideoFormat::Yuy2, VideoFormat::Uyvy, VideoFormat::Yvyu, VideoFormat::Rgb] {
            let info = VideoInfo::builder(format, 13, 7).build().unwrap();
            let (row_bytes, stride) = (rows(&info, 0).1.unwrap(), info.stride()[0] as usize);
            let bytes: Vec<u8> = (0..info.size()).map(|at| at as u8 | 1).collect();
            let mut from = gst::Buffer::from_mut_slice(bytes.clone());
            let last = 6 * stride;
            gst_video::VideoMeta::add_full(
                from.make_mut(),
                gst_video::VideoFrameFlags::empty(),
                format,
                13,
                7,
                &[last],
                &[-(stride as i32)],
            )
            .unwrap();
            let mut to = gst::Buffer::from_mut_slice(vec![0; info.size()]);
            {
                let from = VideoFrameRef::from_buffer_ref_readable(&from, &info).unwrap();
                let mut to = VideoFrameRef::from_buffer_ref_writable(to.make_mut(), &info).unwrap();
                copy_picture(&from, &mut to).unwrap();
            }
            let to = to.map_readable().unwrap();
            for row in 0..7 {
                let expected = &bytes[last - row * stride..][..row_bytes];
                assert_eq!(&to[row * stride..][..row_bytes], expected, "{format}, row {row}");
            }
        }
    }
}
