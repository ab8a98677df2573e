// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of the elements: one table for each element, of which the fields of its settings and
//! the specifications, the setter and the getter of its properties are made.

use glib::{HasParamSpec, value::FromValue};
use gst::prelude::*;
use std::time::Duration;

/// A type of fields that have a property.
pub(crate) trait Setting: Sized {
    /// The type of the property's values.
    type Value: ToValue + for<'a> FromValue<'a>;
    /// Builds the property's specification; for a list, that of one item.
    type Builder<'a>
    where
        Self: 'a;

    /// Returns a builder for a property with this default.
    fn builder<'a>(&'a self, name: &'a str) -> Self::Builder<'a>;

    /// Returns the property's specification.
    fn specification(&self, built: glib::ParamSpec) -> glib::ParamSpec {
        built
    }

    /// Returns the property's value.
    fn to_property(&self) -> Self::Value;

    /// Returns the field for a value of the property; none if an item has the wrong type.
    fn of_property(value: Self::Value) -> Option<Self>;
}

/// Implements [`Setting`]: `field: value of the property, its builder`, and both conversions.
macro_rules! settings {
    ($( $field:ty: $value:ty, $builder:ident, $to:expr, $of:expr; )+) => {$(
        impl Setting for $field {
            type Value = $value;
            type Builder<'a> = glib::$builder<'a>;

            fn builder<'a>(&'a self, name: &'a str) -> Self::Builder<'a> {
                <$value>::param_spec_builder()(name).default_value(self.to_property())
            }

            fn to_property(&self) -> $value {
                let to: fn(Self) -> $value = $to;
                to(*self)
            }

            fn of_property(value: $value) -> Option<Self> {
                let of: fn($value) -> Self = $of;
                Some(of(value))
            }
        }
    )+};
}

settings! {
    bool: bool, ParamSpecBooleanBuilder, |field| field, |value| value;
    u32: u32, ParamSpecUIntBuilder, |field| field, |value| value;
    u64: u64, ParamSpecUInt64Builder, |field| field, |value| value;
    i32: i32, ParamSpecIntBuilder, |field| field, |value| value;
    i64: i64, ParamSpecInt64Builder, |field| field, |value| value;
    // In ns.
    Duration: u64, ParamSpecUInt64Builder, |time| nanoseconds(time).unwrap_or(u64::MAX), Self::from_nanos;
    gst::ClockTime: u64, ParamSpecUInt64Builder, Self::nseconds, Self::from_nseconds;
    // True unless it was set.
    Option<bool>: bool, ParamSpecBooleanBuilder, |field| field.unwrap_or(true), Some;
    // None is -1.
    Option<u32>: i64, ParamSpecInt64Builder, |id| id.map_or(-1, i64::from), |id| id.try_into().ok();
    Option<Duration>: i64, ParamSpecInt64Builder,
        |time| time.map_or(-1, |time| nanoseconds(time).unwrap_or(i64::MAX)),
        |ns| ns.try_into().ok().map(Duration::from_nanos);
}

/// Returns a time in ns; none if it exceeds the type.
fn nanoseconds<T: TryFrom<u128>>(time: Duration) -> Option<T> {
    time.as_nanos().try_into().ok()
}

impl Setting for Option<String> {
    type Value = Self;
    type Builder<'a> = glib::ParamSpecStringBuilder<'a>;

    fn builder<'a>(&'a self, name: &'a str) -> Self::Builder<'a> {
        glib::ParamSpecString::builder(name).default_value(self.as_deref())
    }

    fn to_property(&self) -> Self {
        self.clone()
    }

    fn of_property(value: Self) -> Option<Self> {
        Some(value)
    }
}

/// A text that is unset if it is empty.
impl Setting for String {
    type Value = Option<Self>;
    type Builder<'a> = glib::ParamSpecStringBuilder<'a>;

    fn builder<'a>(&'a self, name: &'a str) -> Self::Builder<'a> {
        glib::ParamSpecString::builder(name)
    }

    fn to_property(&self) -> Option<Self> {
        Some(self.clone()).filter(|text| !text.is_empty())
    }

    fn of_property(value: Option<Self>) -> Option<Self> {
        Some(value.unwrap_or_default())
    }
}

