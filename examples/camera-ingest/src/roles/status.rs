// SPDX-License-Identifier: MIT OR Apache-2.0

//! Status of a camera that consists of several parts, such as main stream, sub-stream and audio.

use crate::report::{Condition, Report, Reporter};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Reports one camera: the worst condition of its parts, and the texts of all.
pub struct Status {
    reporter: Reporter,
    camera: String,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    conditions: BTreeMap<&'static str, (Condition, String)>,
    values: BTreeMap<String, f64>,
}

impl Status {
    pub fn new(reporter: &Reporter, camera: &str) -> Self {
        Self { reporter: reporter.clone(), camera: camera.to_owned(), parts: Mutex::default() }
    }

    /// Sets the condition of a part; reports if it is new.
    pub fn set(&self, part: &'static str, condition: Condition, text: impl Into<String>) {
        self.change(|parts| {
            let news = (condition, text.into());
            parts.conditions.insert(part, news.clone()) != Some(news)
        });
    }

    /// Sets a figure; reports if it is new.
    pub fn value(&self, name: &str, value: f64) {
        self.change(|parts| parts.values.insert(name.to_owned(), value) != Some(value));
    }

    fn change(&self, change: impl FnOnce(&mut Parts) -> bool) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        // Figures alone wait for the first condition.
        if !change(&mut parts) || parts.conditions.is_empty() {
            return;
        }
        let worst = parts.conditions.values().map(|(condition, _)| *condition).max();
        let texts = parts.conditions.iter().map(|(part, (_, text))| match *part {
            "" => text.clone(),
            part => format!("{part}: {text}"),
        });
        self.reporter.send(&Report {
            camera: self.camera.clone(),
            condition: worst.unwrap_or(Condition::Waiting),
            text: texts.collect::<Vec<_>>().join("; "),
            values: parts.values.clone(),
        });
    }
}
