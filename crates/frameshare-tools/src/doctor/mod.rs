// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare doctor`: abilities and limits of this machine, and of a reader of a stream here.

mod folders;
mod gpu;
mod gstreamer;
mod kernel;
mod limits;
mod stream;
mod users;

use crate::{
    error::Error,
    output::{Page, print_json},
};
use serde_json::{Value, json};

/// Severity of a check's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warning,
    Error,
}

/// The result of a check.
#[derive(Debug)]
struct Check {
    subject: &'static str,
    level: Level,
    text: String,
    /// The remedy of a warning or an error; empty for none.
    remedy: String,
}

impl Check {
    fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self { subject, level: Level::Ok, text: text.into(), remedy: String::new() }
    }

    fn warning(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject, level: Level::Warning, text: text.into(), remedy: remedy.into() }
    }

    fn error(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject, level: Level::Error, text: text.into(), remedy: remedy.into() }
    }
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Checks this machine and, if a stream is named, what a reader of here would get of it.
pub fn doctor(stream: Option<&str>, json: bool) -> Result<(), Error> {
    let mut checks = kernel::checks();
    checks.extend(limits::checks());
    checks.extend(users::checks());
    checks.extend(folders::checks());
    checks.extend(gpu::checks());
    checks.extend(gstreamer::checks());
    let mut failure = None;
    if let Some(stream) = stream {
        let (more, error) = stream::checks(stream)?;
        checks.extend(more);
        failure = error;
    }
    print(&checks, json)?;
    let errors = checks.iter().filter(|check| check.level == Level::Error).count();
    match failure {
        _ if errors == 0 => Ok(()),
        Some(error) => Err(error),
        None => Err(Error::Doctor { errors }),
    }
}

fn print(checks: &[Check], json: bool) -> Result<(), Error> {
    if json {
        let worst = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
        let checks: Vec<_> = checks.iter().map(to_json).collect();
        return print_json(&json!({ "level": worst.name(), "checks": checks }));
    }
    let mut page = Page::new();
    for check in checks {
        page.line(&format!("{:9}{:11}{}", check.level.name(), check.subject, check.text));
        if !check.remedy.is_empty() {
            page.line(&format!("{:20}-> {}", "", check.remedy));
        }
    }
    page.print()
}

fn to_json(check: &Check) -> Value {
    json!({
        "subject": check.subject,
        "level": check.level.name(),
        "text": check.text,
        "remedy": (!check.remedy.is_empty()).then_some(&check.remedy),
    })
}

/// Returns a size in its largest binary unit.
fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() as usize / 10).min(units.len() - 1);
    match unit {
        0 => format!("{bytes} bytes"),
        unit => format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * unit)) as f64, units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_given_in_their_largest_unit() {
        let sizes = [0, 1023, 1024, 64 << 20, 3 << 39].map(size);
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "64.0 MiB", "1.5 TiB"]);
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }
}
