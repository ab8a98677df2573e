// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values of the engine in the [form](frameshare_protocol::form) of the wire.

use super::{Caps, CapsStructure, Structure, Tag, Value};
use frameshare_protocol::form::{
    MAX_DEPTH, MAX_FEATURES, MAX_FIELDS, Node, is_feature_name, is_field_name, is_structure_name,
};
use serde::{Deserialize, Serialize};

/// Maximum number of values, names and structures in one event: each takes more memory than bytes.
const MAX_ITEMS: usize = 1 << 16;

/// The reason why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    Malformed,
    /// A part that is outside of its limits.
    Limit(&'static str),
}

impl Invalid {
    /// The part, for errors of a writer.
    pub fn what(self) -> &'static str {
        match self {
            Self::Malformed => "form",
            Self::Limit(what) => what,
        }
    }
}

type Result<T> = std::result::Result<T, Invalid>;

fn check(is_valid: bool, what: &'static str) -> Result<()> {
    if is_valid { Ok(()) } else { Err(Invalid::Limit(what)) }
}

fn check_structure_name(name: &str) -> Result<()> {
    check(is_structure_name(name), "name of a structure")
}

fn check_field_name(name: &str) -> Result<()> {
    check(is_field_name(name), "name of a field")
}

fn check_feature_name(name: &str) -> Result<()> {
    check(is_feature_name(name), "name of a feature")
}

fn check_leaf(node: &Node<'_>) -> Result<()> {
    node.check().map_err(Invalid::Limit)
}

/// Returns the node of a value that is one node long.
fn leaf(value: &Value) -> Option<Node<'_>> {
    Some(match *value {
        Value::Bool(value) => Node::Bool(value),
        Value::Int(value) => Node::Int(value),
        Value::Uint(value) => Node::Uint(value),
        Value::Int64(value) => Node::Int64(value),
        Value::Uint64(value) => Node::Uint64(value),
        Value::Float(value) => Node::Float(value),
        Value::Double(value) => Node::Double(value),
        Value::Text(ref text) => Node::Text(text.as_deref()),
        Value::Fraction { numerator, denominator } => Node::Fraction(numerator, denominator),
        Value::Bitmask(bits) => Node::Bitmask(bits),
        Value::IntRange { min, max, step } => Node::IntRange(min, max, step),
        Value::Int64Range { min, max, step } => Node::Int64Range(min, max, step),
        Value::FractionRange { min, max } => Node::FractionRange(min, max),
        Value::Enum { ref name, value } => Node::Enum(name, value),
        Value::Flags { ref name, value } => Node::Flags(name, value),
        Value::FlagSet { ref name, flags, mask } => Node::FlagSet(name, flags, mask),
        Value::Date(day) => Node::Date(day),
        Value::DateTime(time) => Node::DateTime(time),
        Value::Buffer(_)
        | Value::Sample { .. }
        | Value::List(_)
        | Value::Array(_)
        | Value::Structure(_)
        | Value::Caps(_) => return None,
    })
}

