// SPDX-License-Identifier: MIT OR Apache-2.0

//! The border to C: panics, error messages, pointers.
//!
//! # Safety
//!
//! Pointers come from C, whose side of the contract is in the header: a pointer that is not NULL
//! points to what its type says, for the duration of the call.
#![allow(unsafe_code)]

use crate::failure::{Failure, Status};
use std::{
    any::Any,
    cell::RefCell,
    ffi::{CStr, CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// Maximum bytes of an array: those of an event or of metadata.
const MAX_ARRAY: usize = 64 << 20;
/// Maximum bytes of a message.
const MAX_TEXT: usize = 4000;

thread_local! {
    /// Message of the last failure of this thread.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs a function of the interface: a failure is remembered, and a panic ends here.
pub fn guard(call: impl FnOnce() -> Result<Status, Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Status::Internal, format!("bug in libframeshare: {}", text_of(&*panic))),
    };
    let (status, mut text) = (failure.status, failure.text);
    // A message repeats arguments, which have any length.
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    // Fails only while the thread ends, which then has no use for the message.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = c_string(text));
    status
}

/// Runs a function of the interface that cannot fail: a panic ends here.
pub fn quietly<T>(instead: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(instead)
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic")
}

/// Returns a text for C, with its zeros replaced.
pub fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
    CString::new(bytes).unwrap_or_default()
}

fn check<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    match pointer {
        _ if pointer.is_null() => Err(Failure::argument(format!("{name} is NULL"))),
        _ if !pointer.is_aligned() => Err(Failure::argument(format!("{name} is not aligned: {pointer:p}"))),
        _ => Ok(()),
    }
}

/// Returns the object that a pointer names.
///
/// # Safety
/// The pointer is NULL or points to a `T` that lives and is not changed through others meanwhile.
pub unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check(pointer, name)?;
    // SAFETY: not NULL and aligned; the caller guarantees the rest.
    Ok(unsafe { &*pointer })
}

/// Stores a result.
///
/// # Safety
/// The pointer is NULL or points to memory for a `T` that may be written.
pub unsafe fn store<T>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    check(pointer, name)?;
    // SAFETY: not NULL and aligned; the caller guarantees the rest. Nothing is dropped: the results
    // are numbers and pointers.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Checks a pointer for [`store`], if it is not NULL.
///
/// # Errors
/// It is not aligned.
pub fn check_optional<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() { Ok(()) } else { check(pointer, name) }
}

/// Takes an object back that [`Box::into_raw`] gave to C.
///
/// # Safety
/// The pointer is NULL or was returned by this library, and is not used afterwards.
pub unsafe fn take<T>(pointer: *mut T, name: &str) -> Result<Box<T>, Failure> {
    check(pointer, name)?;
    // SAFETY: the caller returns ownership of an object that `Box::into_raw` gave away.
    Ok(unsafe { Box::from_raw(pointer) })
}

/// Returns a text.
///
/// # Safety
/// The pointer is NULL or points to a text that ends with a zero and lives meanwhile.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(pointer, name)?;
    // SAFETY: not NULL; the caller guarantees the rest.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8: {text:?}")))
}

/// Returns `len` values, of 64 MiB at most; none if that is 0.
///
/// # Safety
/// The pointer is NULL or points to so many values, which live and do not change meanwhile.
pub unsafe fn values<'a, T: Copy>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer, name)?;
    // Before a copy is made, which could need more memory than there is.
    if len > MAX_ARRAY / size_of::<T>().max(1) {
        let text = format!("{name} has {len} values, but must not have more than {MAX_ARRAY} bytes");
        return Err(Failure::argument(text));
    }
    // SAFETY: not NULL, aligned and of a possible size; the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// Returns a timeout; negative ones are without limit.
pub fn timeout(ns: i64) -> Option<Duration> {
    u64::try_from(ns).ok().map(Duration::from_nanos)
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub extern "C" fn frameshare_last_error() -> *const c_char {
    quietly(c"".as_ptr(), || LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr()))
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub extern "C" fn frameshare_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
