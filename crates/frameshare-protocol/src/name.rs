// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stream names.

use std::{fmt, str::FromStr};

/// Name of a stream on this machine: 1 to 64 characters of `A-Z a-z 0-9 . _ -`, not starting with a
/// dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamName(String);

/// An invalid stream name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid stream name {0:?}: use 1 to 64 characters of A-Z a-z 0-9 . _ -, and do not start with a dot"
)]
pub struct InvalidName(String);

impl StreamName {
    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StreamName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('.') {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName(text.chars().take(80).collect()))
        }
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_plain_file_names() {
        for good in ["cam0", "a", "Front.Door_2-left", &"x".repeat(64)] {
            assert_eq!(good.parse::<StreamName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "caméra", "a\0b", &"x".repeat(65)] {
            assert!(bad.parse::<StreamName>().is_err(), "{bad:?}");
        }
    }
}
