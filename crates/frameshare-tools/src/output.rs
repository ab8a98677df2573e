// SPDX-License-Identifier: MIT OR Apache-2.0

//! Output: all text of peers is escaped here, so that it cannot control the terminal.

use crate::error::Error;
use frameshare::is_printable;
use serde_json::Value;
use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal, Write},
};

/// Returns the text with escape sequences such as `\u{1b}` for characters that are not printable.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match is_printable(c) {
            true => escaped.push(c),
            false => escaped.extend(c.escape_unicode()),
        }
    }
    escaped
}

/// Prints a JSON value on a line of its own.
pub fn print_json(value: &Value) -> Result<(), Error> {
    let mut line = String::new();
    // Beyond ASCII, serde_json escapes nothing. These characters occur within strings only.
    for c in value.to_string().chars() {
        match is_printable(c) {
            true => line.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(line, "\\u{unit:04x}");
            }),
        }
    }
    print(&(line + "\n"))
}

fn print(text: &str) -> Result<(), Error> {
    print_bytes(text.as_bytes())
}

/// Prints the bytes of an image.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Error::Output)
}

/// Returns whether a terminal may get styles: unless `NO_COLOR` is set.
pub fn is_colored() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Lines of text.
#[derive(Debug)]
pub struct Page {
    text: String,
    is_styled: bool,
}

impl Page {
    /// Returns an empty page. Headings are bold on a terminal, unless `NO_COLOR` is set.
    pub fn new() -> Self {
        Self { text: String::new(), is_styled: io::stdout().is_terminal() && is_colored() }
    }

    /// Adds a line.
    pub fn line(&mut self, line: &str) {
        self.text += &escape(line);
        self.text.push('\n');
    }

    /// Adds a line that stands out.
    pub fn heading(&mut self, line: &str) {
        let (begin, end) = if self.is_styled { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        self.text += &format!("{begin}{}{end}\n", escape(line));
    }

    /// Adds a table: a heading, and rows whose columns are aligned.
    pub fn table<const N: usize>(&mut self, titles: [&str; N], rows: &[[String; N]]) {
        // Escaped first, since that changes the width.
        let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| escape(cell))).collect();
        let titles = titles.map(str::to_owned);
        let all = || rows.iter().chain([&titles]);
        let widths: [usize; N] =
            std::array::from_fn(|at| all().map(|row| row[at].chars().count()).max().unwrap_or(0));
        let format = |row: &[String; N]| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
            cells.collect::<String>().trim_end().to_owned()
        };
        self.heading(&format(&titles));
        rows.iter().for_each(|row| self.line(&format(row)));
    }

    /// Prints the page.
    pub fn print(&self) -> Result<(), Error> {
        print(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_terminals_are_escaped() {
        assert_eq!(escape("a\x1b[31m\r\n\u{9b}b"), "a\\u{1b}[31m\\u{d}\\u{a}\\u{9b}b");
        assert_eq!(escape("\u{202e}gpj.exe\u{2066}"), "\\u{202e}gpj.exe\\u{2066}");
        assert_eq!(escape("Kamera Süd 日本"), "Kamera Süd 日本");
    }

    #[test]
    fn tables_are_aligned_after_escaping() {
        let mut page = Page { text: String::new(), is_styled: false };
        page.table(["A", "B"], &[["\x1b".into(), "1".into()], ["long".into(), "2".into()]]);
        assert_eq!(page.text, "A       B\n\\u{1b}  1\nlong    2\n");
    }
}
