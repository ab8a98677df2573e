// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA kernels, for tests that copies cannot express. The driver crate has none: sharing frames
//! needs none.
//!
//! # Safety
//! This file calls the driver with the signatures of cuda.h, live handles and arguments on its own
//! stack.
#![allow(unsafe_code)]

use frameshare_cuda::stream::Stream;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

type LoadData = unsafe extern "C" fn(*mut *mut c_void, *const c_char) -> c_int;
type GetFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// A kernel; its module stays loaded in its context.
#[derive(Debug)]
pub struct Kernel {
    function: *mut c_void,
    launch: Launch,
}

// SAFETY: a driver handle, usable from any thread.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Compiles the entry `name` of `ptx` for the context of `stream`. The simulated driver has no
    /// kernels.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn load(stream: &Stream, ptx: &CStr, name: &CStr) -> Result<Self, String> {
        let _current = stream.context().push().map_err(|error| error.to_string())?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the types match the declarations of these symbols in cuda.h.
        let (load, get, launch) = unsafe {
            (
                std::mem::transmute::<*mut c_void, LoadData>(symbol(c"cuModuleLoadData")?),
                std::mem::transmute::<*mut c_void, GetFunction>(symbol(c"cuModuleGetFunction")?),
                std::mem::transmute::<*mut c_void, Launch>(symbol(c"cuLaunchKernel")?),
            )
        };
        // SAFETY: the out-parameters hold one handle each, and the strings are C strings.
        unsafe {
            check("cuModuleLoadData", load(&mut module, ptx.as_ptr()))?;
            check("cuModuleGetFunction", get(&mut function, module, name.as_ptr()))?;
        }
        Ok(Self { function, launch })
    }

    /// Launches the kernel on `stream`, which must belong to the context that it was loaded into.
    /// Does not wait.
    ///
    /// # Errors
    /// The error of the driver.
    ///
    /// # Safety
    /// The kernel must take `N` parameters of eight bytes, and must be allowed to access the memory
    /// they refer to. Access to an address that the device may not access loses the context.
    pub unsafe fn launch<const N: usize>(
        &self,
        stream: &Stream,
        blocks: u32,
        threads: u32,
        mut parameters: [u64; N],
    ) -> Result<(), String> {
        let _current = stream.context().push().map_err(|error| error.to_string())?;
        let mut places =
            parameters.each_mut().map(|parameter| std::ptr::from_mut(parameter).cast::<c_void>());
        // SAFETY: the call copies the parameters; the caller guarantees their number and meaning.
        let code = unsafe {
            (self.launch)(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.as_raw(),
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", code)
    }
}

/// Returns the address of a function of the loaded driver.
///
/// # Errors
/// Fails if the driver lacks it.
pub fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the driver is loaded already; this call only returns its handle.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("no driver is loaded".into());
    }
    // SAFETY: the library is never unloaded, and the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        Err(format!("symbol {} not found in the driver", name.to_string_lossy()))
    } else {
        Ok(found)
    }
}

/// Turns the result of a call of the driver into an error that names the call.
///
/// # Errors
/// Fails if the code is not 0.
pub fn check(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: {code}")) }
}
