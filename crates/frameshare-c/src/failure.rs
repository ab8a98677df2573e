// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statuses, and errors of the engine as statuses.
//!
//! # Safety
//!
//! One exported symbol. The texts that it returns are static.
#![allow(unsafe_code)]

use frameshare::{
    EndpointError, Reason, cuda,
    exporter::{AcquireError, BindError, EventTooLong, Interrupted, PublishError, VideoExporterError},
    fence::FenceError,
    memory::MemoryError,
    observer::ObserveError,
    reader::{ConnectError, ReadError},
    video::VideoError,
};
use std::{
    ffi::{CStr, c_char, c_uint},
    io,
};

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    Ok,
    Timeout,
    EndOfStream,
    Interrupted,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    InUse,
    Refused,
    ExporterStopped,
    ExporterLost,
    Evicted,
    Protocol,
    Cuda,
    Unsupported,
    NoResources,
    System,
    Internal,
    AllHeld,
}

/// A status as a number from C.
pub type RawStatus = c_uint;

/// Names of the statuses, in their order.
const NAMES: [&CStr; 19] = [
    c"ok",
    c"timeout",
    c"end of stream",
    c"interrupted",
    c"invalid argument",
    c"not found",
    c"permission denied",
    c"in use",
    c"refused",
    c"exporter stopped",
    c"exporter lost",
    c"evicted",
    c"protocol error",
    c"CUDA error",
    c"unsupported",
    c"no resources",
    c"system error",
    c"internal error",
    c"all frames held",
];

/// See frameshare.h.
#[unsafe(no_mangle)]
pub extern "C" fn frameshare_status_name(status: RawStatus) -> *const c_char {
    NAMES.get(status as usize).unwrap_or(&c"unknown status").as_ptr()
}

/// A call that failed.
#[derive(Debug)]
pub struct Failure {
    pub status: Status,
    /// The reason, for people.
    pub text: String,
}

impl Failure {
    pub fn new(status: Status, text: impl ToString) -> Self {
        Self { status, text: text.to_string() }
    }

    pub fn argument(text: impl ToString) -> Self {
        Self::new(Status::InvalidArgument, text)
    }

    /// The failure of an argument of C's: an error about it is one about the argument.
    pub fn of_argument(name: &str, error: impl ToString) -> Self {
        Self::argument(format!("{name}: {}", error.to_string()))
    }
}

fn of_io(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Status::PermissionDenied,
        io::ErrorKind::OutOfMemory => Status::NoResources,
        _ if [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
            .iter()
            .any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) =>
        {
            Status::NoResources
        }
        _ => Status::System,
    }
}

fn of_connect(error: &ConnectError) -> Status {
    match error {
        ConnectError::NotThere { .. } | ConnectError::NotAnswering { .. } => Status::NotFound,
        ConnectError::WrongUser { .. }
        | ConnectError::PermissionDenied { .. }
        | ConnectError::Refused { reason: Reason::PermissionDenied, .. } => Status::PermissionDenied,
        ConnectError::Refused { reason: Reason::Failed, .. } => Status::NoResources,
        ConnectError::Refused { .. } => Status::Refused,
        ConnectError::Protocol(_) | ConnectError::Violation(_) => Status::Protocol,
        ConnectError::GpuNotVisible { .. }
        | ConnectError::GpuOutOfReach { .. }
        | ConnectError::EventsNotShared(_)
        | ConnectError::EventsOfOtherContext
        | ConnectError::Driver(_) => Status::Cuda,
        ConnectError::Interrupted => Status::Interrupted,
        ConnectError::Config(_) => Status::InvalidArgument,
        ConnectError::Io { source, .. } => of_io(source),
        _ => Status::System,
    }
}

fn of_memory(error: &MemoryError) -> Status {
    if error.kind.is_gpu() { Status::Cuda } else { Status::NoResources }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(of_io(&error), error)
    }
}

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        Self::argument(error)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::new(of_connect(&error), error)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let status = match &error {
            ReadError::Interrupted => Status::Interrupted,
            ReadError::Held { .. } => Status::AllHeld,
            ReadError::Stopped(_) => Status::ExporterStopped,
            ReadError::Gone { .. } | ReadError::Stalled { .. } => Status::ExporterLost,
            ReadError::CutOff { reason: Reason::Failed, .. } => Status::ExporterLost,
            ReadError::CutOff { .. } => Status::Evicted,
            ReadError::Fence(_) => Status::Cuda,
            ReadError::NotBack(error) | ReadError::Gpu(error) => of_connect(error),
            ReadError::Violation(_) => Status::Protocol,
            ReadError::TooMuchMetadata { .. } => Status::NoResources,
            ReadError::Memory(error) => of_memory(error),
            ReadError::Io(error) => of_io(error),
            _ => Status::System,
        };
        Self::new(status, error)
    }
}

