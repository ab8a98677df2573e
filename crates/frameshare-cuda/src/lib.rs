//! CUDA as frameshare uses it: memory that other processes can import, and fences between processes.
//!
//! The driver is found at run time. Without one every entry point answers [`Error::NoDriver`] and nothing panics;
//! with one, [`memory::supports`] and [`fence::supports`] say what a device can do and what it lacks.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`device`], [`context`], [`stream`], [`event`] | the objects everything else is made of |
//! | [`copy`], [`host`] | asynchronous copies; host memory made visible to the GPU |
//! | [`memory`] | `vmm`, `pool`, `legacy`: allocate, export, import; `foreign`: export what others allocated |
//! | [`fence`] | events between processes, and timeline words |
//! | [`calls`] | how often each driver call was made |
//!
//! # Conventions
//!
//! - Sizes and offsets are bytes. A [`DevicePtr`] is valid in this process only.
//! - Every object keeps its [`context::Context`] alive. Handles of the driver are thread-safe, and so are these types.
//! - A call makes its context current on the calling thread and puts back what was there. Around many calls, hold one
//!   [`context::Current`]: the calls inside then save the pushing and popping.
//! - Nothing here waits for the GPU except where the documentation of a function says so.
//! - `Drop` never fails and never panics: what goes wrong there is logged.
//! - Once the process exits, calls answer CUDA_ERROR_DEINITIALIZED, on whatever thread.

mod abi;
pub mod calls;
pub mod context;
pub mod copy;
pub mod device;
mod driver;
mod error;
pub mod event;
mod exit;
pub mod fence;
pub mod host;
pub mod memory;
pub mod stream;

pub use error::{Error, Lack, Unsupported};

/// A `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An address in GPU memory, as this process sees it (CUdeviceptr).
pub type DevicePtr = u64;

/// What a look at queued GPU work found. A failure is the `Err` of the call that looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The work is done.
    Ready,
    /// The work is still queued or running, or whoever should do it is gone, or the driver would not say.
    Pending,
}

impl Status {
    /// Whether the work is done.
    #[must_use]
    pub fn is_ready(self) -> bool {
        self == Status::Ready
    }
}

/// The version of CUDA that the installed driver implements, as 1000 * major + 10 * minor.
///
/// # Errors
/// [`Error::NoDriver`] without a usable libcuda.
///
/// # References
/// CUDA driver API, cuDriverGetVersion.
pub fn version() -> Result<i32> {
    Ok(driver::get()?.version())
}
