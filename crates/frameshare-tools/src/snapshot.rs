// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare snapshot`: the newest frame as a PNG file.

use crate::{
    error::Error,
    frames::newest,
    output::{Page, print_bytes, print_json},
    pixels::Image,
};
use frameshare::{monotonic_ns, reader::Frame};
use png::{BitDepth, ColorType, Compression, Encoder};
use serde_json::{Value, json};
use std::{fs, path::Path, time::Duration};

/// Writes the newest frame into a file, or to stdout for `-`.
pub fn snapshot(stream: &str, file: &Path, timeout: Duration, json: bool) -> Result<(), Error> {
    let is_stdout = file.as_os_str() == "-";
    let is_png = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("png"));
    if !is_stdout && !is_png || is_stdout && json {
        return Err(Error::NotPng { path: file.to_owned() });
    }
    let frame = newest(stream, timeout)?;
    let image = Image::of_frame(&frame)?;
    let png = png(&image)?;
    if is_stdout {
        return print_bytes(&png);
    }
    fs::write(file, &png).map_err(|source| Error::File { path: file.to_owned(), source })?;
    if json {
        let mut value = describe(&frame);
        value["file"] = file.display().to_string().into();
        value["size"] = png.len().into();
        return print_json(&value);
    }
    let mut page = Page::new();
    page.line(&format!(
        "{}: frame {}, {}x{}",
        file.display(),
        frame.descriptor().sequence,
        image.width,
        image.height
    ));
    page.print()
}

/// Describes a frame of raw video for programs.
pub fn describe(frame: &Frame) -> Value {
    let descriptor = frame.descriptor();
    let age = monotonic_ns().saturating_sub(descriptor.published);
    let format = frame.format().ok();
    json!({
        "sequence": descriptor.sequence.0,
        "age": age as f64 / 1e9,
        "format": format.map(|format| format.pixels.name()),
        "width": format.map(|format| format.width),
        "height": format.map(|format| format.height),
        "colorimetry": format.map(|format| format.colorimetry.to_string()),
    })
}

/// Returns an image as a PNG file.
pub fn png(image: &Image) -> Result<Vec<u8>, Error> {
    let mut png = Vec::new();
    let size = [image.width, image.height].map(|length| u32::try_from(length).unwrap_or(u32::MAX));
    let mut encoder = Encoder::new(&mut png, size[0], size[1]);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_compression(Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&image.rgb)?;
    writer.finish()?;
    Ok(png)
}
