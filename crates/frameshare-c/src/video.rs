// SPDX-License-Identifier: MIT OR Apache-2.0

//! Formats and planes in the form of C.
//!
//! # Safety
//!
//! Texts come from C, as the header describes them.
#![allow(unsafe_code)]

use crate::{border, failure::Failure, structs};
use frameshare::video::{Colorimetry, Fraction, Interlacing, PixelFormat, PlaneLayout, VideoFormat};
use std::{
    ffi::{CString, c_char, c_uint},
    ptr,
    sync::LazyLock,
};

/// An enumerator from C, or for C: any number.
pub type RawMemory = c_uint;
/// As [`RawMemory`].
pub type RawInterlacing = c_uint;
/// As [`RawMemory`].
pub type RawColorRange = c_uint;
/// As [`RawMemory`].
pub type RawColorMatrix = c_uint;
/// As [`RawMemory`].
pub type RawTransfer = c_uint;
/// As [`RawMemory`].
pub type RawColorPrimaries = c_uint;

/// A truth value from C: 0 or 1.
pub type CBool = u8;

pub const MEMORY_HOST: RawMemory = 0;
pub const MEMORY_CUDA: RawMemory = 1;
pub const MEMORY_CUDA_OR_HOST: RawMemory = 2;

/// The value of a time that is not known.
pub const NO_TIME: u64 = u64::MAX;

/// The meaning of the samples as colors, in GStreamer's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Color {
    pub range: RawColorRange,
    pub matrix: RawColorMatrix,
    pub transfer: RawTransfer,
    pub primaries: RawColorPrimaries,
}

const UNKNOWN: Color = Color { range: 0, matrix: 0, transfer: 0, primaries: 0 };
/// The greatest numbers.
const LAST: Color = Color { range: 2, matrix: 6, transfer: 16, primaries: 12 };

structs::define! {
    /// The format of raw video.
    Format as "frameshare_format" of 64 {
        pixel_format: *const c_char = ptr::null(),
        width: u32 = 0,
        height: u32 = 0,
        rate_numerator: u32 = 0,
        rate_denominator: u32 = 1,
        pixel_aspect_numerator: u32 = 1,
        pixel_aspect_denominator: u32 = 1,
        plane_count: u32 = 0,
        interlacing: RawInterlacing = 0,
        color: Color = UNKNOWN,
    }
}

structs::define! {
    /// The place of a plane.
    Plane as "frameshare_plane" of 64 {
        width: u32 = 0,
        height: u32 = 0,
        stride: isize = 0,
        row_bytes: usize = 0,
        data: *const u8 = ptr::null(),
        writable: *mut u8 = ptr::null_mut(),
        device_pointer: u64 = 0,
        tile_row_bytes: u32 = 0,
        tile_rows: u32 = 0,
    }
}

/// Names of pixel formats that end with a zero, in the order of [`PixelFormat::all`].
static NAMES: LazyLock<Vec<CString>> =
    LazyLock::new(|| PixelFormat::all().map(|pixels| border::c_string(pixels.name())).collect());

/// Kinds of interlacing, in the order of the header.
const INTERLACING: [Interlacing; 5] = [
    Interlacing::Progressive,
    Interlacing::Interleaved,
    Interlacing::Mixed,
    Interlacing::Fields,
    Interlacing::Alternate,
];

impl Format {
    /// The format in the form of C.
    pub fn of(format: &VideoFormat) -> Self {
        let name = NAMES.iter().find(|name| name.to_bytes() == format.pixels.name().as_bytes());
        let rate = format.rate.unwrap_or(Fraction { numerator: 0, denominator: 1 });
        let interlacing = INTERLACING.iter().position(|kind| *kind == format.interlacing);
        let Colorimetry { range, matrix, transfer, primaries } = format.colorimetry;
        Self {
            pixel_format: name.map_or(ptr::null(), |name| name.as_ptr()),
            width: format.width,
            height: format.height,
            rate_numerator: rate.numerator,
            rate_denominator: rate.denominator,
            pixel_aspect_numerator: format.pixel_aspect_ratio.numerator,
            pixel_aspect_denominator: format.pixel_aspect_ratio.denominator,
            plane_count: format.pixels.plane_count() as u32,
            interlacing: interlacing.unwrap_or_default() as RawInterlacing,
            // The engine's enumerators are in the order of GStreamer's numbers, as the header's.
            color: Color {
                range: range as u32,
                matrix: matrix as u32,
                transfer: transfer as u32,
                primaries: primaries as u32,
            },
            ..structs::Struct::init()
        }
    }

