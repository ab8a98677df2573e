//! How a picture's planes divide into rows.

use gst_video::VideoInfo;

/// How many rows a plane has, and how many bytes of each are read; nothing for formats that pack several pixels in one
/// word and have no stride from pixel to pixel.
pub(crate) fn rows(info: &VideoInfo, plane: usize) -> (usize, Option<usize>) {
    let format = info.format_info();
    if format.has_palette() && plane == 1 {
        return (1, Some(256 * 4));
    }
    let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == plane);
    // Of alternating fields, a buffer holds one.
    let height = info.field_height();
    let rows = components.clone().map(|c| format.scale_height(c, height) as usize).max();
    let bytes = components.map(|c| info.comp_width(c) as usize * info.comp_pstride(c).max(0) as usize).max();
    let bytes = bytes.filter(|bytes| *bytes > 0 && !format.is_complex());
    (rows.unwrap_or(height as usize), bytes)
}
