// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events between frames as objects of `frameshare.events`, and the tags of frames.

use frameshare::{
    Event, Format,
    event::{Caps, Content, DateTime, Delivery, Structure, Tag, TagScope, Value},
    reader::Item,
};
use pyo3::{
    IntoPyObjectExt,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyTuple},
};
use std::sync::Arc;

/// Tags that apply to frames.
#[derive(Clone, Debug, Default)]
pub struct Tags {
    global: Vec<Tag>,
    stream: Vec<Tag>,
}

impl Tags {
    /// Applies an item of the stream.
    pub fn apply(this: &mut Arc<Self>, item: &Item) {
        let event = match item {
            Item::Reconnected => return *this = Arc::default(),
            Item::Event(event) => event,
            Item::Frame(_) | Item::Format(_) | Item::EndOfStream => return,
        };
        match event.content() {
            Ok(Content::Tags { scope: TagScope::Global, tags }) => Arc::make_mut(this).global = tags,
            Ok(Content::Tags { scope: TagScope::Stream, tags }) => Arc::make_mut(this).stream = tags,
            Ok(Content::StreamStart { .. }) => *this = Arc::default(),
            _ => {}
        }
    }

    /// Returns them as a dictionary of tuples. Those of the stream replace those of the medium.
    pub fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict_of(py, self.global.iter().chain(&self.stream))
    }
}

fn dict_of<'a, 'py>(py: Python<'py>, tags: impl Iterator<Item = &'a Tag>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for tag in tags {
        dict.set_item(&tag.name, values(py, &tag.values)?)?;
    }
    Ok(dict)
}

/// An item between frames.
#[derive(Debug)]
pub enum Notice {
    /// The format of the following frames.
    Format(Arc<Format>),
    /// An event of the exporter.
    Event(Event),
    /// The end of the stream.
    End,
    /// The next exporter was found.
    Reconnected,
}

impl Notice {
    /// Returns the object for Python.
    ///
    /// # Errors
    /// Of Python.
    pub fn to_object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let events = py.import("frameshare.events")?;
        match self {
            Self::Format(format) => events.call_method1("Format", (format.caps.as_str(),)),
            Self::End => events.call_method0("EndOfStream"),
            Self::Reconnected => events.call_method0("Reconnected"),
            Self::Event(event) => match event.content() {
                Ok(content) => of_content(&events, event, &content),
                Err(error) => {
                    log::warn!(target: "frameshare", "an event is passed on without its content: {error}");
                    unknown(&events, event)
                }
            },
        }
    }
}

fn unknown<'py>(events: &Bound<'py, PyModule>, event: &Event) -> PyResult<Bound<'py, PyAny>> {
    events.call_method1("Unknown", (event.kind, PyBytes::new(events.py(), &event.payload)))
}

fn of_content<'py>(
    events: &Bound<'py, PyModule>,
    event: &Event,
    content: &Content,
) -> PyResult<Bound<'py, PyAny>> {
    let py = events.py();
    match content {
        Content::StreamStart { id, flags, group } => events.call_method1("StreamStart", (id, *flags, *group)),
        Content::Tags { scope, tags } => {
            let scope = if *scope == TagScope::Global { "global" } else { "stream" };
            events.call_method1("Tags", (scope, dict_of(py, tags.iter())?))
        }
        Content::Gap { pts, duration, flags } => events.call_method1("Gap", (*pts, *duration, *flags)),
        Content::Segment(segment) => events.call_method1(
            "Segment",
            (
                segment.origin,
                segment.rate,
                segment.applied_rate,
                segment.start,
                segment.stop,
                segment.offset,
                segment.time,
                segment.base,
            ),
        ),
        Content::Custom { structure: content, delivery } => {
            let delivery = match delivery {
                Delivery::InOrder => "in-order",
                Delivery::Both => "both",
                Delivery::Sticky => "sticky",
            };
            events.call_method1("Custom", (&content.name, fields(py, content)?, delivery))
        }
        Content::Withdrawn => events.call_method1("Withdrawn", (event.kind,)),
        _ => unknown(events, event),
    }
}

