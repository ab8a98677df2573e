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
//! # Without a GIL
//!
//! `gil_used = false` rests on these guards. In `tests/test_threads.py` threads share one object.
//!
//! | state | guard |
//! | --- | --- |
//! | `Stream`: reader, frames that went out | mutexes; one thread reads at a time (`wait::Turn`) |
//! | `Frame`, `Plane` | the mutex of `Holder`; views are counted by an atomic. An array that is taken while `release` runs keeps the lease |
//! | `Colorimetry`, `Stats`, `StreamInfo`, what a frame says of itself | nothing changes |
//! | `interface::Kept`, `Layouts::whole` | `OnceLock`, whose initializers call no Python |
//! | `Lease`, `Writing`: streams and their objects | mutexes, under which objects are only moved |
//! | `CaptureAnnouncement`, `interface::Address` | a mutex |
//! | `Slot` | the mutex of its phase; the thread that sets `Publishing` has the slot alone |
//! | `Exporter`, `_ReaderSet`, `StreamWatch` | the mutex of the engine's object, which `close` takes out |
//! | `Gpu`: idle streams | a mutex; a borrowed stream has one user |
//! | `LOGGER`, `IMPORTED_IN`, types of exceptions | a mutex; `OnceLock`; PyO3's cells |
//! | pointers in capsules and buffers that go out | they go with an owner of the memory, to one consumer |
//! | pointers of arrays that come in | `Array` has their owner until they are copied. A thread that writes the array meanwhile changes the copy, with a GIL as well |
//! | closures of `detach` | no Python object; they borrow from a caller that holds what they use |
//! | `Cameras`, `Matcher`, `ResultStream`, in Python | none: one thread at a time, but for `interrupt` and `close` |
//!
//! # Modules
//!
//! - `error`: errors of the engine as exceptions
//! - `device`, `gpu`: GPUs, and their streams for copies
//! - `cuda_stream`: CUDA streams of other libraries
//! - `capture`: announcements of stream captures
//! - `name`: names of streams
//! - `wait`: waits that answer signals
//! - `memory`: memory of frames, leased or copied
//! - `lease`: held frames, and the views of their memory
//! - `layout`, `layouts`: shapes of planes as arrays, kept from frame to frame
//! - `plane`, `frame`: their classes
//! - `stream`: opening and reading
//! - `many`: several streams in one thread
//! - `events`: events between frames, and tags
//! - `discovery`, `stats`: streams of this machine, and their statistics
//! - `fork`: objects in a forked child
//! - `logging`: records of the engine for Python's `logging`
//! - `export`: the protocols by which memory goes out
//! - `publish`: exporters, and slots that are written in place

mod capture;
mod cuda_stream;
mod device;
mod discovery;
mod error;
mod events;
mod export;
mod fork;
mod frame;
mod gpu;
mod layout;
mod layouts;
mod lease;
mod logging;
mod many;
mod memory;
mod name;
mod plane;
mod publish;
mod stats;
mod stream;
mod wait;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _frameshare(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<export::exported::Exported>()?;
    module.add_class::<frame::Frame>()?;
    module.add_class::<frame::Colorimetry>()?;
    module.add_class::<plane::Plane>()?;
    module.add_function(wrap_pyfunction!(stream::open, module)?)?;
    module.add_function(wrap_pyfunction!(capture::announce_capture, module)?)?;
    publish::add(module)?;
    module.add_class::<many::ReaderSet>()?;
    module.add_class::<capture::CaptureAnnouncement>()?;
    module.add_class::<stats::Stats>()?;
    module.add_class::<discovery::StreamInfo>()?;
    module.add_class::<discovery::StreamWatch>()?;
    module.add_function(wrap_pyfunction!(discovery::streams, module)?)?;
    module.add_function(wrap_pyfunction!(discovery::watch_streams, module)?)?;
    module.add_function(wrap_pyfunction!(logging::finish, module)?)?;
    logging::start();
    Ok(())
}
