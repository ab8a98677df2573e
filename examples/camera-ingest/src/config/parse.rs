// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reading of the file with all errors in it: each has its line and key.

use super::file::File;
use serde::Deserialize;
use std::{fmt, ops::Range};
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

/// An error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// Path of the key, such as "cameras.cam0.sub"; empty for errors of syntax.
    pub key: String,
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => write!(f, "{}: {}", self.line, self.text),
            key => write!(f, "{}: {key}: {}", self.line, self.text),
        }
    }
}

/// The text of a configuration and where its keys are.
pub struct Document<'a> {
    text: &'a str,
    table: Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    /// Parses a text into its file form. Whatever has an error is left out, and the error is
    /// returned.
    pub fn parse(text: &'a str) -> (Self, File, Vec<Problem>) {
        let (table, errors) = DeTable::parse_recoverable(text);
        let document = Self { text, table };
        let mut problems: Vec<_> = errors
            .iter()
            .map(|error| document.problem(error.span().map_or(0, |span| span.start), "", error.message()))
            .collect();
        let file = document.deserialize(&mut problems);
        (document, file, problems)
    }

    /// Returns a problem of the key that these parts name, or of the nearest one above.
    pub fn problem_of(&self, path: &[&str], text: impl fmt::Display) -> Problem {
        let offset = self.offset(path).unwrap_or(0);
        self.problem(offset, &path.join("."), text)
    }

    /// Returns the offset of a key in the text, or of the nearest one above.
    pub fn offset(&self, path: &[&str]) -> Option<usize> {
        let mut table = self.table.get_ref();
        let mut found = None;
        for part in path {
            let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == part) else { break };
            found = Some(key.span().start);
            let DeValue::Table(below) = value.get_ref() else { break };
            table = below;
        }
        found
    }

    fn problem(&self, offset: usize, key: &str, text: impl fmt::Display) -> Problem {
        let before = self.text.get(..offset).unwrap_or(self.text);
        Problem { line: before.matches('\n').count() + 1, key: key.to_owned(), text: text.to_string() }
    }

    /// Deserializes the table; removes each entry that has an error, and tries again.
    fn deserialize(&self, problems: &mut Vec<Problem>) -> File {
        let mut table = self.table.clone();
        // A camera may be its source alone.
        if let Some(DeValue::Table(cameras)) = table.get_mut().get_mut("cameras").map(Spanned::get_mut) {
            for (name, camera) in cameras.iter_mut().filter(|(_, camera)| camera.get_ref().is_str()) {
                let main = (Spanned::new(name.span(), "main".into()), camera.clone());
                *camera.get_mut() = DeValue::Table(DeTable::from_iter([main]));
            }
        }
        loop {
            let error = match File::deserialize(Deserializer::from(table.clone())) {
                Ok(file) => return file,
                Err(error) => error,
            };
            let span = error.span().unwrap_or(0..0);
            let mut path = Vec::new();
            let removed = remove(table.get_mut(), &span, &mut path);
            let text = error.message().trim_end();
            problems.push(self.problem(span.start, &path.join("."), text));
            if !removed {
                return File::default();
            }
        }
    }
}

/// Removes the deepest entry whose key or value contains a span, and returns its path.
fn remove(table: &mut DeTable<'_>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    let key = table.iter().find(|(key, value)| contains(key.span(), span) || has(value, span));
    let Some(key) = key.map(|(key, _)| key.clone()) else { return false };
    path.push(key.get_ref().to_string());
    if let Some(DeValue::Table(below)) = table.get_mut(&key).map(Spanned::get_mut)
        && remove(below, span, path)
    {
        return true;
    }
    table.remove(&key).is_some()
}

fn contains(outer: Range<usize>, span: &Range<usize>) -> bool {
    outer.start <= span.start && span.end <= outer.end
}

/// Returns whether a value contains a span. A table's span is its header's: entries may be outside.
fn has(value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    contains(value.span(), span)
        || match value.get_ref() {
            DeValue::Table(table) => {
                table.iter().any(|(key, value)| contains(key.span(), span) || has(value, span))
            }
            DeValue::Array(values) => values.iter().any(|value| has(value, span)),
            _ => false,
        }
}