/// Reads a form from bytes of a peer.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    items: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, items: 0 }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads plain data.
    pub fn plain<T: Deserialize<'a>>(&mut self) -> Result<T> {
        let (content, rest) = postcard::take_from_bytes(self.rest).map_err(|_| Invalid::Malformed)?;
        self.rest = rest;
        Ok(content)
    }

    pub fn tag(&mut self) -> Result<Tag> {
        let (name, count) = self.plain::<(&str, u32)>()?;
        check_field_name(name)?;
        self.item()?;
        Ok(Tag { name: name.to_owned(), values: self.values(count, 0)? })
    }

    pub fn structure(&mut self) -> Result<Structure> {
        self.structure_at(0)
    }

    pub fn caps(&mut self) -> Result<Caps> {
        self.caps_at(0)
    }

    /// Counts one value, name or structure against the limit.
    pub fn item(&mut self) -> Result<()> {
        self.items += 1;
        check(self.items <= MAX_ITEMS, "number of values")
    }

    fn structure_at(&mut self, depth: usize) -> Result<Structure> {
        check(depth <= MAX_DEPTH, "nesting")?;
        self.item()?;
        let (name, count) = self.plain::<(&str, u32)>()?;
        check_structure_name(name)?;
        check(count <= MAX_FIELDS, "number of fields")?;
        let mut structure = Structure::new(name);
        for _ in 0..count {
            let name = self.plain::<&str>()?;
            check_field_name(name)?;
            let value = self.value_at(depth + 1)?;
            structure.fields.push((name.to_owned(), value));
        }
        Ok(structure)
    }

    fn caps_at(&mut self, depth: usize) -> Result<Caps> {
        let (is_any, count) = self.plain::<(bool, u32)>()?;
        if is_any {
            return Ok(Caps::Any);
        }
        let mut structures = Vec::new();
        for _ in 0..count {
            let (any_features, count) = self.plain::<(bool, u32)>()?;
            check(count <= MAX_FEATURES, "number of features")?;
            let mut features = Vec::new();
            for _ in 0..count {
                let name = self.plain::<&str>()?;
                check_feature_name(name)?;
                self.item()?;
                features.push(name.to_owned());
            }
            structures.push(CapsStructure { any_features, features, structure: self.structure_at(depth)? });
        }
        Ok(Caps::Structures(structures))
    }

    fn values(&mut self, count: u32, depth: usize) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.value_at(depth)?);
        }
        Ok(values)
    }

    fn bytes(&mut self, size: u64) -> Result<Vec<u8>> {
        let bytes = usize::try_from(size).ok().and_then(|size| self.rest.split_at_checked(size));
        let (bytes, rest) = bytes.ok_or(Invalid::Malformed)?;
        self.rest = rest;
        Ok(bytes.to_vec())
    }

    fn value_at(&mut self, depth: usize) -> Result<Value> {
        check(depth <= MAX_DEPTH, "nesting")?;
        self.item()?;
        let node = self.plain::<Node<'a>>()?;
        check_leaf(&node)?;
        Ok(match node {
            Node::Bool(value) => Value::Bool(value),
            Node::Int(value) => Value::Int(value),
            Node::Uint(value) => Value::Uint(value),
            Node::Int64(value) => Value::Int64(value),
            Node::Uint64(value) => Value::Uint64(value),
            Node::Float(value) => Value::Float(value),
            Node::Double(value) => Value::Double(value),
            Node::Text(text) => Value::Text(text.map(str::to_owned)),
            Node::Fraction(numerator, denominator) => Value::Fraction { numerator, denominator },
            Node::Bitmask(bits) => Value::Bitmask(bits),
            Node::IntRange(min, max, step) => Value::IntRange { min, max, step },
            Node::Int64Range(min, max, step) => Value::Int64Range { min, max, step },
            Node::FractionRange(min, max) => Value::FractionRange { min, max },
            Node::Enum(name, value) => Value::Enum { name: name.to_owned(), value },
            Node::Flags(name, value) => Value::Flags { name: name.to_owned(), value },
            Node::FlagSet(name, flags, mask) => Value::FlagSet { name: name.to_owned(), flags, mask },
            Node::Date(day) => Value::Date(day),
            Node::DateTime(time) => Value::DateTime(time),
            Node::Buffer(size) => Value::Buffer(self.bytes(size)?),
            Node::Sample(has_caps, has_info, size) => {
                let caps = has_caps.then(|| self.caps_at(depth + 1)).transpose()?;
                let info = has_info.then(|| self.structure_at(depth + 1)).transpose()?;
                Value::Sample { caps, info, bytes: self.bytes(size)? }
            }
            Node::List(count) => Value::List(self.values(count, depth + 1)?),
            Node::Array(count) => Value::Array(self.values(count, depth + 1)?),
            Node::Structure => Value::Structure(self.structure_at(depth + 1)?),
            Node::Caps => Value::Caps(self.caps_at(depth + 1)?),
        })
    }
}

