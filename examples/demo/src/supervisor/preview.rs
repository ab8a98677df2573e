// SPDX-License-Identifier: MIT OR Apache-2.0

//! Preview in the terminal: two pixels a character, one above the other.

use crate::report::Preview;
use rustix::termios::tcgetwinsize;
use std::{env, io::stdout};

/// Colors that the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colors {
    All,
    /// The 216 colors of xterm's cube.
    Cube,
}

impl Colors {
    /// The terminal's colors; `COLORTERM` names the terminals that show all.
    pub fn of_terminal() -> Self {
        match env::var("COLORTERM").as_deref() {
            Ok("truecolor" | "24bit") => Self::All,
            _ => Self::Cube,
        }
    }

    /// Returns the selection of a color as SGR parameters.
    fn select(self, pixel: u32) -> String {
        let [_, red, green, blue] = pixel.to_be_bytes();
        let step = |level: u8| (u32::from(level) * 5 + 127) / 255;
        match self {
            Self::All => format!("2;{red};{green};{blue}"),
            Self::Cube => format!("5;{}", 16 + 36 * step(red) + 6 * step(green) + step(blue)),
        }
    }
}

/// Number of lines of the terminal.
pub fn terminal_lines() -> usize {
    tcgetwinsize(stdout()).map_or(0, |size| size.ws_row.into())
}

/// Draws a preview, a line for two rows of pixels.
pub fn lines(preview: &Preview, colors: Colors) -> Vec<String> {
    let rows: Vec<_> = preview.pixels.chunks_exact(preview.width.max(1)).collect();
    let pairs = rows.as_chunks::<2>().0;
    let line = |[upper, lower]: &[&[u32]; 2]| {
        let pixels = upper.iter().zip(lower.iter());
        let cell = |(upper, lower): (&u32, &u32)| {
            format!("\x1b[38;{};48;{}m\u{2580}", colors.select(*upper), colors.select(*lower))
        };
        format!("  {}\x1b[0m", pixels.map(cell).collect::<String>())
    };
    pairs.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rows_of_pixels_are_a_line() {
        let preview = Preview { width: 2, pixels: vec![0xff0000, 0x00ff00, 0x0000ff, 0xffffff] };
        let all = lines(&preview, Colors::All);
        let expected =
            "  \x1b[38;2;255;0;0;48;2;0;0;255m\u{2580}\x1b[38;2;0;255;0;48;2;255;255;255m\u{2580}\x1b[0m";
        assert_eq!(all, [expected]);
        let cube = lines(&preview, Colors::Cube);
        assert!(cube[0].starts_with("  \x1b[38;5;196;48;5;21m"), "{cube:?}");
        assert!(lines(&Preview { width: 0, pixels: Vec::new() }, Colors::All).is_empty());
    }
}
