// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publishing: exporters of video and of data.
//!
//! - `array`: arrays and tensors of other libraries, as they are published
//! - `target`: the layout of frames, and copies into them
//! - `metas`: names and values attached to frames
//! - `number`: arguments that are whole numbers
//! - `shared`: the engine's exporter, and its waits
//! - `slot`: slots that are written in place, and the protocols by which they go out
//! - `exporter`: the class `Exporter`

mod array;
mod error;
mod exporter;
pub mod metas;
mod number;
mod shared;
mod slot;
mod target;

use pyo3::prelude::*;

/// Adds the classes and functions of this part.
///
/// # Errors
/// Those of Python.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<exporter::Exporter>()?;
    module.add_class::<slot::Slot>()?;
    module.add_class::<slot::SlotPlane>()?;
    module.add_function(wrap_pyfunction!(exporter::create, module)?)?;
    module.add_function(wrap_pyfunction!(exporter::_create_data, module)?)?;
    Ok(())
}
