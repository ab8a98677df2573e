// SPDX-License-Identifier: MIT OR Apache-2.0

//! Colors compared with the matrices of the standards, in the decimals that these print.

use super::*;
use frameshare::video::{ColorModel, PixelFormat, VideoFormat};
use frameshare_tests::skip::skip;
use std::process::Command;

/// Name of a colorimetry in caps, and the matrix of 8 bits: luma, red of Cr, green of Cb and Cr,
/// blue of Cb; and the value of black.
const REFERENCE: [(&str, [f64; 5], f64); 6] = [
    ("bt601", [1.164384, 1.596027, -0.391762, -0.812968, 2.017232], 16.0),
    ("bt709", [1.164384, 1.792741, -0.213249, -0.532909, 2.112402], 16.0),
    ("bt2020", [1.164384, 1.678674, -0.187326, -0.650424, 2.141772], 16.0),
    ("1:4:0:0", [1.0, 1.402, -0.344136, -0.714136, 1.772], 0.0),
    ("1:3:5:1", [1.0, 1.5748, -0.187324, -0.468124, 1.8556], 0.0),
    ("1:6:11:7", [1.0, 1.4746, -0.164553, -0.571353, 1.8814], 0.0),
];

/// Returns red, green and blue for luma, Cb and Cr on the scale of 8 bits.
fn reference(matrix: [f64; 5], black: f64, [y, cb, cr]: [f64; 3]) -> [u8; 3] {
    let (y, cb, cr) = (matrix[0] * (y - black), cb - 128.0, cr - 128.0);
    let rgb = [y + matrix[1] * cr, y + matrix[2] * cb + matrix[3] * cr, y + matrix[4] * cb];
    rgb.map(|value| value.round().clamp(0.0, 255.0) as u8)
}

/// Asserts that a frame of one color differs by at most one code value.
#[track_caller]
fn check(name: &str, colorimetry: &str, depth: u32, values: [u32; 3], bytes: &[u8]) {
    let caps = format!("video/x-raw, format={name}, width=2, height=2, colorimetry={colorimetry}");
    let format = VideoFormat::of_caps(&caps).unwrap();
    let image = Image::of_bytes(&format, &[], bytes).unwrap();
    let (_, matrix, black) = REFERENCE.iter().find(|(name, ..)| *name == colorimetry).unwrap();
    // Full range ends at the highest value; limited range is a multiple of that of 8 bits.
    let unit = f64::from(1_u32 << (depth - 8));
    let (unit, center) = match *black {
        0.0 => (f64::from((1_u32 << depth) - 1) / 255.0, f64::from(1_u32 << (depth - 1))),
        _ => (unit, 128.0 * unit),
    };
    let [y, cb, cr] = values.map(f64::from);
    let expected =
        reference(*matrix, *black, [y / unit, (cb - center) / unit + 128.0, (cr - center) / unit + 128.0]);
    for (x, y) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let found = image.pixel(x, y);
        let is_near = found.iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= 1);
        assert!(is_near, "{name} {colorimetry} {values:?}: {found:?} for {expected:?}");
    }
}

/// In steps through the cube of YUV, with the limits of the range and values beyond them.
fn each_value(depth: u32, mut check: impl FnMut([u32; 3])) {
    let unit = 1 << (depth - 8);
    let steps =
        [0, 1, 16, 17, 60, 127, 128, 129, 200, 235, 240, 255].map(|value: u32| value * unit + (unit - 1) / 3);
    for y in steps {
        for cb in steps {
            steps.iter().for_each(|cr| check([y, cb, *cr]));
        }
    }
}

#[test]
fn yuv_of_8_bits_has_colors_of_standards() {
    for (colorimetry, ..) in REFERENCE {
        each_value(8, |values| {
            let [y, u, v] = values.map(|value| value as u8);
            // Strides of GStreamer's default layout: multiples of four bytes.
            let plane = |value: u8, rows: usize| vec![value; 4 * rows];
            let chroma = |pair: [u8; 2]| [pair[0], pair[1], 0, 0];
            check("NV12", colorimetry, 8, values, &[plane(y, 2), chroma([u, v]).to_vec()].concat());
            check("NV21", colorimetry, 8, values, &[plane(y, 2), chroma([v, u]).to_vec()].concat());
            check("I420", colorimetry, 8, values, &[plane(y, 2), plane(u, 1), plane(v, 1)].concat());
            check("YV12", colorimetry, 8, values, &[plane(y, 2), plane(v, 1), plane(u, 1)].concat());
            check("YUY2", colorimetry, 8, values, &[y, u, y, v].repeat(2));
            check("UYVY", colorimetry, 8, values, &[u, y, v, y].repeat(2));
        });
    }
}

