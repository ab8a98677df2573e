// SPDX-License-Identifier: MIT OR Apache-2.0

//! Upstream events: of a reader's application, for the owner of the exporter.

use crate::limits::{MAX_JITTER_NS, MAX_NAVIGATION_FIELDS, MAX_NAVIGATION_NAME, MAX_NAVIGATION_TEXT};
use serde::{Deserialize, Serialize};

/// The kinds of upstream events that an exporter accepts from a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamKinds {
    /// [`UpstreamEvent::Qos`].
    pub qos: bool,
    /// [`UpstreamEvent::Navigation`].
    pub navigation: bool,
}

/// An event of a reader's application, for the owner of the exporter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum UpstreamEvent {
    /// Whether frames are used in time.
    Qos(Qos),
    /// Input of a user: the pointer, a key, a touch.
    Navigation(Navigation),
}

/// A report about the use of a frame (GstQOS).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qos {
    /// Processing time of the reader as a proportion of the time available; above 1.0 it is too
    /// slow. Finite, not negative.
    pub proportion: f64,
    /// Lateness of the frame in ns: negative if it was early; a minute at most either way.
    pub jitter: i64,
    /// The time at which the frame was due, in ns of `CLOCK_MONOTONIC`.
    pub time: u64,
}

/// Input of a user (GstNavigation).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Navigation {
    /// The kind of input, such as `mouse-move` or `key-press`: 1 to 32 of `a-z0-9-`.
    pub event: String,
    /// Pressed buttons and modifier keys (GstNavigationModifierType).
    pub modifiers: u32,
    /// Its fields, such as `pointer_x`: 8 at most, each name once, 1 to 32 of `a-z0-9_-`.
    pub fields: Vec<(String, NavigationValue)>,
}

/// The value of a field of a [`Navigation`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NavigationValue {
    /// A signed number, such as that of a button.
    Int(i32),
    /// An unsigned number, such as that of a command or a touch.
    Uint(u32),
    /// A finite number, such as a coordinate in pixels of the frame.
    Double(f64),
    /// The name of a key: one printable line of 64 bytes at most.
    Text(String),
}

impl UpstreamKinds {
    /// Both kinds.
    pub const ALL: Self = Self { qos: true, navigation: true };

    /// Returns whether the kind of an event is among them.
    pub fn include(self, event: &UpstreamEvent) -> bool {
        match event {
            UpstreamEvent::Qos(_) => self.qos,
            UpstreamEvent::Navigation(_) => self.navigation,
        }
    }
}

impl UpstreamEvent {
    /// Returns whether all values are within their limits.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Qos(qos) => qos.is_valid(),
            Self::Navigation(navigation) => navigation.is_valid(),
        }
    }
}

impl Qos {
    fn is_valid(&self) -> bool {
        let is_proportion = self.proportion.is_finite() && self.proportion >= 0.0;
        is_proportion && self.jitter.unsigned_abs() <= MAX_JITTER_NS && self.time != u64::MAX
    }
}

impl Navigation {
    /// Input of a kind, without modifiers and fields.
    pub fn new(event: impl Into<String>) -> Self {
        Self { event: event.into(), modifiers: 0, fields: Vec::new() }
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, value: impl Into<NavigationValue>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&NavigationValue> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    fn is_valid(&self) -> bool {
        let is_name = |name: &str, others: &[u8]| {
            (1..=MAX_NAVIGATION_NAME).contains(&name.len())
                && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || others.contains(&c))
        };
        // `event` and `state` are fields of GstNavigation for the two values above.
        let is_field = |(index, (name, value)): (usize, &(String, NavigationValue))| {
            let is_repeated = self.fields[..index].iter().any(|(earlier, _)| earlier == name);
            is_name(name, b"_-") && !is_repeated && name != "event" && name != "state" && value.is_valid()
        };
        is_name(&self.event, b"-")
            && self.fields.len() <= MAX_NAVIGATION_FIELDS
            && self.fields.iter().enumerate().all(is_field)
    }
}

impl NavigationValue {
    fn is_valid(&self) -> bool {
        match self {
            Self::Int(_) | Self::Uint(_) => true,
            Self::Double(value) => value.is_finite(),
            Self::Text(text) => text.len() <= MAX_NAVIGATION_TEXT && !text.contains(char::is_control),
        }
    }
}

macro_rules! from {
    ($($of:ty => $make:expr),* $(,)?) => {
        $(impl From<$of> for NavigationValue {
            fn from(value: $of) -> Self {
                $make(value)
            }
        })*
    };
}

from! {
    i32 => Self::Int,
    u32 => Self::Uint,
    f64 => Self::Double,
    String => Self::Text,
    &str => |text: &str| Self::Text(text.into()),
}
