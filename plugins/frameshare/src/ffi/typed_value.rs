// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values of types that are found by name: enums, flags and sets of flags.
//!
//! # Safety
//!
//! Calls glib and GStreamer through their C interface on values that were initialized with the type
//! that the call needs.
#![allow(unsafe_code)]

use glib::translate::{UnsafeFrom, from_glib};

/// An enum's type name and number.
pub(crate) fn enum_of(value: &glib::Value) -> Option<(&'static str, i32)> {
    let (class, number) = glib::EnumValue::from_value(value)?;
    Some((class.type_().name(), number.value()))
}

/// The type name and bits of flags.
pub(crate) fn flags_of(value: &glib::Value) -> Option<(&'static str, u32)> {
    if !value.type_().is_a(glib::Type::FLAGS) {
        return None;
    }
    // SAFETY: the value holds flags.
    let bits = unsafe { glib::gobject_ffi::g_value_get_flags(value.as_ptr()) };
    Some((value.type_().name(), bits))
}

/// The type name, flags and mask of a set of flags.
pub(crate) fn flag_set_of(value: &glib::Value) -> Option<(&'static str, u32, u32)> {
    if !value.type_().is_a(flag_set()) {
        return None;
    }
    // SAFETY: the value holds a set of flags.
    let (flags, mask) = unsafe {
        (
            gst::ffi::gst_value_get_flagset_flags(value.as_ptr()),
            gst::ffi::gst_value_get_flagset_mask(value.as_ptr()),
        )
    };
    Some((value.type_().name(), flags, mask))
}

/// An enum's value. None if this process does not know the type or the number.
pub(crate) fn to_enum(name: &str, number: i32) -> Option<glib::SendValue> {
    let kind = known(name)?;
    let class = glib::EnumClass::with_type(kind)?;
    class.value(number)?;
    // SAFETY: the value is initialized with an enum's type.
    Some(value_of(kind, |value| unsafe { glib::gobject_ffi::g_value_set_enum(value, number) }))
}

/// A value of flags. None if this process does not know the type or one of the bits.
pub(crate) fn to_flags(name: &str, bits: u32) -> Option<glib::SendValue> {
    let kind = known(name)?;
    let class = glib::FlagsClass::with_type(kind)?;
    let all = class.values().iter().fold(0, |all, flag| all | flag.value());
    if bits & !all != 0 {
        return None;
    }
    // SAFETY: the value is initialized with a type of flags.
    Some(value_of(kind, |value| unsafe { glib::gobject_ffi::g_value_set_flags(value, bits) }))
}

/// A set of flags. None if this process does not know the type.
pub(crate) fn to_flag_set(name: &str, flags: u32, mask: u32) -> Option<glib::SendValue> {
    let kind = known(name)?;
    if !kind.is_a(flag_set()) {
        return None;
    }
    // SAFETY: the value is initialized with a type of sets of flags.
    Some(value_of(kind, |value| unsafe { gst::ffi::gst_value_set_flagset(value, flags, mask) }))
}

/// The value of an enum, flags or a set of flags that GStreamer writes as `text`.
pub(crate) fn of_named_type(name: &str, text: &str) -> Option<glib::SendValue> {
    let kind = known(name)?;
    if kind.is_a(flag_set()) {
        let mut parts = text.split(':').map(|part| u32::from_str_radix(part, 16));
        let (flags, mask) = (parts.next()?.ok()?, parts.next()?.ok()?);
        return to_flag_set(name, flags, mask);
    }
    if let Some(class) = glib::EnumClass::with_type(kind) {
        let value = class.value_by_nick(text).or_else(|| class.value_by_name(text))?;
        return to_enum(name, value.value());
    }
    let class = glib::FlagsClass::with_type(kind)?;
    let mut names = text.split('+');
    let bits = names.try_fold(0, |bits, name| {
        let flag = class.value_by_nick(name).or_else(|| class.value_by_name(name))?;
        Some(bits | flag.value())
    })?;
    to_flags(name, bits)
}

fn flag_set() -> glib::Type {
    // SAFETY: returns a type; nothing is asked of the caller.
    unsafe { from_glib(gst::ffi::gst_flagset_get_type()) }
}

fn known(name: &str) -> Option<glib::Type> {
    is_type_name(name).then(|| glib::Type::from_name(name)).flatten()
}

/// A value of an enum's type or one of flags, filled by `set`.
fn value_of(kind: glib::Type, set: impl FnOnce(*mut glib::gobject_ffi::GValue)) -> glib::SendValue {
    let mut value = glib::Value::from_type(kind).into_raw();
    set(&raw mut value);
    // SAFETY: the value is initialized and holds plain numbers, which any thread may read.
    unsafe { glib::SendValue::unsafe_from(value) }
}

/// Whether GObject takes this text as the name of a type.
pub(crate) fn is_type_name(name: &str) -> bool {
    (3..=128).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_+".contains(&c))
}
