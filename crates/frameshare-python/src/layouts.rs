// SPDX-License-Identifier: MIT OR Apache-2.0

//! Formats and planes of frames, found once and shared by the following frames that are alike.

use crate::{error::OrRaise, layout::ArrayLayout};
use frameshare::{
    Plane, reader,
    video::{CROPPED, PlaneLayout, VideoError, VideoFormat},
};
use pyo3::{PyResult, exceptions::PyBufferError};
use std::sync::{Arc, OnceLock};

/// The layout of a frame.
#[derive(Debug)]
pub struct Layouts {
    format: Result<VideoFormat, VideoError>,
    /// The exporter's description of the planes.
    described: Described,
    planes: Result<Vec<Arc<PlaneArray>>, VideoError>,
    /// The array of all planes, or the reason why there is none.
    whole: OnceLock<Result<ArrayLayout, String>>,
}

/// The part of a descriptor that determines the layout.
#[derive(Debug, PartialEq)]
struct Described {
    planes: Vec<Plane>,
    size: u64,
    is_cropped: bool,
}

/// A plane, and its array.
#[derive(Debug)]
pub struct PlaneArray {
    /// The place in the frame.
    pub place: PlaneLayout,
    /// The array.
    pub array: ArrayLayout,
}

impl Layouts {
    /// Returns the layout of a frame: `last`, that of the frame before, if it is the same.
    pub fn of(frame: &reader::Frame, last: &mut Option<Arc<Self>>) -> Arc<Self> {
        if let Some(last) = last.as_ref().filter(|last| last.fits(frame)) {
            return Arc::clone(last);
        }
        Arc::clone(last.insert(Arc::new(Self::new(frame))))
    }

    fn new(frame: &reader::Frame) -> Self {
        let descriptor = frame.descriptor();
        let described = Described {
            planes: descriptor.used_planes().to_vec(),
            size: descriptor.size,
            is_cropped: descriptor.flags & CROPPED != 0,
        };
        let planes = frame.format().and_then(|format| {
            let plane = |index| {
                let place = frame.plane(index)?.layout().clone();
                let array = ArrayLayout::of(format.pixels, &place);
                Ok(Arc::new(PlaneArray { place, array }))
            };
            (0..format.pixels.plane_count()).map(plane).collect()
        });
        Self { format: frame.format().cloned(), described, planes, whole: OnceLock::new() }
    }

    fn fits(&self, frame: &reader::Frame) -> bool {
        let (descriptor, Described { planes, size, is_cropped }) = (frame.descriptor(), &self.described);
        *size == descriptor.size
            && *planes == descriptor.used_planes()
            && *is_cropped == (descriptor.flags & CROPPED != 0)
            && frame.format().is_ok_and(|format| self.format.as_ref() == Ok(format))
    }

    /// The video format.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn format(&self) -> Result<&VideoFormat, &VideoError> {
        self.format.as_ref()
    }

    /// All planes.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn planes(&self) -> PyResult<&[Arc<PlaneArray>]> {
        self.planes.as_deref().or_raise()
    }

    /// The whole frame as an array.
    ///
    /// # Errors
    /// `BufferError` if the planes do not touch.
    pub fn whole(&self) -> PyResult<&ArrayLayout> {
        let planes = self.planes()?;
        let whole = self
            .whole
            .get_or_init(|| ArrayLayout::whole(&planes.iter().map(|plane| &plane.array).collect::<Vec<_>>()));
        whole.as_ref().map_err(|text| PyBufferError::new_err(text.clone()))
    }
}