#[test]
fn yuv_of_more_bits_has_colors_of_standards() {
    for (colorimetry, ..) in REFERENCE {
        for (name, depth, shift) in [("P010_10LE", 10, 6), ("P012_LE", 12, 4), ("P016_LE", 16, 0)] {
            each_value(depth, |values| {
                let [y, u, v] = values.map(|value| ((value << shift) as u16).to_le_bytes());
                check(name, colorimetry, depth, values, &[y, y, y, y, u, v].concat());
            });
        }
        each_value(10, |values| {
            let [y, u, v] = values.map(|value| (value as u16).to_be_bytes());
            let frame = [y, y, y, y, u, [0; 2], v, [0; 2]].concat();
            check("I420_10BE", colorimetry, 10, values, &frame);
        });
    }
}

#[test]
fn rgb_and_gray_respect_range() {
    let pixel = |caps: &str, bytes: &[u8]| {
        let format = VideoFormat::of_caps(&format!("video/x-raw, width=1, height=1, {caps}")).unwrap();
        Image::of_bytes(&format, &[], bytes).unwrap().pixel(0, 0)
    };
    assert_eq!(pixel("format=RGB", &[1, 2, 255, 0]), [1, 2, 255]);
    assert_eq!(pixel("format=BGRx", &[1, 2, 255, 0]), [255, 2, 1]);
    assert_eq!(pixel("format=RGB, colorimetry=2:1:7:1", &[16, 235, 126, 0]), [0, 255, 128]);
    assert_eq!(pixel("format=GRAY8", &[77, 0, 0, 0]), [77; 3]);
    assert_eq!(pixel("format=GRAY8, colorimetry=2:4:0:0", &[16, 0, 0, 0]), [0; 3]);
    assert_eq!(pixel("format=GRAY16_LE", &[0, 128, 0, 0]), [128; 3]);
    assert_eq!(pixel("format=GRAY16_BE", &[128, 0, 0, 0]), [128; 3]);
    assert_eq!(pixel("format=RGB16", &[0, 0xf8, 0, 0]), [255, 0, 0]);
    let palette: Vec<u8> = (0..256).flat_map(|index| [index as u8, 7, 9, 255]).collect();
    assert_eq!(pixel("format=RGB8P", &[&[200, 0, 0, 0], &palette[..]].concat()), [9, 7, 200]);
}

/// Rows of fields have chroma of their own.
#[test]
fn interlaced_chroma_belongs_to_its_field() {
    let caps = "video/x-raw, format=I420, width=2, height=4, interlace-mode=interleaved, colorimetry=1:4:0:0";
    let format = VideoFormat::of_caps(caps).unwrap();
    let mut bytes = vec![128; format.size().unwrap() as usize];
    let red = format.plane(2, &[], bytes.len() as u64).unwrap();
    let second = red.range.start + red.range_of(1).unwrap().start;
    bytes[second] = 255;
    let image = Image::of_bytes(&format, &[], &bytes).unwrap();
    let is_red: Vec<_> = (0..4).map(|y| image.pixel(0, y)[0] > 200).collect();
    assert_eq!(is_red, [false, true, false, true]);
}

#[test]
fn planes_of_any_place_are_read() {
    let caps = "video/x-raw, format=GRAY8, width=2, height=2";
    let format = VideoFormat::of_caps(caps).unwrap();
    let bottom_up = [frameshare::Plane { offset: 10, stride: -10 }];
    let mut bytes = vec![0; 12];
    (bytes[10], bytes[1]) = (200, 100);
    let image = Image::of_bytes(&format, &bottom_up, &bytes).unwrap();
    assert_eq!([image.pixel(0, 0)[0], image.pixel(1, 1)[0]], [200, 100]);
    // Rows outside the frame are an error, and no panic.
    assert!(Image::of_bytes(&format, &bottom_up, &bytes[..11]).is_err());
}

