// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arrays and tensors of other libraries, as they are published: by the buffer protocol, DLPack or
//! `__cuda_array_interface__`.
//!
//! # Safety
//!
//! Structs of other libraries are read as their protocols say. Their memory stays valid as long as
//! the [`Array`], which holds the buffer, capsule or object that it belongs to. An array on a GPU
//! has no buffer, and may be dropped on any thread: without the interpreter that only queues it.
#![allow(unsafe_code)]

use crate::cuda_stream::{self, Handle};
use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned, DLTensor};
use pyo3::{
    exceptions::{PyBufferError, PyTypeError, PyValueError},
    ffi,
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::{ffi::CStr, fmt, slice};

/// DLPack's types of devices with host memory: plain and pinned.
const HOST: [i64; 2] = [1, 3];
/// Those with CUDA memory: plain and managed.
const GPU: [i64; 2] = [2, 13];

/// The place of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host memory.
    Host,
    /// Memory of the GPU with this number in this process; `None` if the library does not say
    /// which.
    Gpu(Option<i64>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("in host memory"),
            Self::Gpu(Some(number)) => write!(f, "on cuda:{number}"),
            Self::Gpu(None) => f.write_str("on a GPU"),
        }
    }
}

/// An array of another library.
#[derive(Debug)]
pub struct Array {
    /// The place of its memory.
    pub place: Place,
    /// Address of the first element.
    pub start: usize,
    /// Type of the elements, as NumPy names it.
    pub element: String,
    /// Size of an element in bytes.
    pub size: usize,
    /// Length of each dimension.
    pub shape: Vec<i64>,
    /// Bytes from one element to the next in each dimension.
    pub strides: Vec<i64>,
    /// The stream behind whose work the array is written, on a GPU.
    pub stream: Option<Handle>,
    _owner: Owner,
}

#[derive(Debug)]
enum Owner {
    Buffer(#[expect(dead_code, reason = "released by its drop")] Buffer),
    Object(#[expect(dead_code, reason = "held")] Py<PyAny>),
}

/// A filled buffer of the buffer protocol, boxed: some exporters refer to the struct itself.
struct Buffer(Box<ffi::Py_buffer>);

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Buffer")
    }
}

// SAFETY: the struct is released with the GIL held, and not shared until then.
unsafe impl Send for Buffer {}
// SAFETY: shared references only read the struct, which nothing writes until its release.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was filled by `PyObject_GetBuffer`, and is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.element, shape_text(&self.shape))
    }
}

