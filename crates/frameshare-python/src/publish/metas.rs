// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metas of frames as pairs of a name and a dictionary of values.
//!
//! A name is that of a custom meta of GStreamer. Three of GStreamer's own metas have fields:
//! `GstVideoRegionOfInterestMeta`, `GstVideoCropMeta` and `GstReferenceTimestampMeta`.

use crate::error::OrRaise;
use frameshare::event::{Caps, CapsStructure, Meta, Structure, Value};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};

const REGION: &str = "GstVideoRegionOfInterestMeta";
const CROP: &str = "GstVideoCropMeta";
const REFERENCE_TIMESTAMP: &str = "GstReferenceTimestampMeta";
/// The feature of all caps without others.
const SYSTEM_MEMORY: &str = "memory:SystemMemory";
/// The name of structures that were dictionaries inside of others.
const NESTED: &str = "values";
/// Maximum depth of lists and dictionaries: that of the engine.
const MAX_DEPTH: usize = 16;

/// Returns the metadata of a frame with these metas: a dictionary by name, or pairs.
///
/// # Errors
/// `TypeError` and `ValueError` for names and values that cannot be sent.
pub fn to_metadata(metas: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<u8>> {
    let Some(metas) = metas.filter(|metas| !metas.is_none()) else { return Ok(Vec::new()) };
    let pairs = match metas.cast::<PyDict>() {
        Ok(by_name) => by_name.items().into_any(),
        Err(_) => metas.clone(),
    };
    let metas = pairs.try_iter()?.map(|pair| {
        let pair = pair?;
        let (name, values) = pair.extract::<(String, Bound<'_, PyDict>)>().map_err(|_| {
            PyTypeError::new_err(format!("a meta is {pair}, but must be a name and a dictionary of values"))
        })?;
        to_meta(&name, &values)
    });
    Meta::to_metadata(&metas.collect::<PyResult<Vec<_>>>()?).or_raise()
}

fn to_meta(name: &str, values: &Bound<'_, PyDict>) -> PyResult<Meta> {
    let number = |field: &str| match values.get_item(field)? {
        Some(value) => value.extract::<u32>().map(Some),
        None => Ok(None),
    };
    let rect = || {
        let side = |field| {
            let missing = || PyValueError::new_err(format!("a {name} needs {field}: a number of pixels"));
            number(field)?.ok_or_else(missing)
        };
        PyResult::Ok([side("x")?, side("y")?, side("width")?, side("height")?])
    };
    if name == CROP {
        return Ok(Meta::Crop(rect()?));
    }
    if name == REFERENCE_TIMESTAMP {
        return reference_timestamp(values);
    }
    if name != REGION {
        return Ok(Meta::Custom(structure(name, values, 0)?));
    }
    let integer = |field| match values.get_item(field)? {
        Some(value) => value.extract::<i32>(),
        None => Ok(0),
    };
    let kind = match values.get_item("type")? {
        Some(kind) => kind.extract::<String>()?,
        None => return Err(PyValueError::new_err(format!("a {name} needs type: a name such as \"face\""))),
    };
    let params = match values.get_item("params")? {
        Some(params) => {
            let params = params.cast_into::<PyDict>()?;
            let named = params
                .iter()
                .map(|(name, values)| structure(&name.extract::<String>()?, values.cast::<PyDict>()?, 1));
            named.collect::<PyResult<Vec<_>>>()?
        }
        None => Vec::new(),
    };
    Ok(Meta::Region { kind, id: integer("id")?, parent: integer("parent")?, rect: rect()?, params })
}

/// Returns the time of a frame by the clock that `reference` names.
fn reference_timestamp(values: &Bound<'_, PyDict>) -> PyResult<Meta> {
    let field = |name| {
        let missing = || PyValueError::new_err(format!("a {REFERENCE_TIMESTAMP} needs {name}"));
        values.get_item(name)?.ok_or_else(missing)
    };
    let clock = CapsStructure {
        any_features: false,
        features: vec![SYSTEM_MEMORY.to_owned()],
        structure: Structure::new(&field("reference")?.extract::<String>()?),
    };
    let duration = values.get_item("duration")?.filter(|duration| !duration.is_none());
    Ok(Meta::ReferenceTimestamp {
        reference: Caps::Structures(vec![clock]),
        timestamp: field("timestamp")?.extract()?,
        duration: duration.map(|duration| duration.extract()).transpose()?,
    })
}

fn structure(name: &str, values: &Bound<'_, PyDict>, depth: usize) -> PyResult<Structure> {
    let fields =
        values.iter().map(|(field, value)| Ok((field.extract::<String>()?, to_value(&value, depth + 1)?)));
    Ok(Structure { name: name.to_owned(), fields: fields.collect::<PyResult<_>>()? })
}

