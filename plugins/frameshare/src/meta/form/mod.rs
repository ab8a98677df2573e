// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed form of GStreamer's structures, caps and values.
//!
//! GStreamer's own form is text, and its parsers recurse as deep as a text nests, unescape quoted
//! texts and parse them again, and raise criticals. No text of a peer reaches them: the writer
//! sends each value by its type, the reader builds it by its type, in the
//! [form](frameshare::event::form) of the wire. A value of a type that it does not have cannot be
//! sent.

mod read;
mod write;

pub(crate) use crate::ffi::typed_value::is_type_name;
pub(super) use crate::ffi::typed_value::of_named_type;
pub(crate) use frameshare::event::form::{is_feature_name, is_field_name, is_structure_name};
pub(crate) use read::Reader;
pub(super) use read::{are_of_one_type, fraction};
pub(crate) use write::{Unwritable, Writer};

use super::budget::OverBudget;

/// The reason why a peer's bytes are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("cut short or damaged")]
    Malformed,
    #[error("impossible {0}")]
    Impossible(&'static str),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
}

#[cfg(test)]
mod tests;