/// Builds the bytes of a form. Errors name the part that readers would refuse.
#[derive(Debug, Default)]
pub(super) struct Writer(pub Vec<u8>);

type Written = std::result::Result<(), &'static str>;

fn valid(checked: Result<()>) -> Written {
    checked.map_err(Invalid::what)
}

impl Writer {
    /// Appends plain data.
    pub fn plain(&mut self, content: &impl Serialize) {
        // Infallible: plain data into a growing buffer.
        self.0 = postcard::to_extend(content, std::mem::take(&mut self.0)).unwrap_or_default();
    }

    pub fn tag(&mut self, tag: &Tag) -> Written {
        valid(check_field_name(&tag.name))?;
        self.plain(&(tag.name.as_str(), count_of(&tag.values)?));
        tag.values.iter().try_for_each(|value| self.value_at(value, 0))
    }

    pub fn structure(&mut self, structure: &Structure) -> Written {
        self.structure_at(structure, 0)
    }

    pub fn caps(&mut self, caps: &Caps) -> Written {
        self.caps_at(caps, 0)
    }

    fn structure_at(&mut self, structure: &Structure, depth: usize) -> Written {
        valid(check(depth <= MAX_DEPTH, "nesting"))?;
        valid(check_structure_name(&structure.name))?;
        valid(check(structure.fields.len() <= MAX_FIELDS as usize, "number of fields"))?;
        self.plain(&(structure.name.as_str(), count_of(&structure.fields)?));
        structure.fields.iter().try_for_each(|(name, value)| {
            valid(check_field_name(name))?;
            self.plain(&name.as_str());
            self.value_at(value, depth + 1)
        })
    }

    fn caps_at(&mut self, caps: &Caps, depth: usize) -> Written {
        let Caps::Structures(structures) = caps else {
            self.plain(&(true, 0_u32));
            return Ok(());
        };
        self.plain(&(false, count_of(structures)?));
        structures.iter().try_for_each(|CapsStructure { any_features, features, structure }| {
            valid(check(features.len() <= MAX_FEATURES as usize, "number of features"))?;
            features.iter().try_for_each(|name| valid(check_feature_name(name)))?;
            self.plain(&(*any_features, features));
            self.structure_at(structure, depth)
        })
    }

    fn value_at(&mut self, value: &Value, depth: usize) -> Written {
        valid(check(depth <= MAX_DEPTH, "nesting"))?;
        if let Some(node) = leaf(value) {
            valid(check_leaf(&node))?;
            self.plain(&node);
            return Ok(());
        }
        match value {
            Value::Buffer(bytes) => {
                self.plain(&Node::Buffer(bytes.len() as u64));
                self.0.extend_from_slice(bytes);
            }
            Value::Sample { caps, info, bytes } => {
                self.plain(&Node::Sample(caps.is_some(), info.is_some(), bytes.len() as u64));
                caps.as_ref().map_or(Ok(()), |caps| self.caps_at(caps, depth + 1))?;
                info.as_ref().map_or(Ok(()), |info| self.structure_at(info, depth + 1))?;
                self.0.extend_from_slice(bytes);
            }
            Value::List(values) | Value::Array(values) => {
                let count = count_of(values)?;
                let node =
                    if matches!(value, Value::List(_)) { Node::List(count) } else { Node::Array(count) };
                self.plain(&node);
                values.iter().try_for_each(|value| self.value_at(value, depth + 1))?;
            }
            Value::Structure(structure) => {
                self.plain(&Node::Structure);
                self.structure_at(structure, depth + 1)?;
            }
            Value::Caps(caps) => {
                self.plain(&Node::Caps);
                self.caps_at(caps, depth + 1)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the number of items, within the limit of readers.
fn count_of<T>(items: &[T]) -> std::result::Result<u32, &'static str> {
    if items.len() <= MAX_ITEMS { Ok(items.len() as u32) } else { Err("number of values") }
}