impl From<ObserveError> for Failure {
    fn from(error: ObserveError) -> Self {
        let status = match &error {
            ObserveError::NotThere { .. }
            | ObserveError::NotAnswering { .. }
            | ObserveError::NoSuchReader { .. } => Status::NotFound,
            ObserveError::WrongUser { .. }
            | ObserveError::PermissionDenied { .. }
            | ObserveError::MayNotDisconnect { .. }
            | ObserveError::Refused { reason: Reason::PermissionDenied, .. } => Status::PermissionDenied,
            ObserveError::Refused { .. } => Status::Refused,
            ObserveError::Closed { reason: Reason::Stopped, .. } => Status::ExporterStopped,
            ObserveError::Closed { reason: Reason::Failed, .. } | ObserveError::Gone => Status::ExporterLost,
            ObserveError::Closed { .. } => Status::Evicted,
            ObserveError::Protocol(_) | ObserveError::Violation(_) => Status::Protocol,
            ObserveError::Io { source, .. } => of_io(source),
            _ => Status::System,
        };
        Self::new(status, error)
    }
}

impl From<VideoError> for Failure {
    fn from(error: VideoError) -> Self {
        let status = match &error {
            VideoError::NoSuchPlane { .. } | VideoError::Target { .. } | VideoError::TooLarge { .. } => {
                Status::InvalidArgument
            }
            VideoError::PlaneCount { .. }
            | VideoError::OutOfBounds { .. }
            | VideoError::OverlappingRows { .. } => Status::Protocol,
            _ => Status::Unsupported,
        };
        Self::new(status, error)
    }
}

impl From<cuda::Error> for Failure {
    fn from(error: cuda::Error) -> Self {
        /// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_CONTEXT,
        /// CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED.
        const OF_ARGUMENTS: [i32; 5] = [1, 101, 201, 400, 709];
        let is_argument = matches!(&error, cuda::Error::Refused(_) | cuda::Error::NoDevice { .. })
            || error.code().is_some_and(|code| OF_ARGUMENTS.contains(&code));
        Self::new(if is_argument { Status::InvalidArgument } else { Status::Cuda }, error)
    }
}

impl From<FenceError> for Failure {
    fn from(error: FenceError) -> Self {
        Self::new(Status::Cuda, error)
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        let status = match &error {
            BindError::InUse { .. } => Status::InUse,
            BindError::Config(_) => Status::InvalidArgument,
            BindError::Io { source, .. } => of_io(source),
            BindError::NoThread { .. } => Status::NoResources,
            _ => Status::System,
        };
        Self::new(status, error)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        let status = match &error {
            AcquireError::Exhausted { .. } => Status::NoResources,
            AcquireError::Memory(error) => of_memory(error),
            AcquireError::Interrupted => Status::Interrupted,
            AcquireError::Closed => Status::ExporterStopped,
            AcquireError::Size(_) => Status::InvalidArgument,
            _ => Status::System,
        };
        Self::new(status, error)
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        let status = match &error {
            PublishError::Interrupted => Status::Interrupted,
            PublishError::NoRoom => Status::Timeout,
            PublishError::Closed => Status::ExporterStopped,
            PublishError::Gpu(_) => Status::Cuda,
            PublishError::NotForAll(_) | PublishError::WouldWait => Status::Unsupported,
            PublishError::Invalid(_) => Status::InvalidArgument,
            _ => Status::System,
        };
        Self::new(status, error)
    }
}

impl From<VideoExporterError> for Failure {
    fn from(error: VideoExporterError) -> Self {
        match error {
            VideoExporterError::Endpoint(error) => error.into(),
            VideoExporterError::Format(error) => error.into(),
            VideoExporterError::Bind(error) => error.into(),
            VideoExporterError::Acquire(error) => error.into(),
            VideoExporterError::Publish(error) => error.into(),
            VideoExporterError::FormerFormat => Self::argument(
                "the frame has the format before frameshare_exporter_set_format: acquire another one",
            ),
            error => Self::new(Status::System, error),
        }
    }
}

impl From<Interrupted> for Failure {
    fn from(error: Interrupted) -> Self {
        Self::new(Status::Interrupted, error)
    }
}

impl From<EventTooLong> for Failure {
    fn from(error: EventTooLong) -> Self {
        Self::argument(error)
    }
}
