// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA primitives for frameshare: memory that other processes can import, and fences between
//! processes.
//!
//! The driver is loaded at run time. Without a driver, every entry point returns
//! [`Error::NoDriver`] and nothing panics. With a driver, [`memory::supports`] and
//! [`fence::supports`] report device capabilities, and name the missing one.
//!
//! | module | contents |
//! | --- | --- |
//! | [`device`], [`context`], [`stream`], [`event`] | basic CUDA objects |
//! | [`copy`], [`host`], [`host_buffer`] | asynchronous copies; host memory registered for GPU access |
//! | [`memory`] | `vmm`, `pool`, `legacy`: allocation, export, import; `adopted`: export of external allocations |
//! | [`fence`] | interprocess events and timeline values |
//! | [`capture`] | stream captures of other code, which stay intact |
//! | [`calls`] | driver call counts |
//! | [`order`] | announcement of shared words to the simulated driver of the tests |
//!
//! # Conventions
//!
//! - Sizes and offsets are in bytes. A [`DevicePtr`] is valid in this process only.
//! - Every object keeps its [`context::Context`] alive. Driver handles are thread-safe, and so are
//!   these types.
//! - A call makes its context current on the calling thread and restores the previous one. Around
//!   many calls, hold one [`context::Current`]: the inner calls then skip the push and pop.
//! - Functions wait for the GPU only where their documentation says so.
//! - `Drop` never fails and never panics: errors are logged.
//! - Once the process is exiting, calls return CUDA_ERROR_DEINITIALIZED on every thread.

mod abi;
pub mod calls;
pub mod capture;
mod capture_mode;
pub mod context;
pub mod copy;
pub mod device;
mod driver;
mod error;
pub mod event;
mod exit;
pub mod fence;
pub mod host;
pub mod host_buffer;
pub mod memory;
pub mod order;
pub mod stream;

pub use abi::DevicePtr;
pub use error::{Error, Lack, Unsupported};

/// A `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Status of queued GPU work. A failure is returned as the `Err` of the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The work is complete.
    Ready,
    /// The work is queued or running, its process has died, or the driver rejected the query.
    Pending,
}

impl Status {
    /// Returns whether the work is complete.
    #[must_use]
    pub fn is_ready(self) -> bool {
        self == Status::Ready
    }
}

/// Returns the CUDA version of the installed driver, as 1000 * major + 10 * minor.
///
/// # Errors
/// [`Error::NoDriver`] without a usable libcuda.
///
/// # References
/// CUDA driver API, cuDriverGetVersion.
pub fn version() -> Result<i32> {
    Ok(driver::get()?.version())
}
