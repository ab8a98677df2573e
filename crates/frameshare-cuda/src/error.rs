// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of this crate, with CUDA's names for driver errors.

pub(crate) mod names;

use std::fmt;

use crate::abi::{Attribute, code};

/// An error of a call of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process has no usable CUDA driver. Everything except CUDA memory works without one.
    #[error("no usable CUDA driver: {reason}")]
    NoDriver {
        /// The message of the loader, or the error of cuInit.
        reason: String,
    },
    /// The installed driver does not export this call.
    #[error("installed CUDA driver does not export {call}: update the driver")]
    Missing {
        /// The symbol missing from libcuda.so.1.
        call: &'static str,
    },
    /// The driver rejected a call, or the call reported a failure of earlier work.
    #[error("{call} failed: {} ({code}){}", name(*.code), explain(.call, *.code))]
    Call {
        /// The symbol of the call.
        call: &'static str,
        /// The CUresult returned by the driver.
        code: i32,
    },
    /// No visible GPU has this ordinal or UUID.
    #[error("no GPU {wanted:?}: use an ordinal or a UUID of these: {visible}")]
    NoDevice {
        /// The text that names it.
        wanted: String,
        /// The GPUs that this process can see.
        visible: String,
    },
    /// The device or the driver lacks a capability required by a kind of memory or fence.
    #[error(transparent)]
    Unsupported(#[from] Box<Unsupported>),
    /// A stream of the context is being captured into a CUDA graph, and the call would invalidate
    /// the capture or become a part of the graph.
    #[error("a stream is being captured into a CUDA graph: take and release frames outside of captures")]
    Capturing,
    /// The arguments break a rule that the driver checks too late or not at all.
    #[error("{0}")]
    Refused(&'static str),
}

impl Error {
    /// Returns `Ok` for CUDA_SUCCESS, otherwise the failure of `call`.
    pub(crate) fn check(call: &'static str, code: i32) -> Result<(), Error> {
        if code == code::SUCCESS { Ok(()) } else { Err(Error::Call { call, code }) }
    }

    /// Returns the CUDA error code, if the driver returned one.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Call { code, .. } => Some(*code),
            Error::NoDriver { .. }
            | Error::NoDevice { .. }
            | Error::Missing { .. }
            | Error::Unsupported(_)
            | Error::Capturing
            | Error::Refused(_) => None,
        }
    }

    /// Returns whether queued work is not complete yet (CUDA_ERROR_NOT_READY), which is not a
    /// failure.
    #[must_use]
    pub fn is_not_ready(&self) -> bool {
        self.code() == Some(code::NOT_READY)
    }

    /// Returns whether the context is lost: every later call in it fails, too. Recovery requires a
    /// new context, for most of these codes a new process.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        matches!(
            self.code(),
            Some(
                code::ECC_UNCORRECTABLE
                    | code::NVLINK_UNCORRECTABLE
                    | code::CONTAINED
                    | code::ILLEGAL_ADDRESS
                    | code::LAUNCH_TIMEOUT
                    | code::CONTEXT_IS_DESTROYED
                    | code::ASSERT
                    | code::HARDWARE_STACK_ERROR
                    ..=code::LAUNCH_FAILED | code::TENSOR_MEMORY_LEAK | code::MPS_CLIENT_TERMINATED
            )
        )
    }

    /// Returns whether the same call may succeed later or on another thread: a stream capture is in
    /// progress, or the caller runs inside a host function of a stream.
    #[must_use]
    pub fn is_deferrable(&self) -> bool {
        matches!(self, Error::Capturing) || self.is_of_capture() || self.code() == Some(code::NOT_PERMITTED)
    }

    /// Returns whether the driver rejected the call because of a stream capture.
    pub(crate) fn is_of_capture(&self) -> bool {
        let is_of_capture =
            |code| (code::STREAM_CAPTURE_UNSUPPORTED..=code::STREAM_CAPTURE_WRONG_THREAD).contains(&code);
        self.code().is_some_and(is_of_capture)
    }

    /// Returns whether a call on a stream failed because the stream, or the context of its handle,
    /// was destroyed. The driver does not always notice.
    #[must_use]
    pub fn is_invalid_stream(&self) -> bool {
        let is_invalid =
            |code| matches!(code, code::INVALID_HANDLE | code::INVALID_CONTEXT | code::CONTEXT_IS_DESTROYED);
        self.code().is_some_and(is_invalid)
    }

    /// Returns whether memory or another resource (IPC events) is exhausted
    /// (CUDA_ERROR_OUT_OF_MEMORY).
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(code::OUT_OF_MEMORY)
    }

    /// Returns whether mapping an object of another process failed (CUDA_ERROR_MAP_FAILED): for
    /// events, the processes do not share /dev/shm.
    #[must_use]
    pub fn is_map_failed(&self) -> bool {
        self.code() == Some(code::MAP_FAILED)
    }

    /// Returns whether the driver is shutting down with the process (CUDA_ERROR_DEINITIALIZED),
    /// which needs no handling.
    #[must_use]
    pub fn is_deinitialized(&self) -> bool {
        self.code() == Some(code::DEINITIALIZED)
    }
}

