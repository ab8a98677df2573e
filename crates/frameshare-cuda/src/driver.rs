//! The table of the driver's calls, found in libcuda.so.1 at run time.
//!
//! Only calls that this crate makes are listed, each under the name that libcuda exports for the interface of CUDA 12.
//! A symbol that is absent stays `None`, and calling it is [`Error::Missing`]. Results are integers: an enum would make
//! a code of a newer driver undefined behaviour.
//!
//! # Safety
//! This file turns symbols into function pointers and calls them. The signatures must be those of cuda.h (the layout
//! test checks the types in them); what each call demands of its arguments is upheld by the callers in this crate.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::Library;
use once_cell::sync::OnceCell;

use crate::DevicePtr;
use crate::abi::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUevent, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool,
    CUstream, CUstreamBatchMemOpParams, CUuuid, code,
};
use crate::error::Error;
use crate::exit;

macro_rules! table {
    ($(fn $symbol:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The calls that were found, and the driver's version.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Driver {
            version: c_int,
            $($symbol: Option<unsafe extern "C" fn($($ty),*) -> c_int>,)*
        }

        #[allow(non_camel_case_types, reason = "the driver's own names")]
        #[derive(Clone, Copy)]
        enum Index { $($symbol,)* }

        pub(crate) const NAMES: &[&str] = &[$(stringify!($symbol)),*];

        /// The sizes of each call's arguments.
        #[cfg(test)]
        pub(crate) const SIGNATURES: &[&[usize]] = &[$(&[$(size_of::<$ty>()),*]),*];

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and arguments")]
        impl Driver {
            fn resolve(library: &Library) -> Driver {
                Driver {
                    version: 0,
                    $(
                        // SAFETY: the type is the one cuda.h declares for this symbol.
                        $symbol: unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                            .ok()
                            .map(|symbol| *symbol),
                    )*
                }
            }

            /// Whether the driver exports `call`, one of the calls of this table.
            pub(crate) fn has(&self, call: &str) -> bool {
                $(if call == stringify!($symbol) { return self.$symbol.is_some(); })*
                false
            }

            $(
                /// # Safety
                /// As the CUDA driver API demands for the call of this name.
                pub(crate) unsafe fn $symbol(&self, $($arg: $ty),*) -> Result<(), Error> {
                    let call = self.$symbol.ok_or(Error::Missing { call: stringify!($symbol) })?;
                    let deinitialized = Error::Call { call: stringify!($symbol), code: code::DEINITIALIZED };
                    let _under_way = exit::begin_call().ok_or(deinitialized)?;
                    COUNTS[Index::$symbol as usize].fetch_add(1, Ordering::Relaxed);
                    // SAFETY: the pointer came from a library that is never unloaded; the rest is the caller's.
                    Error::check(stringify!($symbol), unsafe { call($($arg),*) })
                }
            )*
        }
    };
}

table! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetErrorName(error: c_int, name: *mut *const c_char);

    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxSynchronize();
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent);

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamWriteValue64_v2(stream: CUstream, address: DevicePtr, value: u64, flags: c_uint);
    fn cuStreamWaitValue64_v2(stream: CUstream, address: DevicePtr, value: u64, flags: c_uint);
    fn cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, operations: *mut CUstreamBatchMemOpParams, flags: c_uint);
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);

    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent);
    fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle);

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(pointer: *mut DevicePtr, size: usize);
    fn cuMemFree_v2(pointer: DevicePtr);
    fn cuMemGetAddressRange_v2(base: *mut DevicePtr, size: *mut usize, pointer: DevicePtr);
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, pointer: DevicePtr);
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, pointer: DevicePtr);
    fn cuIpcOpenMemHandle_v2(pointer: *mut DevicePtr, handle: CUipcMemHandle, flags: c_uint);
    fn cuIpcCloseMemHandle(pointer: DevicePtr);

    fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const CUmemAllocationProp, option: c_uint);
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        properties: *const CUmemAllocationProp,
        flags: c_ulonglong,
    );
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemAddressReserve(
        pointer: *mut DevicePtr,
        size: usize,
        alignment: usize,
        address: DevicePtr,
        flags: c_ulonglong,
    );
    fn cuMemAddressFree(pointer: DevicePtr, size: usize);
    fn cuMemMap(
        pointer: DevicePtr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    );
    fn cuMemUnmap(pointer: DevicePtr, size: usize);
    fn cuMemSetAccess(pointer: DevicePtr, size: usize, access: *const CUmemAccessDesc, count: usize);
    fn cuMemExportToShareableHandle(
        shareable: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: c_uint,
        flags: c_ulonglong,
    );
    fn cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: c_uint);

    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    fn cuMemPoolExportToShareableHandle(shareable: *mut c_void, pool: CUmemoryPool, kind: c_uint, flags: c_ulonglong);
    fn cuMemPoolImportFromShareableHandle(
        pool: *mut CUmemoryPool,
        shareable: *mut c_void,
        kind: c_uint,
        flags: c_ulonglong,
    );
    fn cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, pointer: DevicePtr);
    fn cuMemPoolImportPointer(pointer: *mut DevicePtr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData);
    fn cuMemAllocFromPoolAsync(pointer: *mut DevicePtr, size: usize, pool: CUmemoryPool, stream: CUstream);
    fn cuMemFreeAsync(pointer: DevicePtr, stream: CUstream);

    fn cuMemcpyDtoDAsync_v2(to: DevicePtr, from: DevicePtr, size: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: DevicePtr, from: *const c_void, size: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr, size: usize, stream: CUstream);
    fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    fn cuMemsetD8Async(to: DevicePtr, value: u8, size: usize, stream: CUstream);

    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: c_uint);
    fn cuMemHostUnregister(pointer: *mut c_void);
    fn cuMemHostGetDevicePointer_v2(device: *mut DevicePtr, pointer: *mut c_void, flags: c_uint);
}

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static DRIVER: OnceCell<Driver> = OnceCell::new();

