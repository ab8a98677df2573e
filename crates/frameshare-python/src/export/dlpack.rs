// SPDX-License-Identifier: MIT OR Apache-2.0

//! DLPack: `__dlpack__` and `__dlpack_device__` of frames, and the capsules of frames and slots.
//!
//! # Safety
//!
//! Capsules own a managed tensor until a consumer renames them, as the array API says. The tensor
//! has an owner of its memory, such as a [`View`], which lives until the consumer calls the
//! deleter, on any thread, with or without the GIL; dropping it touches no Python.
#![allow(unsafe_code)]

use super::{
    consumer::Consumer,
    copy::{self, Rows},
};
use crate::{
    fork::OfProcess,
    layout::{ArrayLayout, Element},
    lease::{Lease, View},
    memory::Memory,
};
use dlpark::{
    DlpackFlags, ManagedTensorBase,
    allocation::dynamic::Allocation,
    ffi::{DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion},
};
use pyo3::{
    exceptions::{PyBufferError, PyValueError},
    ffi,
    prelude::*,
};
use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::Arc,
};

/// kDLCPU and kDLCUDA.
pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;

/// The arguments of `__dlpack__`.
#[derive(Debug)]
pub struct Request<'a, 'py> {
    /// The consumer's stream.
    pub stream: Option<&'a Bound<'py, PyAny>>,
    /// The newest version that the consumer knows.
    pub max_version: Option<(u32, u32)>,
    /// The device that the consumer wants the array on.
    pub dl_device: Option<(i32, i32)>,
    /// Whether to copy: yes, no, or as needed.
    pub copy: Option<bool>,
}

/// Returns the kind and the number of the device of a frame.
pub fn device(lease: &Lease) -> (i32, i32) {
    match lease.gpu() {
        Some(gpu) => (CUDA, gpu.device().ordinal() as i32),
        None => (CPU, 0),
    }
}

/// Returns a capsule of the array of a frame.
///
/// # Errors
/// `BufferError` for another device, where a copy is needed and forbidden, and for bottom-up images
/// without a copy; `ValueError` for an invalid stream.
pub fn export<'py>(
    py: Python<'py>,
    lease: &Arc<Lease>,
    array: &ArrayLayout,
    request: &Request<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let own = device(lease);
    let wanted = request.dl_device.unwrap_or(own);
    if wanted != own && wanted != (CPU, 0) {
        return Err(PyBufferError::new_err(format!(
            "dl_device is {wanted:?}, but the frame is on {own:?}: it can be exported there, or copied to the \
             host, (1, 0)"
        )));
    }
    let is_copy = request.copy == Some(true) || wanted != own;
    if is_copy && request.copy == Some(false) {
        return Err(PyBufferError::new_err(
            "copy is False, but the frame is in GPU memory and wanted on the host: allow the copy",
        ));
    }
    if wanted.0 == CPU && request.stream.is_some_and(|stream| !matches!(stream.extract::<i64>(), Ok(-1))) {
        return Err(PyValueError::new_err("stream is given for an array on the host: pass None"));
    }
    // Refused before anything is queued.
    array.element_strides()?;
    // PyTorch 1.13 ends the process when it gets negative strides, which the exporter chooses.
    if !is_copy && array.strides.iter().any(|stride| *stride < 0) {
        return Err(PyBufferError::new_err(
            "the plane has its last row first, and many libraries take no negative strides: use numpy.asarray, \
             a copy by __dlpack__(copy=True), or frame.rgb(like=\"numpy\")",
        ));
    }
    let consumer = || match lease.gpu() {
        Some(gpu) => Consumer::of_dlpack(request.stream, lease, gpu),
        None => Ok(Consumer::Unordered),
    };
    if is_copy {
        let rows = Rows::of(array);
        let copy = match lease.gpu().filter(|_| wanted == own) {
            Some(gpu) => {
                let consumer = consumer()?;
                let copy = copy::to_gpu(py, lease, rows, &consumer)?;
                let copy = Lease::new(Memory::Gpu(OfProcess::new(copy)), Some(gpu.clone()));
                if let Consumer::Stream(stream) = &consumer {
                    copy.used_on(stream);
                }
                copy
            }
            None => Lease::new(Memory::Host(copy::to_host(py, lease, rows)?), None),
        };
        let copy = Arc::new(copy);
        let packed = array.packed();
        let shown = Shown::of(py, &copy, &packed, None, DlpackFlags::IS_COPIED)?;
        return shown.capsule(py, request.max_version);
    }
    let flags = match lease.memory() {
        Memory::Leased(_) => DlpackFlags::READ_ONLY,
        Memory::Host(_) | Memory::Gpu(_) => DlpackFlags::empty(),
    };
    Shown::of(py, lease, array, Some(consumer()?), flags)?.capsule(py, request.max_version)
}

