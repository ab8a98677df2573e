// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings: files of the choices of a run, as text.
//!
//! Lines that begin with `#` are comments. All others hold numbers, separated by white space.

use std::fmt::Write;

/// Choices on a line.
const WIDTH: usize = 24;

/// Returns the text of a recording. `comment` may have several lines.
pub fn to_text(comment: &str, choices: &[u32]) -> String {
    let mut text = String::new();
    comment.lines().for_each(|line| writeln!(text, "# {line}").expect("strings take all text"));
    for line in choices.chunks(WIDTH) {
        let numbers: Vec<_> = line.iter().map(u32::to_string).collect();
        text += &numbers.join(" ");
        text.push('\n');
    }
    text
}

/// Returns the choices of a recording.
///
/// # Errors
/// The first word that is no number.
pub fn from_text(text: &str) -> Result<Vec<u32>, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|word| word.parse().map_err(|_| format!("invalid choice {word:?}: expected a number")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{from_text, to_text};

    #[test]
    fn recordings_are_read_back() {
        let choices: Vec<_> = (0..100).map(|at| at * at).collect();
        let text = to_text("a failure\nof 3 lines\n", &choices);
        assert_eq!(from_text(&text), Ok(choices));
        assert_eq!(from_text("# only a comment\n"), Ok(vec![]));
        assert_eq!(from_text("1 x"), Err("invalid choice \"x\": expected a number".into()));
    }
}