/// A kind of memory or fence that a device or driver does not support.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} is not supported on {device}: {lacks}")]
#[non_exhaustive]
pub struct Unsupported {
    /// The requested kind: `vmm`, `pool`, `legacy`, `event` or `timeline`.
    pub kind: &'static str,
    /// The device's name and UUID.
    pub device: String,
    /// The missing capability.
    pub lacks: Lack,
}

/// A missing capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// The device does not have this attribute.
    Attribute(Attribute),
    /// The driver does not export this call.
    Call(&'static str),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Attribute(attribute) => write!(f, "the device lacks {attribute}"),
            Lack::Call(call) => write!(f, "the driver lacks {call}"),
        }
    }
}

/// Returns CUDA's name of a code; for a code newer than this crate, the name from the loaded
/// driver.
fn name(code: i32) -> &'static str {
    names::name(code).or_else(|| names::from_driver(code)).unwrap_or("unknown CUDA error")
}

/// Ends errors of a child that was forked after the driver was initialized.
pub(crate) const FORKED: &str = ": a child that was forked after CUDA was used cannot use it: start it by exec, or by \
                                 multiprocessing's \"spawn\"";

/// Returns a hint for failures with a known cause. Calls that allocate no GPU memory run out of
/// other resources.
fn explain(call: &str, code: i32) -> &'static str {
    let takes_memory = matches!(
        call,
        "cuMemCreate"
            | "cuMemMap"
            | "cuMemAlloc_v2"
            | "cuMemAllocFromPoolAsync"
            | "cuStreamCreate"
            | "cuCtxCreate_v2"
            | "cuDevicePrimaryCtxRetain"
    );
    match code {
        code::OUT_OF_MEMORY if takes_memory => {
            ": GPU memory is exhausted: stop other processes that use it (see nvidia-smi), or use less"
        }
        // This crate makes no other call before cuInit has succeeded.
        code::NOT_INITIALIZED => FORKED,
        _ => "",
    }
}

/// Logs an error in a `Drop`. On CUDA_ERROR_DEINITIALIZED there is nothing left to release.
pub(crate) fn log_drop(result: Result<(), Error>) {
    match result {
        Err(error) if !error.is_deinitialized() => log::warn!("cannot release a CUDA object: {error}"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_need_no_driver() {
        let error = Error::check("cuEventQuery", 600).unwrap_err();
        assert!(error.is_not_ready());
        assert_eq!(error.to_string(), "cuEventQuery failed: CUDA_ERROR_NOT_READY (600)");
        let error = Error::check("cuInit", 304).unwrap_err();
        assert_eq!(error.to_string(), "cuInit failed: CUDA_ERROR_OPERATING_SYSTEM (304)");
    }

    #[test]
    fn allocation_out_of_memory_has_hint() {
        let text = |call| Error::check(call, 2).unwrap_err().to_string();
        assert!(text("cuMemCreate").contains("GPU memory is exhausted"));
        assert_eq!(text("cuEventCreate"), "cuEventCreate failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
    }

    #[test]
    fn not_initialized_names_fork() {
        let text = Error::check("cuInit", 3).unwrap_err().to_string();
        assert!(text.ends_with(FORKED), "{text}");
    }

    #[test]
    fn unknown_code_is_printed_as_integer() {
        let error = Error::check("cuInit", 12_345).unwrap_err();
        assert_eq!(error.code(), Some(12_345));
        assert!(error.to_string().ends_with("(12345)"));
    }

    #[test]
    fn sticky_codes_match_lost_context() {
        let sticky = |code| Error::Call { call: "cuStreamQuery", code }.is_sticky();
        assert!(
            [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810]
                .into_iter()
                .all(sticky)
        );
        assert!(![1, 2, 4, 201, 205, 400, 600, 701, 713, 720, 800, 801, 900].into_iter().any(sticky));
    }

    #[test]
    fn unsupported_text_names_kind_device_attribute() {
        let error = Unsupported {
            kind: "vmm",
            device: "Test (GPU-0)".into(),
            lacks: Lack::Attribute(Attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        };
        assert_eq!(
            error.to_string(),
            "vmm is not supported on Test (GPU-0): the device lacks \
             CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
        );
    }
}