fn to_value(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(PyValueError::new_err(format!("values of a meta nest more than {MAX_DEPTH} deep")));
    }
    if value.is_none() {
        return Ok(Value::Text(None));
    }
    if value.is_instance_of::<PyBool>() {
        return Ok(Value::Bool(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        if let Ok(number) = value.extract::<i32>() {
            return Ok(Value::Int(number));
        }
        if let Ok(number) = value.extract::<i64>() {
            return Ok(Value::Int64(number));
        }
        let too_large = |_| PyValueError::new_err(format!("{value} has more than 64 bits"));
        return value.extract::<u64>().map(Value::Uint64).map_err(too_large);
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Value::Double(value.extract()?));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Value::Text(Some(value.extract()?)));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Value::Buffer(bytes.as_bytes().to_vec()));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let values = value.try_iter()?.map(|value| to_value(&value?, depth + 1));
        return Ok(Value::List(values.collect::<PyResult<_>>()?));
    }
    if let Ok(values) = value.cast::<PyDict>() {
        return Ok(Value::Structure(structure(NESTED, values, depth)?));
    }
    Err(PyTypeError::new_err(format!(
        "a value of a meta is a {}, but must be None, a bool, int, float, str, bytes, list or dict",
        value.get_type().name()?
    )))
}

/// Returns the metas of a frame as a list of names and values.
///
/// # Errors
/// `UnsupportedError` if the metadata are the publisher's own; `Error` for damaged ones.
pub fn to_python<'py>(py: Python<'py>, metadata: &[u8]) -> PyResult<Bound<'py, PyList>> {
    let metas = PyList::empty(py);
    for meta in Meta::of_metadata(metadata).or_raise()? {
        let values = PyDict::new(py);
        let place = |[x, y, width, height]: [u32; 4]| {
            let sides = [("x", x), ("y", y), ("width", width), ("height", height)];
            sides.into_iter().try_for_each(|(name, value)| values.set_item(name, value))
        };
        let name = match meta {
            Meta::Custom(structure) => {
                fill(&values, &structure)?;
                structure.name
            }
            Meta::Region { kind, id, parent, rect, params } => {
                values.set_item("type", kind)?;
                values.set_item("id", id)?;
                values.set_item("parent", parent)?;
                place(rect)?;
                let named = PyDict::new(py);
                for param in params {
                    let values = PyDict::new(py);
                    fill(&values, &param)?;
                    named.set_item(param.name, values)?;
                }
                values.set_item("params", named)?;
                REGION.to_owned()
            }
            Meta::Crop(rect) => {
                place(rect)?;
                CROP.to_owned()
            }
            Meta::ReferenceTimestamp { reference, timestamp, duration } => {
                values.set_item("reference", name_of(&reference))?;
                values.set_item("timestamp", timestamp)?;
                values.set_item("duration", duration)?;
                REFERENCE_TIMESTAMP.to_owned()
            }
            Meta::Other(name) => name.to_owned(),
            _ => continue,
        };
        metas.append((name, values))?;
    }
    Ok(metas)
}

/// The name of a reference clock, such as `timestamp/x-ntp`; None for a reference without one.
fn name_of(reference: &Caps) -> Option<&str> {
    match reference {
        Caps::Structures(structures) => structures.first().map(|first| first.structure.name.as_str()),
        Caps::Any => None,
    }
}

fn fill(values: &Bound<'_, PyDict>, structure: &Structure) -> PyResult<()> {
    structure.fields.iter().try_for_each(|(name, value)| values.set_item(name, of_value(values.py(), value)?))
}

/// Values of types that Python does not have are numbers, tuples or texts.
fn of_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Int(value) => value.into_pyobject(py)?.into_any(),
        Value::Uint(value) => value.into_pyobject(py)?.into_any(),
        Value::Int64(value) => value.into_pyobject(py)?.into_any(),
        Value::Uint64(value) | Value::Bitmask(value) => value.into_pyobject(py)?.into_any(),
        Value::Float(value) => value.into_pyobject(py)?.into_any(),
        Value::Double(value) => value.into_pyobject(py)?.into_any(),
        Value::Text(value) => value.as_deref().into_pyobject(py)?.into_any(),
        Value::Fraction { numerator, denominator } => {
            py.import("fractions")?.call_method1("Fraction", (numerator, denominator))?
        }
        Value::Enum { value, .. } => value.into_pyobject(py)?.into_any(),
        Value::Flags { value, .. } => value.into_pyobject(py)?.into_any(),
        Value::Buffer(bytes) | Value::Sample { bytes, .. } => PyBytes::new(py, bytes).into_any(),
        Value::List(values) | Value::Array(values) => {
            let list = PyList::empty(py);
            values.iter().try_for_each(|value| list.append(of_value(py, value)?))?;
            list.into_any()
        }
        Value::Structure(structure) => {
            let values = PyDict::new(py);
            fill(&values, structure)?;
            values.into_any()
        }
        other => PyString::new(py, &format!("{other:?}")).into_any(),
    })
}
