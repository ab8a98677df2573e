//! Kernels, for what no copy of the driver's does. The driver crate has none: sharing frames needs none.
//!
//! # Safety
//! This file calls the driver with cuda.h's signatures, handles that are alive and arguments on its own stack.
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

/// A kernel, which stays loaded in its context for good.
#[derive(Debug)]
pub struct Kernel {
    function: *mut c_void,
    launch: Launch,
}

// SAFETY: a handle of the driver's, which any thread may use.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Has the driver compile the entry `name` of `ptx` for the context of `stream`. The simulated driver has no kernels.
    ///
    /// # Errors
    /// What the driver says.
    pub fn load(stream: &Stream, ptx: &CStr, name: &CStr) -> Result<Self, String> {
        let _current = stream.context().push().map_err(|error| error.to_string())?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the types are those that cuda.h declares for these symbols.
        let (load, get, launch) = unsafe {
            (
                std::mem::transmute::<*mut c_void, LoadData>(symbol(c"cuModuleLoadData")?),
                std::mem::transmute::<*mut c_void, GetFunction>(symbol(c"cuModuleGetFunction")?),
                std::mem::transmute::<*mut c_void, Launch>(symbol(c"cuLaunchKernel")?),
            )
        };
        // SAFETY: places for one handle each, and C strings.
        unsafe {
            check("cuModuleLoadData", load(&mut module, ptx.as_ptr()))?;
            check("cuModuleGetFunction", get(&mut function, module, name.as_ptr()))?;
        }
        Ok(Self { function, launch })
    }

    /// Runs it in the order of `stream`, which belongs to the context that it was loaded into. Does not wait.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The kernel must take `N` parameters of eight bytes, and may access what they name. An address that the device may
    /// not access costs the context.
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
        // SAFETY: the call copies the parameters; the caller vouches for their number and what they mean.
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

fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the driver is loaded already; this only looks it up.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("no driver is loaded".into());
    }
    // SAFETY: a library that is never unloaded, and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("no {}", name.to_string_lossy())) } else { Ok(found) }
}

fn check(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: {code}")) }
}
