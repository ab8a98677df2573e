// SPDX-License-Identifier: MIT OR Apache-2.0

//! Options of configurations: one table each, of which the fields, their defaults and their setters
//! are made.

/// An option of a configuration. Interfaces that have it use the same name, with the hyphens of
/// properties or the unit at its end (`_ns`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigOption {
    /// Name of the field.
    pub name: &'static str,
    /// Type of the field, which shows the unit: a `Duration`, or a number of what the name says.
    pub kind: &'static str,
    /// The field's documentation.
    pub text: &'static str,
}

/// Defines a configuration: `field: type = default` for each option, and `as` the type that its
/// setter takes, if it is another one.
macro_rules! options {
    (
        $(#[$head:meta])*
        pub struct $config:ident {
            $( $(#[doc = $doc:literal])+ pub $name:ident: $type:ty $(as $given:ty)? = $default:expr, )*
        }
        $( hidden {
            $( $(#[doc = $hidden_doc:literal])+ pub $hidden:ident: $hidden_type:ty = $hidden_default:expr, )*
        } )?
    ) => {
        $(#[$head])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $config {
            $( $(#[doc = $doc])+ pub $name: $type, )*
            $( $( $(#[doc = $hidden_doc])+ #[doc(hidden)] pub $hidden: $hidden_type, )* )?
        }

        impl Default for $config {
            fn default() -> Self {
                Self { $( $name: $default, )* $( $( $hidden: $hidden_default, )* )? }
            }
        }

        /// Setters. The values are checked when the configuration is used.
        impl $config {
            $(
                #[doc = concat!("Sets [`", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
                #[must_use]
                pub fn $name(mut self, $name: $crate::options::given!($type $(, $given)?)) -> Self {
                    self.$name = $name.into();
                    self
                }
            )*

            /// The options, for interfaces that show them.
            pub const OPTIONS: &'static [$crate::options::ConfigOption] = &[
                $( $crate::options::ConfigOption {
                    name: stringify!($name),
                    kind: stringify!($type),
                    text: concat!($($doc, "\n"),+),
                }, )*
            ];

            /// Returns the value of each of [`Self::OPTIONS`] as text.
            pub fn values(&self) -> Vec<String> {
                vec![ $( format!("{:?}", self.$name), )* ]
            }
        }
    };
}

macro_rules! given {
    ($type:ty) => {
        $type
    };
    ($type:ty, $given:ty) => {
        $given
    };
}

pub(crate) use {given, options};