    /// The format in the form of the engine.
    ///
    /// # Safety
    /// `pixel_format` is NULL or a text.
    pub unsafe fn to_video(self) -> Result<VideoFormat, Failure> {
        // SAFETY: the caller's guarantee.
        let name = unsafe { border::text(self.pixel_format, "format.pixel_format") }?;
        let pixels: PixelFormat =
            name.parse().map_err(|error| Failure::of_argument("format.pixel_format", error))?;
        let lengths = [("width", self.width), ("height", self.height)];
        if let Some((field, length)) = lengths.iter().find(|(_, length)| !(1..=MAX_LENGTH).contains(length)) {
            let text = format!("format.{field} is {length}, but must be 1 to {MAX_LENGTH}");
            return Err(Failure::argument(text));
        }
        let denominators = [
            ("rate_denominator", self.rate_denominator),
            ("pixel_aspect_denominator", self.pixel_aspect_denominator),
            ("pixel_aspect_numerator", self.pixel_aspect_numerator),
        ];
        if let Some((field, _)) = denominators.iter().find(|(_, number)| *number == 0) {
            return Err(Failure::argument(format!("format.{field} is 0: it must not be")));
        }
        let interlacing = INTERLACING.get(self.interlacing as usize).ok_or_else(|| {
            Failure::argument(format!("format.interlacing is {}: use an enumerator", self.interlacing))
        })?;
        let mut format = VideoFormat::new(pixels, self.width, self.height)
            .rate(self.rate_numerator, self.rate_denominator);
        format.pixel_aspect_ratio =
            Fraction { numerator: self.pixel_aspect_numerator, denominator: self.pixel_aspect_denominator };
        format.interlacing = *interlacing;
        if self.color != UNKNOWN {
            format.colorimetry = self.color.of(&format)?;
        }
        Ok(format)
    }
}

/// Maximum width and height, as in caps.
const MAX_LENGTH: u32 = i32::MAX as u32;

impl Color {
    /// The colors of a format, as GStreamer takes these numbers.
    pub fn of(self, format: &VideoFormat) -> Result<Colorimetry, Failure> {
        let Self { range, matrix, transfer, primaries } = self;
        let numbers = [
            ("range", range, LAST.range),
            ("matrix", matrix, LAST.matrix),
            ("transfer", transfer, LAST.transfer),
            ("primaries", primaries, LAST.primaries),
        ];
        if let Some((field, number, _)) = numbers.iter().find(|(_, number, last)| number > last) {
            return Err(Failure::argument(format!("format.color.{field} is {number}: use an enumerator")));
        }
        let caps = format!(
            "video/x-raw, format=(string){}, width=(int){}, height=(int){}, \
             colorimetry=(string){range}:{matrix}:{transfer}:{primaries}",
            format.pixels, format.width, format.height
        );
        Ok(VideoFormat::of_caps(&caps)?.colorimetry)
    }
}

impl Plane {
    /// The place of a plane, without its address.
    pub fn of(layout: &PlaneLayout) -> Self {
        let tile = layout.tile.map(|tile| (tile.row_bytes, tile.rows));
        Self {
            width: layout.width,
            height: layout.height,
            stride: layout.stride,
            row_bytes: layout.row_bytes,
            tile_row_bytes: tile.unwrap_or_default().0,
            tile_rows: tile.unwrap_or_default().1,
            ..structs::Struct::init()
        }
    }
}
