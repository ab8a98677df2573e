// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values of properties in URIs: texts in the syntax of gst-launch-1.0.

use super::{SOCKET_PATH, STREAM};
use crate::ffi::param_spec;
use gst::prelude::*;

/// Returns the specification of a property that a URI can set.
fn settable(element: &gst::Element, name: &str) -> Option<glib::ParamSpec> {
    element.find_property(name).filter(is_settable)
}

/// Returns whether a URI can set a property. An element's name and parent belong to its bin.
fn is_settable(spec: &glib::ParamSpec) -> bool {
    let flags = spec.flags();
    flags.contains(glib::ParamFlags::WRITABLE)
        && !flags.contains(glib::ParamFlags::CONSTRUCT_ONLY)
        && spec.owner_type() != gst::Object::static_type()
}

/// Returns the value of a property for a text.
///
/// # Errors
///
/// The property does not exist, or does not take the value.
pub(super) fn of_text(element: &gst::Element, name: &str, text: &str) -> Result<glib::Value, String> {
    let factory = element.factory().map_or_else(|| element.name(), |factory| factory.name());
    let spec = settable(element, name)
        .ok_or_else(|| format!("{factory} has no property {name:?} that can be set"))?;
    let value = match spec.value_type() {
        glib::Type::STRING => Some(text.to_value()),
        // GStreamer would wrap a negative number around.
        glib::Type::U32 | glib::Type::U64 if text.trim_start().starts_with('-') => None,
        _ => glib::Value::deserialize_with_pspec(text, &spec).ok(),
    };
    value.filter(|value| param_spec::is_valid(&spec, value)).ok_or_else(|| {
        format!("the property {name} of {factory} cannot be {text:?}: expected {}", expected(&spec))
    })
}

/// Describes the values of a property.
fn expected(spec: &glib::ParamSpec) -> String {
    macro_rules! range {
        ($($number:ty),+) => {$(
            if let Some(spec) = spec.downcast_ref::<$number>() {
                return format!("a number from {} to {}", spec.minimum(), spec.maximum());
            }
        )+};
    }
    range!(glib::ParamSpecInt, glib::ParamSpecUInt, glib::ParamSpecInt64, glib::ParamSpecUInt64);
    if let Some(class) = glib::EnumClass::with_type(spec.value_type()) {
        let nicks = class.values().iter().map(glib::EnumValue::nick).collect::<Vec<_>>();
        return nicks.join(" or ");
    }
    match spec.value_type() {
        glib::Type::BOOL => "true or false".into(),
        other => format!("a value of the type {other}"),
    }
}

/// Returns the properties that differ from those of a new element, besides the stream, as texts.
pub(super) fn changed(element: &gst::Element) -> Vec<(String, String)> {
    let fresh = glib::Object::with_type(element.type_());
    let text = |object: &glib::Object, name: &str| {
        let value = object.property_value(name);
        match value.get::<Option<String>>() {
            Ok(text) => text,
            Err(_) => value.serialize().ok().map(String::from),
        }
    };
    let mut changed = Vec::new();
    for spec in element.list_properties().iter().filter(|spec| is_settable(spec)) {
        let name = spec.name();
        if [STREAM, SOCKET_PATH].contains(&name) || !spec.flags().contains(glib::ParamFlags::READABLE) {
            continue;
        }
        let now = text(element.upcast_ref(), name);
        if now != text(&fresh, name) {
            changed.extend(now.map(|now| (name.to_owned(), now)));
        }
    }
    changed
}
