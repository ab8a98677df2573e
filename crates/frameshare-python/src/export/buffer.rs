// SPDX-License-Identifier: MIT OR Apache-2.0

//! The buffer protocol: frames in host memory, read-only, and slots.
//!
//! # Safety
//!
//! Structs of Python are filled as its contract of the buffer protocol says. Addresses that go out
//! are of memory that an owner in the same struct keeps mapped, such as a [`View`].
#![allow(unsafe_code)]

use crate::{
    layout::{ArrayLayout, Element, MAX_DIMENSIONS},
    lease::{Lease, View},
};
use pyo3::{exceptions::PyBufferError, ffi, prelude::*};
use std::{
    ffi::{CStr, c_int, c_void},
    ptr,
    sync::Arc,
};

/// The arrays of a filled struct and the owner of its memory, until it is released.
struct Exported {
    shape: [ffi::Py_ssize_t; MAX_DIMENSIONS],
    strides: [ffi::Py_ssize_t; MAX_DIMENSIONS],
    _owner: Box<dyn Send>,
}

/// The letter of the elements, as in the module `struct`.
fn letter(element: Element) -> &'static CStr {
    match element {
        Element::U8 => c"B",
        Element::U16 => c"H",
        Element::U32 => c"I",
    }
}

/// Fills a struct with the array of a frame in host memory.
///
/// # Errors
/// `BufferError` for GPU memory, and as [`fill_with`].
///
/// # Safety
/// `view` is a struct that Python passed to `__getbuffer__` of `object`.
pub unsafe fn fill(
    object: &Bound<'_, PyAny>,
    lease: &Arc<Lease>,
    array: &ArrayLayout,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let Some(start) = lease.memory().host_start() else {
        return Err(PyBufferError::new_err(
            "the frame is in GPU memory: use DLPack, or open the stream with device=\"cpu\"",
        ));
    };
    let start = start.as_ptr().cast::<u8>().wrapping_add(array.offset);
    let is_read_only = lease.memory().leased().is_some();
    // SAFETY: the caller's contract; the engine has checked that the array is inside the frame,
    // which the view keeps mapped.
    unsafe { fill_with(object, View::of(lease), start, array, is_read_only, view, flags) }
}

/// Fills a struct with an array in host memory.
///
/// # Errors
/// `BufferError` for writing what is read-only, and for a consumer that cannot handle the strides.
///
/// # Safety
/// `view` is a struct that Python passed to `__getbuffer__` of `object`. `start` is the address of
/// the first element; `owner` keeps the memory of the array mapped.
pub unsafe fn fill_with(
    object: &Bound<'_, PyAny>,
    owner: impl Send + 'static,
    start: *mut u8,
    array: &ArrayLayout,
    is_read_only: bool,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let refused = |text: &str| Err(PyBufferError::new_err(text.to_owned()));
    let asks = |flag: c_int| flags & flag == flag;
    if asks(ffi::PyBUF_WRITABLE) && is_read_only {
        return refused("frames are read-only: use frame.clone(), or a copy");
    }
    if asks(ffi::PyBUF_F_CONTIGUOUS) {
        return refused("the rows of the plane lie one after the other: a Fortran order is not there");
    }
    if !array.is_c_contiguous()
        && (!asks(ffi::PyBUF_STRIDES) || asks(ffi::PyBUF_C_CONTIGUOUS) || asks(ffi::PyBUF_ANY_CONTIGUOUS))
    {
        return refused("the rows of the plane have padding: the consumer has to take strides");
    }
    let size = array.element.size();
    let dimensions = array.shape.len();
    let (mut shape, mut strides) = ([1; MAX_DIMENSIONS], [0; MAX_DIMENSIONS]);
    for (to, from) in [(&mut shape, &array.shape), (&mut strides, &array.strides)] {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as ffi::Py_ssize_t);
    }
    let count: ffi::Py_ssize_t = shape.iter().product();
    let exported = Box::into_raw(Box::new(Exported { shape, strides, _owner: Box::new(owner) }));
    // SAFETY: `view` is to be filled; the arrays live as long as `exported`, which `release` frees.
    unsafe {
        let view = &mut *view;
        view.obj = object.clone().into_ptr();
        view.buf = start.cast::<c_void>();
        view.len = count * size as ffi::Py_ssize_t;
        view.itemsize = size as ffi::Py_ssize_t;
        view.readonly = is_read_only.into();
        view.ndim = dimensions as c_int;
        view.format =
            if asks(ffi::PyBUF_FORMAT) { letter(array.element).as_ptr().cast_mut() } else { ptr::null_mut() };
        view.shape = if asks(ffi::PyBUF_ND) { (*exported).shape.as_mut_ptr() } else { ptr::null_mut() };
        view.strides =
            if asks(ffi::PyBUF_STRIDES) { (*exported).strides.as_mut_ptr() } else { ptr::null_mut() };
        view.suboffsets = ptr::null_mut();
        view.internal = exported.cast();
    }
    Ok(())
}

/// Frees the arrays and the owner of a filled struct.
///
/// # Safety
/// `view` was filled by [`fill_with`], and is released once.
pub unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `fill_with` stored the pointer of a box.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Exported>()) });
}
