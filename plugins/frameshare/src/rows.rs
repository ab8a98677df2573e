// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rows of a frame's planes.

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
        let pitch = |stride: i32| usize::try_from(stride).ok().filter(|pitch| *pitch >= bytes);
        let strides = (pitch(from.plane_stride()[plane as usize]), pitch(to.plane_stride()[plane as usize]));
        let (Some(source), Some(target)) = strides else { continue };
        let (from, to) = (from.plane_data(plane)?, to.plane_data_mut(plane)?);
        for row in 0..rows {
            let (from_row, to_row) = (row * source, row * target);
            let from = from.get(from_row + copied..from_row + bytes);
            let to = to.get_mut(to_row + copied..to_row + bytes);
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
}
