// SPDX-License-Identifier: MIT OR Apache-2.0

//! cuGetProcAddress: this library's own symbols, the newest version of each name first.

use crate::api::{Answer, INVALID_VALUE, NOT_FOUND, Name, Out};
use std::ffi::{CStr, CString, c_void};

/// Returns the address of a symbol of this library.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a zero Dl_info is valid, and dladdr fills it with strings that live as long as this
    // library.
    let own = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(cuGetProcAddress_v2 as *const c_void, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
    };
    if own.is_null() {
        return None;
    }
    // SAFETY: `own` is an open library, which stays loaded after the close, and `name` is a C
    // string.
    let found = unsafe {
        let found = libc::dlsym(own, name.as_ptr());
        libc::dlclose(own);
        found
    };
    (!found.is_null()).then_some(found)
}

fn newest(name: &CStr) -> Option<*mut c_void> {
    let name = name.to_str().ok()?;
    // cuCtxCreate_v3 and _v4 take other arguments: the real driver returns them only to programs
    // that ask for a newer CUDA version.
    let suffixes: &[&str] = if name == "cuCtxCreate" { &["_v2"] } else { &["_v3", "_v2", ""] };
    suffixes.iter().find_map(|suffix| find(&CString::new(format!("{name}{suffix}")).ok()?))
}

fn answer(name: &Name, out: &Out<*mut c_void>, status: Option<&Out<i32>>) -> Answer {
    out.check()?;
    let name = name.get()?;
    if name.is_empty() {
        return Err(INVALID_VALUE);
    }
    let found = newest(name);
    if let Some(status) = status {
        status.set_if_wanted(if found.is_some() { 0 } else { 1 });
    }
    out.set(found.unwrap_or(std::ptr::null_mut()))?;
    found.map(|_| ()).ok_or(NOT_FOUND)
}

crate::export! {
    fn cuGetProcAddress(name: Name, out: Out<*mut c_void>, _version: i32, _flags: u64) {
        answer(&name, &out, None)
    }

    fn cuGetProcAddress_v2(name: Name, out: Out<*mut c_void>, _version: i32, _flags: u64, status: Out<i32>) {
        answer(&name, &out, Some(&status))
    }
}