/// A shape as Python writes it.
pub fn shape_text(shape: &[i64]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl Array {
    /// Takes an array. One on a GPU is valid for work on its `stream`: the given one, the library's
    /// current one, or the legacy default stream.
    ///
    /// # Errors
    /// `TypeError` for objects without any of the protocols; the library's own errors.
    pub fn of(object: &Bound<'_, PyAny>, stream: Option<Handle>) -> PyResult<Self> {
        // GPU memory first: CuPy's arrays have the buffer protocol too, for managed memory.
        let device = match object.getattr("__dlpack_device__") {
            Ok(device) => Some(device.call0()?.extract::<(i64, i64)>()?),
            Err(_) => None,
        };
        match device {
            Some(device) if !HOST.contains(&device.0) => return Self::of_dlpack(object, device, stream),
            None => {
                if let Ok(interface) = object.getattr("__cuda_array_interface__") {
                    return Self::of_cuda_interface(object, &interface, stream);
                }
            }
            Some(_) => {}
        }
        let mut refused = None;
        // SAFETY: the object is alive.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            match Self::of_buffer(object) {
                Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => refused = Some(error),
                taken => return taken,
            }
        }
        if let Some(device) = device {
            return Self::of_dlpack(object, device, stream);
        }
        Err(match refused {
            Some(error) => error,
            None => PyTypeError::new_err(format!(
                "cannot publish a {}: expected a NumPy array, a buffer, or an array or tensor with DLPack or \
                 __cuda_array_interface__",
                object.get_type().name()?
            )),
        })
    }

    fn of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, and the struct is one to be filled.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *buffer, ffi::PyBUF_FULL_RO) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let buffer = Buffer(buffer);
        let view = &*buffer.0;
        if !view.suboffsets.is_null() {
            return Err(PyTypeError::new_err("cannot publish a buffer with suboffsets: copy it"));
        }
        let dimensions = usize::try_from(view.ndim).unwrap_or_default();
        let size = usize::try_from(view.itemsize).unwrap_or_default();
        let numbers = |from: *const ffi::Py_ssize_t| {
            // SAFETY: with PyBUF_FULL_RO, shape and strides have a number for each dimension.
            let numbers = unsafe { slice::from_raw_parts(from, dimensions) };
            numbers.iter().map(|number| *number as i64).collect::<Vec<_>>()
        };
        let (shape, strides) = match dimensions {
            0 => (Vec::new(), Vec::new()),
            _ => (numbers(view.shape), numbers(view.strides)),
        };
        let format = if view.format.is_null() {
            "B".into()
        } else {
            // SAFETY: the format is a C string of the exporter, valid until the release.
            unsafe { CStr::from_ptr(view.format) }.to_string_lossy().into_owned()
        };
        Ok(Self {
            place: Place::Host,
            start: view.buf.expose_provenance(),
            element: element_of_letter(&format, size),
            size,
            shape,
            strides,
            stream: None,
            _owner: Owner::Buffer(buffer),
        })
    }

    fn of_dlpack(
        object: &Bound<'_, PyAny>,
        (kind, number): (i64, i64),
        stream: Option<Handle>,
    ) -> PyResult<Self> {
        let place = match kind {
            _ if HOST.contains(&kind) => Place::Host,
            _ if GPU.contains(&kind) => Place::Gpu(Some(number)),
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "cannot publish an array on a device of DLPack's type {kind}: expected host or CUDA memory"
                )));
            }
        };
        let named = match (place, stream) {
            (Place::Gpu(Some(number)), None) => cuda_stream::current_of(object, number)?,
            (Place::Gpu(_), stream) => stream,
            (Place::Host, _) => None,
        };
        let stream = matches!(place, Place::Gpu(_)).then(|| named.unwrap_or(Handle::DEFAULT));
        let py = object.py();
        let options = PyDict::new(py);
        if let Some(stream) = stream {
            options.set_item("stream", stream.number())?;
        }
        options.set_item("max_version", (1, 1))?;
        let method = object.getattr("__dlpack__")?;
        let capsule = method.call((), Some(&options)).or_else(|error| {
            // Libraries before version 1 of the protocol.
            if !error.is_instance_of::<PyTypeError>(py) {
                return Err(error);
            }
            options.del_item("max_version")?;
            method.call((), Some(&options))
        })?;
        let tensor = tensor_of(&capsule)?;
        let dimensions = usize::try_from(tensor.ndim).unwrap_or_default();
        // SAFETY: the arrays have a number for each dimension, as long as the capsule lives.
        let numbers = |from: *const i64| unsafe { slice::from_raw_parts(from, dimensions) }.to_vec();
        let shape = if dimensions == 0 { Vec::new() } else { numbers(tensor.shape) };
        let size = usize::from(tensor.dtype.bits) * usize::from(tensor.dtype.lanes) / 8;
        let strides = match tensor.strides.is_null() || dimensions == 0 {
            true => dense(&shape, size),
            false => numbers(tensor.strides).iter().map(|stride| stride * size as i64).collect(),
        };
        let kind = ["int", "uint", "float", "handle", "bfloat", "complex", "bool"];
        let kind = kind.get(usize::from(tensor.dtype.code.0)).copied().unwrap_or("type");
        let lanes = if tensor.dtype.lanes == 1 { String::new() } else { format!("x{}", tensor.dtype.lanes) };
        Ok(Self {
            place,
            start: tensor.data.expose_provenance() + usize::try_from(tensor.byte_offset).unwrap_or_default(),
            element: format!("{kind}{}{lanes}", tensor.dtype.bits),
            size,
            shape,
            strides,
            stream,
            // The capsule's own destructor calls the deleter of an unconsumed tensor.
            _owner: Owner::Object(capsule.unbind()),
        })
    }

    fn of_cuda_interface(
        object: &Bound<'_, PyAny>,
        interface: &Bound<'_, PyAny>,
        stream: Option<Handle>,
    ) -> PyResult<Self> {
        let field = |name| interface.get_item(name);
        let (start, _) = field("data")?.extract::<(usize, bool)>()?;
        let shape = field("shape")?.extract::<Vec<i64>>()?;
        let kind = field("typestr")?.extract::<String>()?;
        let size = kind.get(2..).and_then(|size| size.parse().ok()).unwrap_or_default();
        let name = match kind.get(1..2) {
            Some("u") => "uint",
            Some("i") => "int",
            Some("f") => "float",
            Some("b") => "bool",
            Some("c") => "complex",
            _ => "type",
        };
        let strides = match interface.call_method1("get", ("strides",))?.extract::<Option<Vec<i64>>>()? {
            Some(strides) => strides,
            None => dense(&shape, size),
        };
        let own = match interface.call_method1("get", ("stream",))? {
            none if none.is_none() => None,
            own => Some(Handle::of(&own)?),
        };
        Ok(Self {
            place: Place::Gpu(None),
            start,
            element: format!("{name}{}", 8 * size),
            size,
            shape,
            strides,
            stream: stream.or(own).or(Some(Handle::DEFAULT)),
            _owner: Owner::Object(object.clone().unbind()),
        })
    }

    /// Returns whether the elements from dimension `from` on lie one after the other.
    pub fn is_dense_from(&self, from: usize) -> bool {
        let expected = dense(&self.shape, self.size);
        let dimensions = self.shape.iter().zip(&self.strides).zip(expected).skip(from);
        dimensions.into_iter().all(|((length, stride), expected)| *length <= 1 || *stride == expected)
    }

    /// Number of bytes of all elements.
    pub fn bytes(&self) -> Option<usize> {
        let lengths = self.shape.iter().map(|length| usize::try_from(*length).ok());
        lengths.chain([Some(self.size)]).try_fold(1_usize, |product, length| product.checked_mul(length?))
    }
}

