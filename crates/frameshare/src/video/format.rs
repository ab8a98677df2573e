// SPDX-License-Identifier: MIT OR Apache-2.0

//! The format of a stream of raw video.

use super::{
    caps::Caps,
    color::Colorimetry,
    error::VideoError,
    pixel_format::PixelFormat,
    shape::{Extent, Measure},
};
use std::fmt;

/// A fraction, such as a frame rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    /// Numerator.
    pub numerator: u32,
    /// Denominator, never 0.
    pub denominator: u32,
}

impl Fraction {
    /// Its value.
    pub fn as_f64(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

/// Arrangement of fields in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interlacing {
    /// Frames are not divided.
    Progressive,
    /// A frame has the rows of two fields by turns.
    Interleaved,
    /// Progressive and interleaved frames.
    Mixed,
    /// Fields in separate buffers of one frame.
    Fields,
    /// Each frame of the stream is one field, with half the rows.
    Alternate,
}

const INTERLACING: [(&str, Interlacing); 5] = [
    ("progressive", Interlacing::Progressive),
    ("interleaved", Interlacing::Interleaved),
    ("mixed", Interlacing::Mixed),
    ("fields", Interlacing::Fields),
    ("alternate", Interlacing::Alternate),
];

/// The format of raw video, parsed from caps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VideoFormat {
    /// Pixel format.
    pub pixels: PixelFormat,
    /// Width of the image in pixels, not 0.
    pub width: u32,
    /// Height of the image in rows, not 0.
    pub height: u32,
    /// Frames per second; `None` if the rate varies.
    pub rate: Option<Fraction>,
    /// Maximum frames per second of a rate that varies.
    pub max_rate: Option<Fraction>,
    /// Width of a pixel divided by its height.
    pub pixel_aspect_ratio: Fraction,
    /// Arrangement of fields.
    pub interlacing: Interlacing,
    /// Colors, as GStreamer takes them: its default for the format if the caps name none.
    pub colorimetry: Colorimetry,
}

impl VideoFormat {
    /// Parses fixed caps of raw video, as GStreamer writes them.
    ///
    /// ```
    /// # use frameshare::video::{ColorRange, VideoFormat};
    /// let caps = "video/x-raw, format=(string)NV12, width=(int)1920, height=(int)1080, framerate=(fraction)30/1";
    /// let format = VideoFormat::of_caps(caps)?;
    /// assert_eq!((format.pixels.name(), format.width, format.height), ("NV12", 1920, 1080));
    /// assert_eq!(format.rate.map(|rate| rate.as_f64()), Some(30.0));
    /// assert_eq!(format.colorimetry.range, ColorRange::Limited);
    /// # Ok::<(), frameshare::video::VideoError>(())
    /// ```
    ///
    /// # Errors
    /// [`VideoError`] for other media, an unknown format, and a missing or invalid size.
    pub fn of_caps(text: &str) -> Result<Self, VideoError> {
        let caps = Caps::parse(text);
        if caps.media != "video/x-raw" {
            return Err(VideoError::NotRaw { media: caps.media.to_owned() });
        }
        let invalid = |field| VideoError::Caps { field, caps: text.to_owned() };
        let pixels: PixelFormat = caps.get("format").ok_or_else(|| invalid("format"))?.parse()?;
        let length = |field| {
            let length = caps.number(field).filter(|length| (1..=i32::MAX as u32).contains(length));
            length.ok_or_else(|| invalid(field))
        };
        let (width, height) = (length("width")?, length("height")?);
        let fraction = |field, default| match caps.get(field).map(|_| caps.fraction(field)) {
            None => Ok(default),
            Some(Some((numerator, denominator))) if denominator > 0 => {
                Ok(Fraction { numerator, denominator })
            }
            Some(_) => Err(invalid(field)),
        };
        let none = Fraction { numerator: 0, denominator: 1 };
        let is_rate = |rate: &Fraction| rate.numerator > 0;
        let interlacing = caps.get("interlace-mode").unwrap_or("progressive");
        let interlacing = INTERLACING.iter().find(|(name, _)| *name == interlacing);
        Ok(Self {
            pixels,
            width,
            height,
            rate: Some(fraction("framerate", none)?).filter(is_rate),
            max_rate: Some(fraction("max-framerate", none)?).filter(is_rate),
            pixel_aspect_ratio: fraction("pixel-aspect-ratio", Fraction { numerator: 1, ..none })?,
            interlacing: interlacing.ok_or_else(|| invalid("interlace-mode"))?.1,
            colorimetry: Colorimetry::of(caps.get("colorimetry"), pixels.color_model(), height),
        })
    }

    /// Progressive video of a pixel format and size, for a publisher.
    ///
    /// ```
    /// # use frameshare::video::VideoFormat;
    /// let format = VideoFormat::new("RGB".parse()?, 640, 480).rate(30, 1);
    /// assert_eq!(VideoFormat::of_caps(&format.to_caps())?, format);
    /// # Ok::<(), frameshare::video::VideoError>(())
    /// ```
    pub fn new(pixels: PixelFormat, width: u32, height: u32) -> Self {
        Self {
            pixels,
            width,
            height,
            rate: None,
            max_rate: None,
            pixel_aspect_ratio: Fraction { numerator: 1, denominator: 1 },
            interlacing: Interlacing::Progressive,
            colorimetry: Colorimetry::of(None, pixels.color_model(), height),
        }
    }

    /// Sets the number of frames per second, as a fraction; 0 for a rate that varies.
    #[must_use]
    pub fn rate(mut self, numerator: u32, denominator: u32) -> Self {
        self.rate = (numerator > 0 && denominator > 0).then_some(Fraction { numerator, denominator });
        self
    }

    /// Returns the caps, as GStreamer reads them.
    pub fn to_caps(&self) -> String {
        let Self { pixels, width, height, pixel_aspect_ratio, .. } = self;
        let name =
            INTERLACING.iter().find(|(_, found)| *found == self.interlacing).map_or("", |(name, _)| name);
        let feature = if self.interlacing == Interlacing::Alternate { "(format:Interlaced)" } else { "" };
        let rate = self.rate.unwrap_or(Fraction { numerator: 0, denominator: 1 });
        let max_rate =
            self.max_rate.map(|rate| format!(", max-framerate=(fraction){rate}")).unwrap_or_default();
        format!(
            "video/x-raw{feature}, format=(string){pixels}, width=(int){width}, height=(int){height}, \
             framerate=(fraction){rate}{max_rate}, pixel-aspect-ratio=(fraction){pixel_aspect_ratio}, \
             interlace-mode=(string){name}, colorimetry=(string){}",
            self.colorimetry
        )
    }

    /// Returns the size of a plane of the image in memory.
    pub(super) fn measure(&self, plane: usize) -> Result<Measure, VideoError> {
        let (name, count) = (self.pixels.name(), self.pixels.plane_count());
        let no_such = VideoError::NoSuchPlane { index: plane, name, count };
        let shape = self.pixels.shapes().get(plane).ok_or(no_such)?;
        let Self { width, height, .. } = *self;
        let rows = if self.interlacing == Interlacing::Alternate { height.div_ceil(2) } else { height };
        let is_interlaced = self.interlacing != Interlacing::Progressive;
        let measure = shape.measure(Extent { width, height, rows, is_interlaced });
        let is_possible = |measure: &Measure| i32::try_from(measure.stride).is_ok();
        measure.filter(is_possible).ok_or(VideoError::TooLarge { width, height })
    }
}
