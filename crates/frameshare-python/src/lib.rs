// SPDX-License-Identifier: MIT OR Apache-2.0

//! The module `frameshare._frameshare`: the Python interface of the engine.
//!
//! # Rules of the border
//!
//! 1. All classes are frozen: their state is behind locks of their own, so that they need no GIL.
//! 2. No lock is held while Python code may run, and the GIL is released before a lock is waited
//!    for that is held during a wait (`stream`).
//! 3. Memory goes out with an `Arc` of its lease (`lease`). Dropping that touches no Python: it may
//!    happen on any thread, without the GIL, and after the interpreter's end.
//! 4. The module loads no other library: NumPy, PyTorch, CuPy and JAX come by protocols.
//!
//! # Modules
//!
//! - `error`: errors of the engine as exceptions
//! - `device`: GPUs
//! - `memory`: memory of frames, leased or copied
//! - `lease`: held frames, and the views of their memory
//! - `layout`: shapes of planes as arrays
//! - `plane`, `frame`: their classes
//! - `stream`: opening and reading
//! - `export`: the protocols by which memory goes out

mod device;
mod error;
mod export;
mod frame;
mod layout;
mod lease;
mod memory;
mod plane;
mod stream;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _frameshare(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<frame::Frame>()?;
    module.add_class::<frame::Colorimetry>()?;
    module.add_class::<plane::Plane>()?;
    module.add_function(wrap_pyfunction!(stream::open, module)?)?;
    Ok(())
}
