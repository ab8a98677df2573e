// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values in events: those of GStreamer's structures and tags.

use frameshare_protocol::form::DateTime;

/// One tag.
#[derive(Clone, Debug, PartialEq)]
pub struct Tag {
    /// Its name, such as `title`.
    pub name: String,
    /// Its values, of the tag's type; several for tags such as `artist`.
    pub values: Vec<Value>,
}

/// A name with fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    /// Its name: a letter, then letters, digits and `/-_.:+`; at most 256 bytes.
    pub name: String,
    /// Its fields, in order; at most 1,024. A name is 1 to 256 printable ASCII characters.
    pub fields: Vec<(String, Value)>,
}

impl Structure {
    /// A structure without fields.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), fields: Vec::new() }
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }
}

/// A value, by its type in GStreamer. The types of `Enum`, `Flags` and `FlagSet` are names of the
/// exporter's process.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variants are GStreamer's types, and their fields the types' own")]
pub enum Value {
    Bool(bool),
    Int(i32),
    Uint(u32),
    Int64(i64),
    Uint64(u64),
    Float(f32),
    Double(f64),
    /// `None` is a null pointer.
    Text(Option<String>),
    /// The denominator is positive.
    Fraction {
        numerator: i32,
        denominator: i32,
    },
    Bitmask(u64),
    IntRange {
        min: i32,
        max: i32,
        step: i32,
    },
    Int64Range {
        min: i64,
        max: i64,
        step: i64,
    },
    /// Each a numerator and a denominator.
    FractionRange {
        min: (i32, i32),
        max: (i32, i32),
    },
    Enum {
        name: String,
        value: i32,
    },
    Flags {
        name: String,
        value: u32,
    },
    FlagSet {
        name: String,
        flags: u32,
        mask: u32,
    },
    /// Days: 1 is the first of January of the year 1.
    Date(u32),
    DateTime(DateTime),
    /// Bytes, such as an image.
    Buffer(Vec<u8>),
    /// Bytes with their format.
    Sample {
        caps: Option<Caps>,
        info: Option<Structure>,
        bytes: Vec<u8>,
    },
    /// Alternatives.
    List(Vec<Value>),
    /// A sequence.
    Array(Vec<Value>),
    Structure(Structure),
    Caps(Caps),
}

impl Value {
    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => text.as_deref(),
            _ => None,
        }
    }

    /// The number, if it is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Int(value) => Some(value.into()),
            Self::Uint(value) => Some(value.into()),
            Self::Int64(value) => Some(value),
            Self::Uint64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// The number, if it is one of floating point.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Float(value) => Some(value.into()),
            Self::Double(value) => Some(value),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($of:ty => $make:expr),* $(,)?) => {
        $(impl From<$of> for Value {
            fn from(value: $of) -> Self {
                $make(value)
            }
        })*
    };
}

from! {
    bool => Value::Bool,
    i32 => Value::Int,
    u32 => Value::Uint,
    i64 => Value::Int64,
    u64 => Value::Uint64,
    f32 => Value::Float,
    f64 => Value::Double,
    String => |text| Value::Text(Some(text)),
    &str => |text: &str| Value::Text(Some(text.to_owned())),
    DateTime => Value::DateTime,
    Vec<u8> => Value::Buffer,
    Structure => Value::Structure,
    Caps => Value::Caps,
}

/// Formats of media.
#[derive(Clone, Debug, PartialEq)]
pub enum Caps {
    /// All formats.
    Any,
    /// Alternatives.
    Structures(Vec<CapsStructure>),
}

/// One alternative of [`Caps`].
#[derive(Clone, Debug, PartialEq)]
pub struct CapsStructure {
    /// Whether it stands for all features.
    pub any_features: bool,
    /// Its features, such as `memory:CUDAMemory`; at most 64.
    pub features: Vec<String>,
    /// The format.
    pub structure: Structure,
}