#[test]
fn mean_of_pixels_is_shown_in_smaller_size() {
    let rgb = [[0, 0, 0], [255, 255, 255], [10, 20, 30], [10, 20, 30]].concat();
    let image = Image { width: 4, height: 1, rgb };
    assert_eq!(image.resized(2, 1).rgb, [128, 128, 128, 10, 20, 30]);
    assert_eq!(image.resized(8, 2).rgb.len(), 3 * 16);
    assert_eq!(image.resized(4, 1), image);
}

#[test]
fn formats_that_are_not_known_are_errors() {
    let format = VideoFormat::new("MT2110T".parse::<PixelFormat>().unwrap(), 64, 64);
    let bytes = vec![0; format.size().unwrap() as usize];
    let error = Image::of_bytes(&format, &[], &bytes).unwrap_err();
    assert!(error.to_string().contains("MT2110T are not known here; convert"), "{error}");
}

/// Every format of the installed GStreamer, converted by it to 16 bits a color. Its coefficients
/// have eight bits, which differs by up to two code values; another layout differs by far more.
#[test]
fn images_equal_gstreamers_in_every_format() {
    let test = "images_equal_gstreamers_in_every_format";
    let Ok(found) = Command::new("gst-inspect-1.0").arg("videotestsrc").output() else {
        return skip(test, "gst-inspect-1.0 is not installed");
    };
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let words: Vec<_> = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    // Palettes are no output of videotestsrc.
    let formats = PixelFormat::all().filter(|pixels| words.contains(&pixels.name()));
    let formats: Vec<_> = formats.filter(|pixels| formats::samples(pixels.name()).is_some()).collect();
    assert!(formats.len() > 100, "{formats:?}");
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for (width, height, yuv) in [(64, 48, "bt709"), (61, 47, "bt2020"), (61, 47, "1:4:0:0")] {
        let mut pipeline = String::new();
        for pixels in &formats {
            let color = match pixels.color_model() {
                ColorModel::Yuv => yuv,
                ColorModel::Rgb => "sRGB",
                ColorModel::Gray => "1:4:0:0",
            };
            let size = format!("width={width},height={height},colorimetry={color}");
            pipeline += &format!(
                "videotestsrc num-buffers=1 ! video/x-raw,format={pixels},{size} ! tee name=t{pixels} \
                 t{pixels}. ! queue ! filesink location={pixels}.raw \
                 t{pixels}. ! queue ! videoconvert dither=none chroma-resampler=nearest chroma-mode=none ! \
                 video/x-raw,format=ARGB64 ! filesink location={pixels}.argb "
            );
        }
        let mut command = Command::new("gst-launch-1.0");
        command.arg("-q").args(pipeline.split_whitespace()).current_dir(&folder);
        let output = command.output().expect("gst-launch-1.0 starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for pixels in &formats {
            let read = |end: &str| std::fs::read(folder.path().join(format!("{pixels}.{end}"))).unwrap();
            let color = if pixels.color_model() == ColorModel::Yuv { yuv } else { "sRGB" };
            let color = if pixels.color_model() == ColorModel::Gray { "1:4:0:0" } else { color };
            let caps =
                format!("video/x-raw, format={pixels}, width={width}, height={height}, colorimetry={color}");
            let format = VideoFormat::of_caps(&caps).unwrap();
            let image = Image::of_bytes(&format, &[], &read("raw")).unwrap();
            let reference = read("argb");
            let words = reference.chunks(2).map(|word| u32::from(u16::from_le_bytes([word[0], word[1]])));
            let words: Vec<_> = words.map(|word| ((word + 128) / 257) as u8).collect();
            for (index, pixel) in words.chunks(4).enumerate() {
                let (x, y) = (index % width, index / width);
                // GStreamer 1.22 reads the chroma of an odd last column elsewhere.
                if pixels.name() == "VYUY" && x == width - 1 {
                    continue;
                }
                let found = image.pixel(x, y);
                let is_near = (0..3).all(|at| found[at].abs_diff(pixel[1 + at]) <= 2);
                assert!(is_near, "{caps}: {found:?} for {pixel:?} at {x},{y}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * formats.len());
}
