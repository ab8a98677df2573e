// SPDX-License-Identifier: MIT OR Apache-2.0

//! Passwords of cameras, and the redaction of text that leaves a process.

use serde::{Deserialize, Serialize};
use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fmt,
    process::Command,
    sync::{Mutex, PoisonError},
};

/// Names in paths and queries of URLs before a secret, which ends at one of `ENDS` or a space.
const NAMES: [&str; 9] =
    ["password=", "passwd=", "pass=", "pwd=", "psw=", "token=", "key=", "secret=", "auth="];
const ENDS: [char; 3] = ['&', ';', '#'];
/// Shortest password that [`redact`] searches for: shorter ones are parts of ordinary words.
const MIN_LENGTH: usize = 4;

/// All passwords that this process has read, the longest first.
static PASSWORDS: Mutex<BTreeSet<(Reverse<usize>, String)>> = Mutex::new(BTreeSet::new());
/// All variables with passwords that a configuration has named.
static VARIABLES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A password. Its `Debug` shows no character of it; serialized, it is for `capture` alone.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Secret(String);

impl Secret {
    /// Returns the password, for the element that sends it and nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    /// Takes a password and has it redacted, also in its percent-encoded form.
    fn from(password: String) -> Self {
        let encoded = glib::uri_escape_string(&password, None::<&str>, false).to_string();
        let forms = [password.clone(), encoded].into_iter().filter(|form| form.len() >= MIN_LENGTH);
        let mut passwords = PASSWORDS.lock().unwrap_or_else(PoisonError::into_inner);
        passwords.extend(forms.map(|form| (Reverse(form.len()), form)));
        Self(password)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Notes a variable with a password.
pub fn note_variable(name: &str) {
    VARIABLES.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
}

/// Removes variables with passwords from the environment of a process.
pub fn hide_variables(command: &mut Command) {
    for name in VARIABLES.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        command.env_remove(name);
    }
}

/// Returns a text with `***` for each secret: user and password of a URL, the value behind one of
/// `NAMES`, and passwords that were read. All text that leaves a process goes through here.
pub fn redact(text: &str) -> String {
    let passwords = PASSWORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = passwords.iter().fold(text.to_owned(), |text, (_, form)| text.replace(form, "***"));
    text.split_inclusive(char::is_whitespace).map(redact_word).collect()
}

fn redact_word(word: &str) -> String {
    let mut word = word.to_owned();
    // A password may contain '/' and '@' that are not encoded.
    if let Some((before, _)) = word.rsplit_once('@')
        && let Some((scheme, login)) = before.split_once(':')
    {
        let begin = scheme.len() + 1 + login.len() - login.trim_start_matches('/').len();
        word.replace_range(begin..before.len(), "***");
    }
    let is_end = |c: char| ENDS.contains(&c) || c.is_whitespace();
    let parts = word.split_inclusive(is_end).map(|part| {
        let lower = part.to_ascii_lowercase();
        let value = NAMES.iter().filter_map(|name| Some(lower.find(name)? + name.len())).min();
        let end = part.trim_end_matches(is_end).len();
        value.map_or(part.to_owned(), |value| format!("{}***{}", &part[..value], &part[end.max(value)..]))
    });
    parts.collect()
}
