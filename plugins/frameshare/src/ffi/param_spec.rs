// SPDX-License-Identifier: MIT OR Apache-2.0

//! Validation of property values, which glib's binding lacks for GLib before 2.74.
//!
//! # Safety
//!
//! `g_param_value_validate` gets a specification and a value that it may change, of the type of the
//! specification.
#![allow(unsafe_code)]

use glib::translate::*;

/// Returns whether a property takes a value as it is: its type and its range.
pub(crate) fn is_valid(spec: &glib::ParamSpec, value: &glib::Value) -> bool {
    if !value.type_().is_a(spec.value_type()) {
        return false;
    }
    let mut copy = value.clone();
    // SAFETY: both are alive during the call, the value belongs to this function, and its type was
    // checked.
    let changed = unsafe {
        glib::gobject_ffi::g_param_value_validate(spec.to_glib_none().0, copy.to_glib_none_mut().0)
    };
    changed == glib::ffi::GFALSE
}
