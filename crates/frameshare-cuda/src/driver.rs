// SPDX-License-Identifier: MIT OR Apache-2.0

//! Driver function table, loaded from libcuda.so.1 at run time.
//!
//! Only the calls that this crate uses are listed, under the names that libcuda exports for the
//! CUDA 12 interface. A missing symbol stays `None`, and its call returns [`Error::Missing`].
//! Results are integers: with an enum, a code of a newer driver would be undefined behavior.
//!
//! # Safety
//! This file converts symbols to function pointers and calls them. The signatures must match cuda.h
//! (the layout test checks their argument types); the callers in this crate ensure each call's
//! requirements on its arguments.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use frameshare_process::{PerProcess, process_number};
use libloading::Library;
use once_cell::sync::OnceCell;

use crate::DevicePtr;
use crate::abi::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUevent, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool,
    CUstream, CUstreamBatchMemOpParams, CUuuid, code,
};
use crate::error::{Error, FORKED, names};
use crate::{exit, order};

macro_rules! table {
    ($(fn $symbol:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The resolved calls and the driver version.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Driver {
            version: c_int,
            $($symbol: Option<unsafe extern "C" fn($($ty),*) -> c_int>,)*
        }

        #[allow(non_camel_case_types, reason = "the driver's own names")]
        #[derive(Clone, Copy)]
        enum Index { $($symbol,)* }

        pub(crate) const NAMES: &[&str] = &[$(stringify!($symbol)),*];

        /// Sizes of each call's arguments.
        #[cfg(test)]
        pub(crate) const SIGNATURES: &[&[usize]] = &[$(&[$(size_of::<$ty>()),*]),*];

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and arguments")]
        impl Driver {
            fn resolve(library: &Library) -> Driver {
                Driver {
                    version: 0,
                    $(
                        // SAFETY: the type matches the declaration in cuda.h.
                        $symbol: unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                            .ok()
                            .map(|symbol| *symbol),
                    )*
                }
            }

            /// Returns whether the driver exports `call`, a call of this table.
            pub(crate) fn has(&self, call: &str) -> bool {
                $(if call == stringify!($symbol) { return self.$symbol.is_some(); })*
                false
            }

            $(
                /// # Safety
                /// As the CUDA driver API requires for the call of this name.
                pub(crate) unsafe fn $symbol(&self, $($arg: $ty),*) -> Result<(), Error> {
                    let call = self.$symbol.ok_or(Error::Missing { call: stringify!($symbol) })?;
                    let deinitialized = Error::Call { call: stringify!($symbol), code: code::DEINITIALIZED };
                    let _under_way = exit::begin_call().ok_or(deinitialized)?;
                    COUNTS[Index::$symbol as usize].fetch_add(1, Ordering::Relaxed);
                    // SAFETY: the pointer is from a library that is never unloaded; the caller
                    // guarantees the arguments.
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
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamWriteValue64_v2(stream: CUstream, address: DevicePtr, value: u64, flags: c_uint);
    fn cuStreamWaitValue64_v2(stream: CUstream, address: DevicePtr, value: u64, flags: c_uint);
    fn cuStreamBatchMemOp_v2(
        stream: CUstream,
        count: c_uint,
        operations: *mut CUstreamBatchMemOpParams,
        flags: c_uint,
    );
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

    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const CUmemAllocationProp,
        option: c_uint,
    );
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
    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle,
        shareable: *mut c_void,
        kind: c_uint,
    );

    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    fn cuMemPoolExportToShareableHandle(
        shareable: *mut c_void,
        pool: CUmemoryPool,
        kind: c_uint,
        flags: c_ulonglong,
    );
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
static DRIVER: PerProcess<OnceCell<Driver>> = PerProcess::new(OnceCell::new);
/// The process that has begun to load the driver; 0 for none. A forked child has its parent's.
static LOADED_BY: AtomicU64 = AtomicU64::new(0);

impl Driver {
    /// Returns the version, as reported by cuDriverGetVersion.
    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    /// Returns the driver's name for an error code, if it has one.
    fn error_name(&self, code: i32) -> Option<&'static str> {
        let mut name = std::ptr::null();
        // SAFETY: `name` is an out-parameter for one pointer; unknown codes are allowed.
        unsafe { self.cuGetErrorName(code, &mut name) }.ok()?;
        if name.is_null() {
            return None;
        }
        // SAFETY: the driver returned a static NUL-terminated string and is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }
}

/// Returns the driver; loads and initializes it on the first successful call.
///
/// Failures are not cached: the process may start before the driver is ready.
pub(crate) fn get() -> Result<&'static Driver, Error> {
    get_or_load(&DRIVER, &LOADED_BY, load)
}

/// Returns the driver, which `load` loads if it is not loaded yet. A forked child of a process that
/// has loaded it, or was loading it at the fork, cannot use CUDA.
fn get_or_load<'a, T>(
    driver: &'a OnceCell<T>,
    loaded_by: &AtomicU64,
    load: impl FnOnce() -> Result<T, Error>,
) -> Result<&'a T, Error> {
    if let Some(driver) = driver.get() {
        return Ok(driver);
    }
    let process = process_number();
    match loaded_by.load(Ordering::Relaxed) {
        0 => {}
        own if own == process => {}
        _ => {
            return Err(Error::NoDriver {
                reason: format!("the process that forked this one has used CUDA{FORKED}"),
            });
        }
    }
    driver.get_or_try_init(|| {
        loaded_by.store(process, Ordering::Relaxed);
        load().inspect_err(|_| loaded_by.store(0, Ordering::Relaxed))
    })
}

/// Iterates over every call of the table with its count.
pub(crate) fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES.iter().zip(&COUNTS).map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
}

