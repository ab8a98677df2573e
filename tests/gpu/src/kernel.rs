//! A kernel that writes one word, for the cases that must lose a context.
//!
//! The suites do without kernels elsewhere, since the simulated driver has none. A memset does not do here: drivers refuse
//! it at the call where a kernel fails when it runs.
//!
//! # Safety
//! This file calls the driver with cuda.h's signatures, handles that are alive and arguments on its own stack.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use frameshare_cuda::DevicePtr;
use frameshare_cuda::stream::Stream;

/// Turing is the oldest architecture that CUDA 13 knows.
const PTX: &CStr = c"
.version 6.4
.target sm_75
.address_size 64
.visible .entry store(.param .u64 place)
{
    .reg .b32 %value;
    .reg .b64 %generic, %address;
    ld.param.u64 %generic, [place];
    cvta.to.global.u64 %address, %generic;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
";

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

/// The kernel, loaded into the context that it was loaded in for good.
pub struct Store {
    function: *mut c_void,
    launch: Launch,
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

impl Store {
    /// Loads the kernel into the context of `stream`; the driver compiles it.
    pub fn load(stream: &Stream) -> Result<Store, String> {
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
            check("cuModuleLoadData", load(&mut module, PTX.as_ptr()))?;
            check("cuModuleGetFunction", get(&mut function, module, c"store".as_ptr()))?;
        }
        Ok(Store { function, launch })
    }

    /// Writes the word at `address` in the order of `stream`, whose context the kernel was loaded into.
    ///
    /// # Safety
    /// Nothing else may use the word meanwhile. An address that the device may not write costs the context.
    pub unsafe fn launch(&self, stream: &Stream, mut address: DevicePtr) -> Result<(), String> {
        let _current = stream.context().push().map_err(|error| error.to_string())?;
        let mut arguments = [(&raw mut address).cast::<c_void>()];
        let none = std::ptr::null_mut();
        // SAFETY: one argument of eight bytes, which the call copies.
        let code = unsafe {
            (self.launch)(self.function, 1, 1, 1, 1, 1, 1, 0, stream.as_raw(), arguments.as_mut_ptr(), none)
        };
        check("cuLaunchKernel", code)
    }
}