/// The strides in bytes of elements that lie one after the other.
fn dense(shape: &[i64], size: usize) -> Vec<i64> {
    let mut next = size as i64;
    let mut strides: Vec<_> = shape
        .iter()
        .rev()
        .map(|length| {
            let stride = next;
            next = next.saturating_mul((*length).max(1));
            stride
        })
        .collect();
    strides.reverse();
    strides
}

/// The type of elements by the letter of the module `struct`.
fn element_of_letter(format: &str, size: usize) -> String {
    let letter = format.trim_start_matches(['@', '=', '<', '>', '!', '|']);
    let name = match letter {
        "B" | "H" | "I" | "L" | "Q" | "N" | "c" => "uint",
        "b" | "h" | "i" | "l" | "q" | "n" => "int",
        "e" | "f" | "d" | "g" => "float",
        "?" => "bool",
        _ => return format!("elements of format {format:?}"),
    };
    let is_foreign =
        size > 1 && format.starts_with(if cfg!(target_endian = "little") { ['>', '!'] } else { ['<', '|'] });
    let order = if is_foreign { " of the other byte order" } else { "" };
    format!("{name}{}{order}", 8 * size)
}

/// Returns the tensor of a capsule, which keeps it.
fn tensor_of<'a>(capsule: &'a Bound<'_, PyAny>) -> PyResult<&'a DLTensor> {
    let pointer = |name: &CStr| {
        // SAFETY: the object is alive, and the name a C string.
        let valid = unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 1;
        // SAFETY: as above, and the capsule has this name.
        valid.then(|| unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) })
    };
    if let Some(versioned) = pointer(c"dltensor_versioned") {
        // SAFETY: a capsule of this name has a versioned tensor, until it is consumed or destroyed.
        let versioned = unsafe { &*versioned.cast::<DLManagedTensorVersioned>() };
        if versioned.version.major != 1 {
            return Err(PyValueError::new_err(format!(
                "DLPack version {} is unknown",
                versioned.version.major
            )));
        }
        return Ok(&versioned.dl_tensor);
    }
    match pointer(c"dltensor") {
        // SAFETY: a capsule of this name has a tensor first, as above.
        Some(tensor) => Ok(unsafe { &(*tensor.cast::<DLManagedTensor>()).dl_tensor }),
        None => Err(PyTypeError::new_err("__dlpack__ returned no capsule of a tensor")),
    }
}

/// Arrays of one frame: one for all planes, or one for each.
pub fn all_of(data: &Bound<'_, PyAny>, stream: Option<Handle>) -> PyResult<(Vec<Array>, bool)> {
    use pyo3::types::PyList;
    if data.is_instance_of::<PyTuple>() || data.is_instance_of::<PyList>() {
        let arrays = data.try_iter()?.map(|plane| Array::of(&plane?, stream));
        return Ok((arrays.collect::<PyResult<_>>()?, true));
    }
    Ok((vec![Array::of(data, stream)?], false))
}