/// Numbers of users or groups.
impl Setting for Vec<u32> {
    type Value = gst::Array;
    type Builder<'a> = glib::ParamSpecUIntBuilder<'a>;

    fn builder<'a>(&'a self, name: &'a str) -> Self::Builder<'a> {
        glib::ParamSpecUInt::builder(name)
    }

    fn specification(&self, built: glib::ParamSpec) -> glib::ParamSpec {
        let id = self.builder("id").nick("Number").blurb("Of the user or group").build();
        gst::ParamSpecArray::builder(built.name())
            .nick(built.nick())
            .blurb(built.blurb().unwrap_or_default())
            .flags(built.flags())
            .element_spec(&id)
            .build()
    }

    fn to_property(&self) -> gst::Array {
        gst::Array::new(self.iter().copied())
    }

    fn of_property(value: gst::Array) -> Option<Self> {
        value.iter().map(|id| id.get().ok()).collect()
    }
}

/// Implements [`Setting`] for enumerations of glib.
macro_rules! enums {
    ($($type:ty),+) => {$(
        impl $crate::properties::Setting for $type {
            type Value = Self;
            type Builder<'a> = glib::ParamSpecEnumBuilder<'a, Self>;

            fn builder<'a>(&'a self, name: &'a str) -> Self::Builder<'a> {
                glib::ParamSpecEnum::builder_with_default(name, *self)
            }

            fn to_property(&self) -> Self {
                *self
            }

            fn of_property(value: Self) -> Option<Self> {
                Some(value)
            }
        }
    )+};
}

/// Defines the settings of an element. A property has the name of its field, with hyphens; the
/// documentation is its blurb. Each row is one of:
///
/// - `field: type = default => calls of the builder`
/// - `field in engine => calls of the builder`: the field of the engine's configuration, which the
///   first row defines. The default is that of the configuration.
/// - `field of class: type = default`: a property of the base class that the element overrides.
///
/// The nick is the name with spaces, unless the builder gets one.
macro_rules! properties {
    (
        $struct_vis:vis struct $settings:ident {
            $engine_vis:vis $engine:ident: $config:ty = $config_default:expr;
            $(
                $(#[doc = $blurb:literal])+
                $vis:vis $name:ident $(in $in:ident)? $(of $class:ty)? $(: $type:ty = $default:expr)?
                    $(=> $( $call:ident($($argument:expr),*) ).+)?;
            )+
        }
    ) => {
        #[derive(Clone, Debug)]
        $struct_vis struct $settings {
            $engine_vis $engine: $config,
            $( $( $vis $name: $type, )? )+
        }

        impl Default for $settings {
            fn default() -> Self {
                Self { $engine: $config_default, $( $( $name: $default, )? )+ }
            }
        }

        impl $settings {
            /// Returns the specifications of the properties, with the defaults of the settings.
            pub(super) fn specs() -> Vec<glib::ParamSpec> {
                use $crate::properties::{Setting, nick};
                let settings = Self::default();
                vec![$({
                    let field = &settings$(.$in)?.$name;
                    let name = stringify!($name).replace('_', "-");
                    let nick = nick(&name);
                    let builder = field.builder(&name).nick(&nick).blurb(concat!($($blurb),+).trim());
                    let spec = field.specification(builder$( $(.$call($($argument),*))+ )?.build());
                    $( let spec = glib::ParamSpecOverride::for_class::<$class>(spec.name()); )?
                    spec
                }),+]
            }

            /// Sets a property. Returns false if it is not one of the settings or has another type.
            pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
                // GObject checks types and ranges against the specifications first.
                match name.replace('-', "_").as_str() {
                    $( stringify!($name) => {
                        let field = value.get().ok().and_then($crate::properties::Setting::of_property);
                        field.map(|field| self$(.$in)?.$name = field).is_some()
                    } )+
                    _ => false,
                }
            }

            /// Returns the value of a property; none if it is not one of the settings.
            pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
                use $crate::properties::Setting;
                match name.replace('-', "_").as_str() {
                    $( stringify!($name) => Some(self$(.$in)?.$name.to_property().to_value()), )+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use {enums, properties};

/// Returns the nick of a property.
pub(crate) fn nick(name: &str) -> String {
    let words = name.replace('-', " ");
    words[..1].to_uppercase() + &words[1..]
}
