// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of streams, as Python passes them.

use pyo3::prelude::*;

/// Returns the text of a name: a `str`, or an `os.PathLike`, which is the path of a socket even
/// without a slash.
///
/// # Errors
/// `TypeError` for other objects.
pub fn of(name: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = name.extract::<String>() {
        return Ok(text);
    }
    let path = name.py().import("os")?.call_method1("fspath", (name,))?.extract::<String>()?;
    Ok(if path.contains('/') { path } else { format!("./{path}") })
}
