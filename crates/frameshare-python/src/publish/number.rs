// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arguments that are whole numbers.

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::PyInt,
};
use std::fmt::Display;

/// A type of numbers from 0 on.
pub trait Natural: TryFrom<u64> + Display {
    /// The largest one.
    const MAX: Self;
}

impl Natural for u32 {
    const MAX: Self = Self::MAX;
}

impl Natural for u64 {
    const MAX: Self = Self::MAX;
}

/// Returns the number that an argument has.
///
/// # Errors
/// `ValueError` for numbers out of range and `TypeError` for other types, with the argument's name.
pub fn number<T: Natural>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    // NumPy's numbers have `__index__`.
    let whole = value.py().import("operator")?.call_method1("index", (value,));
    let whole = whole.ok().and_then(|whole| whole.cast_into::<PyInt>().ok()).ok_or_else(|| {
        let of = value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("{name} is a {of}, but must be a number"))
    })?;
    whole.extract::<u64>().ok().and_then(|whole| T::try_from(whole).ok()).ok_or_else(|| {
        PyValueError::new_err(format!("{name} is {whole}, but must be a number from 0 to {}", T::MAX))
    })
}