fn fields<'py>(py: Python<'py>, structure: &Structure) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, field) in &structure.fields {
        dict.set_item(name, value(py, field)?)?;
    }
    Ok(dict)
}

fn structure<'py>(py: Python<'py>, of: &Structure) -> PyResult<Bound<'py, PyAny>> {
    py.import("frameshare.events")?.call_method1("Structure", (&of.name, fields(py, of)?))
}

fn values<'py>(py: Python<'py>, of: &[Value]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, of.iter().map(|of| value(py, of)).collect::<PyResult<Vec<_>>>()?)
}

fn fraction<'py>(py: Python<'py>, numerator: i32, denominator: i32) -> PyResult<Bound<'py, PyAny>> {
    py.import("fractions")?.call_method1("Fraction", (numerator, denominator))
}

/// A range of integers, whose end is its last value in GStreamer.
fn range<'py>(py: Python<'py>, min: i64, max: i64, step: i64) -> PyResult<Bound<'py, PyAny>> {
    py.import("builtins")?.call_method1("range", (min, i128::from(max) + 1, step.max(1)))
}

fn value<'py>(py: Python<'py>, of: &Value) -> PyResult<Bound<'py, PyAny>> {
    match of {
        Value::Bool(of) => of.into_bound_py_any(py),
        Value::Int(of) | Value::Enum { value: of, .. } => of.into_bound_py_any(py),
        Value::Uint(of) | Value::Flags { value: of, .. } => of.into_bound_py_any(py),
        Value::Int64(of) => of.into_bound_py_any(py),
        Value::Uint64(of) | Value::Bitmask(of) => of.into_bound_py_any(py),
        Value::Float(of) => of.into_bound_py_any(py),
        Value::Double(of) => of.into_bound_py_any(py),
        Value::Text(of) => of.into_bound_py_any(py),
        Value::Fraction { numerator, denominator } => fraction(py, *numerator, *denominator),
        Value::IntRange { min, max, step } => range(py, (*min).into(), (*max).into(), (*step).into()),
        Value::Int64Range { min, max, step } => range(py, *min, *max, *step),
        Value::FractionRange { min, max } => {
            (fraction(py, min.0, min.1)?, fraction(py, max.0, max.1)?).into_bound_py_any(py)
        }
        Value::FlagSet { flags, mask, .. } => (*flags, *mask).into_bound_py_any(py),
        // Day 1 is the first of January of the year 1, as in Python; it ends with the year 9999.
        Value::Date(days) => {
            match py.import("datetime")?.getattr("date")?.call_method1("fromordinal", (*days,)) {
                Ok(date) => Ok(date),
                Err(_) => days.into_bound_py_any(py),
            }
        }
        Value::DateTime(of) => date_time(*of).into_bound_py_any(py),
        Value::Buffer(bytes) | Value::Sample { bytes, .. } => PyBytes::new(py, bytes).into_bound_py_any(py),
        Value::List(of) => {
            let all = of.iter().map(|of| value(py, of)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, all)?.into_bound_py_any(py)
        }
        Value::Array(of) => values(py, of)?.into_bound_py_any(py),
        Value::Structure(of) => structure(py, of),
        Value::Caps(Caps::Any) => "ANY".into_bound_py_any(py),
        Value::Caps(Caps::Structures(of)) => {
            let all = of.iter().map(|of| structure(py, &of.structure)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, all)?.into_bound_py_any(py)
        }
        other => format!("{other:?}").into_bound_py_any(py),
    }
}

/// Returns the known parts of a date in the form of ISO 8601.
fn date_time(of: DateTime) -> String {
    let mut text = format!("{:04}", of.year);
    let Some(month) = of.month else { return text };
    text += &format!("-{month:02}");
    let Some(day) = of.day else { return text };
    text += &format!("-{day:02}");
    let Some((hour, minute)) = of.time else { return text };
    text += &format!("T{hour:02}:{minute:02}");
    if let Some(micros) = of.micros {
        text += &format!(":{:02}.{:06}", micros / 1_000_000, micros % 1_000_000);
    }
    let sign = if of.offset < 0 { '-' } else { '+' };
    text + &format!("{sign}{:02}:{:02}", of.offset.unsigned_abs() / 60, of.offset.unsigned_abs() % 60)
}
