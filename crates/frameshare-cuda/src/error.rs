//! What can go wrong, with CUDA's own words for it.

pub(crate) mod names;

use std::fmt;

use crate::abi::code;
use crate::device::Attribute;
use crate::driver;

/// Why a call of this crate failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no driver that this process could use. Everything but CUDA memory goes on without it.
    #[error("no usable CUDA driver: {reason}")]
    NoDriver {
        /// What the loader or cuInit said.
        reason: String,
    },
    /// The installed driver does not have this call.
    #[error("the installed CUDA driver has no {call}")]
    Missing {
        /// The symbol that libcuda.so.1 lacks.
        call: &'static str,
    },
    /// The driver refused a call, or reports the failure of earlier work through it.
    #[error("{call} failed: {} ({code}){}", name(*.code), explain(.call, *.code))]
    Call {
        /// The symbol that was called.
        call: &'static str,
        /// The CUresult, as the driver gave it.
        code: i32,
    },
    /// The device or the driver lacks what a kind of memory or fence needs.
    #[error(transparent)]
    Unsupported(#[from] Box<Unsupported>),
    /// The arguments break a rule that the driver does not check, or checks too late.
    #[error("{0}")]
    Refused(&'static str),
}

impl Error {
    /// `Ok` for CUDA_SUCCESS, otherwise the failure of `call`.
    pub(crate) fn check(call: &'static str, code: i32) -> Result<(), Error> {
        if code == code::SUCCESS { Ok(()) } else { Err(Error::Call { call, code }) }
    }

    /// CUDA's code, where CUDA was reached and answered with one.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Call { code, .. } => Some(*code),
            Error::NoDriver { .. } | Error::Missing { .. } | Error::Unsupported(_) | Error::Refused(_) => {
                None
            }
        }
    }

    /// Whether queued work is not done yet (CUDA_ERROR_NOT_READY): no failure.
    #[must_use]
    pub fn is_not_ready(&self) -> bool {
        self.code() == Some(code::NOT_READY)
    }

    /// Whether the context is lost: every later call in it fails too, and only a new context, for most of these only a
    /// new process, helps.
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

    /// Whether the same call may succeed later or on another thread: a stream capture is under way, or the caller is
    /// inside a host function of a stream.
    #[must_use]
    pub fn is_deferrable(&self) -> bool {
        matches!(
            self.code(),
            Some(code::NOT_PERMITTED | code::STREAM_CAPTURE_UNSUPPORTED..=code::STREAM_CAPTURE_WRONG_THREAD)
        )
    }

    /// Whether memory, or what stands for it (IPC events), is used up (CUDA_ERROR_OUT_OF_MEMORY).
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(code::OUT_OF_MEMORY)
    }

    /// Whether a mapping of another process's object failed (CUDA_ERROR_MAP_FAILED): for events, /dev/shm is not shared.
    #[must_use]
    pub fn is_map_failed(&self) -> bool {
        self.code() == Some(code::MAP_FAILED)
    }

    /// Whether the driver is shutting down with the process (CUDA_ERROR_DEINITIALIZED): nothing is left to do.
    #[must_use]
    pub fn is_deinitialized(&self) -> bool {
        self.code() == Some(code::DEINITIALIZED)
    }
}

/// What a device or a driver lacks for one kind of memory or fence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} is not possible on {device}: {lacks}")]
pub struct Unsupported {
    /// The kind that was asked for: `vmm`, `pool`, `legacy`, `event` or `timeline`.
    pub kind: &'static str,
    /// The device's name and UUID.
    pub device: String,
    /// What it would need.
    pub lacks: Lack,
}

/// One missing thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// The device says no to this attribute.
    Attribute(Attribute),
    /// The driver has no such call.
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

/// CUDA's name of a code; for one that is newer than this crate, the driver's own answer.
fn name(code: i32) -> &'static str {
    names::name(code)
        .or_else(|| driver::loaded().and_then(|driver| driver.error_name(code)))
        .unwrap_or("a CUDA error without a known name")
}

/// What to do, where the code speaks of the GPU's memory: of other calls it speaks of other limits.
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
    if takes_memory && code == code::OUT_OF_MEMORY {
        ": the GPU's memory is used up: end what else uses it (nvidia-smi lists that), or use less"
    } else {
        ""
    }
}

/// Logs what a `Drop` could not do. A driver that is shutting down has already given everything back.
pub(crate) fn log_drop(result: Result<(), Error>) {
    match result {
        Err(error) if !error.is_deinitialized() => log::warn!("while giving back a CUDA object: {error}"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_without_a_driver() {
        let error = Error::check("cuEventQuery", 600).unwrap_err();
        assert!(error.is_not_ready());
        assert_eq!(error.to_string(), "cuEventQuery failed: CUDA_ERROR_NOT_READY (600)");
        let error = Error::check("cuInit", 304).unwrap_err();
        assert_eq!(error.to_string(), "cuInit failed: CUDA_ERROR_OPERATING_SYSTEM (304)");
    }

    #[test]
    fn memory_that_ran_out_is_explained() {
        let text = |call| Error::check(call, 2).unwrap_err().to_string();
        assert!(text("cuMemCreate").contains("the GPU's memory is used up"));
        assert_eq!(text("cuEventCreate"), "cuEventCreate failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
    }

    #[test]
    fn unknown_codes_are_integers() {
        let error = Error::check("cuInit", 12_345).unwrap_err();
        assert_eq!(error.code(), Some(12_345));
        assert!(error.to_string().ends_with("(12345)"));
    }

    #[test]
    fn sticky_is_what_ends_a_context() {
        let sticky = |code| Error::Call { call: "cuStreamQuery", code }.is_sticky();
        assert!(
            [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810]
                .into_iter()
                .all(sticky)
        );
        assert!(![1, 2, 4, 201, 205, 400, 600, 701, 713, 720, 800, 801, 900].into_iter().any(sticky));
    }

    #[test]
    fn unsupported_names_kind_device_and_attribute() {
        let error = Unsupported {
            kind: "vmm",
            device: "Test (GPU-0)".into(),
            lacks: Lack::Attribute(Attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        };
        assert_eq!(
            error.to_string(),
            "vmm is not possible on Test (GPU-0): the device lacks \
             CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
        );
    }
}