fn load() -> Result<Driver, Error> {
    // SAFETY: libcuda's initializers are made to run in any process that loads it; this crate does
    // not depend on them.
    let library = unsafe { Library::new("libcuda.so.1") }
        .map_err(|error| Error::NoDriver { reason: loader_says(&error) })?;
    let mut driver = Driver::resolve(&library);
    order::find(&library);
    // The driver starts threads: its code must stay mapped until the process ends.
    std::mem::forget(library);

    let refused = |error: Error| Error::NoDriver { reason: error.to_string() };
    // SAFETY: 0 is the only valid argument of cuInit.
    unsafe { driver.cuInit(0) }.map_err(refused)?;
    exit::guard();
    let mut version = 0;
    // SAFETY: `version` is an out-parameter for one int.
    unsafe { driver.cuDriverGetVersion(&mut version) }.map_err(refused)?;
    driver.version = version;
    names::set_driver(|code| DRIVER.get().get()?.error_name(code));
    Ok(driver)
}

/// Returns the loader's own message, which the error carries as its source.
fn loader_says(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A driver handle: an opaque token that is never dereferenced here.
#[derive(Debug)]
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: the driver accepts its handles on any thread (CUDA C++ programming guide, driver API).
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; the driver synchronizes concurrent calls on one handle.
unsafe impl<T> Sync for Handle<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_process::testing::in_child;
    use std::{sync::Barrier, thread};

    #[test]
    fn missing_driver_is_an_error() {
        match get() {
            Ok(driver) => assert!(driver.version() >= 12_000),
            Err(Error::NoDriver { reason }) => {
                assert!(reason.contains("libcuda.so.1") || reason.contains("cuInit"), "{reason}")
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn forked_child_does_not_wait_for_load_of_its_parent() {
        let (driver, loaded_by) = (OnceCell::new(), AtomicU64::new(0));
        let checked = Barrier::new(2);
        let load = || {
            checked.wait();
            Ok(7)
        };
        thread::scope(|scope| {
            let loading = scope.spawn(|| get_or_load(&driver, &loaded_by, load).copied());
            while loaded_by.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            let refused = in_child(|| {
                matches!(get_or_load(&driver, &loaded_by, || Ok(8)), Err(Error::NoDriver { .. }))
            });
            checked.wait();
            assert_eq!((refused, loading.join().unwrap()), (Some(true), Ok(7)));
        });
    }

    #[test]
    fn forked_child_does_not_use_driver_of_its_parent() {
        static DRIVER: PerProcess<OnceCell<u8>> = PerProcess::new(OnceCell::new);
        let loaded_by = AtomicU64::new(0);
        let get = || get_or_load(&DRIVER, &loaded_by, || Ok(7));
        assert_eq!(get(), Ok(&7));
        let refused = |error: Error| error.to_string().contains("has used CUDA");
        assert_eq!(in_child(|| get().is_err_and(refused)), Some(true));
        assert_eq!(get(), Ok(&7));
    }

    #[test]
    fn failed_load_is_repeated() {
        let (driver, loaded_by) = (OnceCell::new(), AtomicU64::new(0));
        let failed = get_or_load(&driver, &loaded_by, || Err(Error::NoDriver { reason: String::new() }));
        assert!(failed.is_err());
        assert_eq!(get_or_load(&driver, &loaded_by, || Ok(7)), Ok(&7));
    }

    #[test]
    fn missing_symbol_is_an_error() {
        // The C library stands in for a driver that lacks every call.
        // SAFETY: it is already loaded, so no initializers run.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        let driver = Driver::resolve(&library);
        assert!(!driver.has("cuInit"));
        // SAFETY: nothing is called.
        let result = unsafe { driver.cuInit(0) };
        assert_eq!(result, Err(Error::Missing { call: "cuInit" }));
        assert!(!counts().any(|(call, count)| call == "cuCtxRecordEvent" && count > 0));
    }
}