impl Driver {
    /// As cuDriverGetVersion gives it.
    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    /// The driver's own name for an error code, if it knows one.
    pub(crate) fn error_name(&self, code: i32) -> Option<&'static str> {
        let mut name = std::ptr::null();
        // SAFETY: `name` takes one pointer; unknown codes are allowed.
        unsafe { self.cuGetErrorName(code, &mut name) }.ok()?;
        if name.is_null() {
            return None;
        }
        // SAFETY: the driver returned a NUL-terminated string of its own, and is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }
}

/// The driver, loaded and initialised on the first call that succeeds.
///
/// A failure is not remembered: a process may start before the driver does.
pub(crate) fn get() -> Result<&'static Driver, Error> {
    DRIVER.get_or_try_init(load)
}

/// The driver, if it was loaded before.
pub(crate) fn loaded() -> Option<&'static Driver> {
    DRIVER.get()
}

/// Every call of the table with the number of times that it was made.
pub(crate) fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES.iter().zip(&COUNTS).map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
}

fn load() -> Result<Driver, Error> {
    // SAFETY: libcuda's initialisers are made to be run by whoever loads it; nothing of ours depends on them.
    let library = unsafe { Library::new("libcuda.so.1") }
        .map_err(|error| Error::NoDriver { reason: loader_says(&error) })?;
    let mut driver = Driver::resolve(&library);
    // The driver starts threads: its code must stay where it is until the process ends.
    std::mem::forget(library);

    let refused = |error: Error| Error::NoDriver { reason: error.to_string() };
    // SAFETY: 0 is the only value that cuInit takes.
    unsafe { driver.cuInit(0) }.map_err(refused)?;
    exit::guard();
    let mut version = 0;
    // SAFETY: `version` takes one int.
    unsafe { driver.cuDriverGetVersion(&mut version) }.map_err(refused)?;
    driver.version = version;
    Ok(driver)
}

/// The loader's own words, which the error keeps behind a headline.
fn loader_says(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A handle of the driver: a token that the driver interprets, never followed here.
#[derive(Debug)]
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: the driver may be called with any of its handles from any thread (CUDA C++ programming guide, driver API).
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; concurrent calls on one handle are the driver's to order.
unsafe impl<T> Sync for Handle<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_an_answer() {
        match get() {
            Ok(driver) => assert!(driver.version() >= 12_000),
            Err(Error::NoDriver { reason }) => {
                assert!(reason.contains("libcuda.so.1") || reason.contains("cuInit"), "{reason}")
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_missing_symbol_is_an_answer() {
        // The C library stands for a driver that has none of the calls.
        // SAFETY: it is loaded already, and has no initialisers to run again.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        let driver = Driver::resolve(&library);
        assert!(!driver.has("cuInit"));
        // SAFETY: nothing is called.
        let result = unsafe { driver.cuInit(0) };
        assert_eq!(result, Err(Error::Missing { call: "cuInit" }));
        assert!(!counts().any(|(call, count)| call == "cuCtxRecordEvent" && count > 0));
    }
}