/// An array that goes out, with the owner of its memory, whose drop touches no Python.
pub struct Shown<'a, O> {
    pub owner: O,
    /// Address of the first element.
    pub address: u64,
    /// Kind and number of the device, as DLPack has them.
    pub device: (i32, i32),
    pub array: &'a ArrayLayout,
    pub flags: DlpackFlags,
}

impl<'a> Shown<'a, View> {
    fn of(
        py: Python<'_>,
        lease: &Arc<Lease>,
        array: &'a ArrayLayout,
        consumer: Option<Consumer>,
        flags: DlpackFlags,
    ) -> PyResult<Self> {
        let start = match (lease.memory(), lease.gpu(), consumer) {
            (Memory::Leased(frame), Some(gpu), Some(consumer)) => {
                py.detach(|| consumer.address(frame, gpu))?
            }
            (Memory::Gpu(copy), ..) => copy.start(),
            (memory, ..) => memory.host_start().map_or(0, |start| start.as_ptr().addr() as u64),
        };
        let address = start + array.offset as u64;
        Ok(Self { owner: View::of(lease), address, device: device(lease), array, flags })
    }
}

impl<O: Send + 'static> Shown<'_, O> {
    /// Returns a capsule of the newest version that the consumer knows.
    ///
    /// # Errors
    /// `BufferError` if the array has no strides in elements, or without memory.
    pub fn capsule(self, py: Python<'_>, max_version: Option<(u32, u32)>) -> PyResult<Bound<'_, PyAny>> {
        match max_version {
            Some((major, minor)) if major >= 1 => {
                let newest = DLPackVersion::CURRENT;
                let minor = if major == newest.major { minor.min(newest.minor) } else { newest.minor };
                let version = DLPackVersion { major: newest.major, minor };
                capsule(py, self.versioned(version)?)
            }
            _ => capsule(py, self.unversioned()?),
        }
    }

    fn unversioned(self) -> PyResult<*mut DLManagedTensor> {
        self.finish(|_| {})
    }

    fn versioned(self, version: DLPackVersion) -> PyResult<*mut DLManagedTensorVersioned> {
        self.finish(|tensor: *mut DLManagedTensorVersioned| {
            // SAFETY: the tensor is new, and owned by the caller.
            unsafe { (*tensor).version = version }
        })
    }

    /// Returns an owned tensor.
    fn finish<M: ManagedTensorBase>(self, set: impl FnOnce(*mut M)) -> PyResult<*mut M> {
        let Self { owner, address, device: (kind, number), array, flags } = self;
        let dimensions = array.shape.len();
        let strides = array.element_strides()?;
        let failed = |error: dlpark::allocation::Error| PyBufferError::new_err(error.to_string());
        let mut allocation = Allocation::<M>::allocate(2 * dimensions).map_err(failed)?;
        let (shape_to, strides_to) = allocation.extra_mut().split_at_mut(dimensions);
        shape_to.copy_from_slice(&array.shape);
        strides_to.copy_from_slice(&strides);
        let mut tensor = allocation.initialize(Box::new(owner), dimensions).map_err(failed)?;
        let extra = tensor.extra_mut().as_mut_ptr();
        let described = tensor.tensor_mut();
        described.data = ptr::without_provenance_mut::<c_void>(address as usize);
        described.device = DLDevice { device_type: DLDeviceType(kind as u32), device_id: number };
        described.dtype = match array.element {
            Element::U8 => DLDataType::U8,
            Element::U16 => DLDataType::U16,
            Element::U32 => DLDataType::U32,
        };
        described.byte_offset = 0;
        described.shape = extra;
        described.strides = extra.wrapping_add(dimensions);
        // SAFETY: leased memory is marked read-only; a copy is new, and no other array shows it; a
        // slot is written by its user alone.
        unsafe { tensor.set_flags_unchecked(flags) };
        // SAFETY: the owner keeps the memory; the shape and strides are in the tensor's allocation.
        let tensor = unsafe { tensor.finish() }.into_raw();
        set(tensor);
        Ok(tensor)
    }
}

/// Returns a capsule that owns the tensor.
fn capsule<'py, M: ManagedTensorBase + Named>(
    py: Python<'py>,
    tensor: *mut M,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name is static; the destructor frees the tensor, once.
    let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), M::NAME.as_ptr(), Some(drop_capsule::<M>)) };
    // SAFETY: a new reference, or NULL with an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        // SAFETY: no capsule owns the tensor.
        unsafe { M::drop_raw(tensor) };
    }
    capsule
}

/// A tensor whose capsules have a name of their own.
trait Named {
    const NAME: &'static CStr;
}

impl Named for DLManagedTensor {
    const NAME: &'static CStr = c"dltensor";
}

impl Named for DLManagedTensorVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";
}

/// Frees the tensor of a capsule that no consumer has taken. A consumer renames the capsule.
///
/// # Safety
/// Python calls it once, for a capsule of [`capsule`].
unsafe extern "C" fn drop_capsule<M: ManagedTensorBase + Named>(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive during its destructor; no call fails for a valid one.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>();
            M::drop_raw(tensor);
        }
    }
}
