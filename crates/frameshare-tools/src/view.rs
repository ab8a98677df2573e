// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare view`: the newest frame in the terminal, as an image where the terminal has
//! Kitty's protocol, otherwise as blocks of two pixels, or as characters without colors.

use crate::{
    error::Error,
    frames::newest,
    output::{is_colored, print_bytes, print_json},
    pixels::Image,
    snapshot::{describe, png},
};
use frameshare::reader::Frame;
use rustix::termios::tcgetwinsize;
use std::{
    env, io,
    io::{IsTerminal, Write},
    time::Duration,
};

/// Size of a terminal that does not report it.
const DEFAULT_SIZE: (usize, usize) = (80, 24);
/// Maximum height with a given width: the size and the shape of pixels are the exporter's.
const MAX_ROWS: usize = 1000;
/// Characters from dark to bright.
const RAMP: &[u8] = b" .:-=+*#%@";
/// Maximum characters in an escape sequence of Kitty's protocol.
const CHUNK: usize = 4096;

/// The kind of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Display {
    /// Kitty's graphics protocol.
    Image,
    /// Half blocks with 24 bits a color.
    Blocks,
    /// Half blocks with 256 colors.
    Palette,
    /// Characters alone.
    Characters,
}

/// Shows the newest frame.
pub fn view(stream: &str, columns: Option<u16>, timeout: Duration, json: bool) -> Result<(), Error> {
    let frame = newest(stream, timeout)?;
    let image = Image::of_frame(&frame)?;
    let size = tcgetwinsize(io::stdout()).ok().map(|size| (size.ws_col.into(), size.ws_row.into()));
    let size = size.filter(|size: &(usize, usize)| size.0 > 0 && size.1 > 0).unwrap_or(DEFAULT_SIZE);
    let cells = match columns {
        // As high as the image is.
        Some(columns) => fit(&frame, &image, usize::from(columns).max(1), MAX_ROWS),
        // With a line for the prompt.
        None => fit(&frame, &image, size.0, size.1.saturating_sub(1).max(1)),
    };
    if json {
        let small = image.resized(cells.0, 2 * cells.1);
        let mut value = describe(&frame);
        value["rows"] = small.rgb.chunks(3 * small.width).map(hex).collect();
        return print_json(&value);
    }
    let display =
        display(io::stdout().is_terminal(), is_colored(), |name| env::var(name).unwrap_or_default());
    let mut text = Vec::new();
    // Writing into memory does not fail.
    let _ = match display {
        Display::Image => write_kitty(&mut text, &png(&image)?, cells),
        Display::Characters => write_characters(&mut text, &image.resized(cells.0, cells.1)),
        Display::Blocks | Display::Palette => {
            write_blocks(&mut text, &image.resized(cells.0, 2 * cells.1), display)
        }
    };
    print_bytes(&text)
}

/// Selects the kind of output. tmux and screen do not forward images.
fn display(is_terminal: bool, is_colored: bool, variable: impl Fn(&str) -> String) -> Display {
    let (term, program) = (variable("TERM"), variable("TERM_PROGRAM"));
    let has_kitty = ["kitty", "ghostty"].iter().any(|name| term.contains(name))
        || ["ghostty", "WezTerm"].contains(&program.as_str());
    let is_nested = !variable("TMUX").is_empty() || term.starts_with("screen");
    match variable("COLORTERM").as_str() {
        _ if !is_terminal || !is_colored || term == "dumb" => Display::Characters,
        _ if has_kitty && !is_nested => Display::Image,
        "truecolor" | "24bit" => Display::Blocks,
        _ => Display::Palette,
    }
}

/// Returns the columns and rows of characters of the image: a character is twice as high as wide.
fn fit(frame: &Frame, image: &Image, columns: usize, rows: usize) -> (usize, usize) {
    let aspect = frame.format().map_or(1.0, |format| format.pixel_aspect_ratio.as_f64());
    let width = image.width as f64 * if aspect > 0.0 { aspect } else { 1.0 };
    let height = image.height as f64 / 2.0;
    let scale = (columns as f64 / width).min(rows as f64 / height);
    let length = |length: f64, limit: usize| ((length * scale).round() as usize).clamp(1, limit);
    (length(width, columns), length(height, rows))
}

fn hex(row: &[u8]) -> String {
    row.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_kitty(out: &mut impl Write, png: &[u8], (columns, rows): (usize, usize)) -> io::Result<()> {
    let text = base64(png);
    let mut chunks = text.as_bytes().chunks(CHUNK).peekable();
    let mut keys = format!("a=T,f=100,q=2,c={columns},r={rows},");
    while let Some(chunk) = chunks.next() {
        write!(out, "\x1b_G{keys}m={};", u8::from(chunks.peek().is_some()))?;
        out.write_all(chunk)?;
        out.write_all(b"\x1b\\")?;
        keys.clear();
    }
    out.write_all(b"\n")
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word =
            (0..3).fold(0_usize, |word, at| word << 8 | usize::from(group.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            match digit <= group.len() {
                true => text.push(DIGITS[word >> (18 - 6 * digit) & 63].into()),
                false => text.push('='),
            }
        }
    }
    text
}

fn write_blocks(out: &mut impl Write, image: &Image, display: Display) -> io::Result<()> {
    let color = |[r, g, b]: [u8; 3]| match display {
        Display::Blocks => format!("2;{r};{g};{b}"),
        _ => format!("5;{}", nearest([r, g, b])),
    };
    for y in (0..image.height).step_by(2) {
        for x in 0..image.width {
            let (upper, lower) = (image.pixel(x, y), image.pixel(x, (y + 1).min(image.height - 1)));
            write!(out, "\x1b[38;{};48;{}m\u{2580}", color(upper), color(lower))?;
        }
        out.write_all(b"\x1b[0m\n")?;
    }
    Ok(())
}

/// Returns the nearest color in the cube of the 256 colors.
fn nearest(rgb: [u8; 3]) -> u16 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let index = |value: u8| {
        let distances = LEVELS.iter().map(|level| level.abs_diff(value)).enumerate();
        distances.min_by_key(|(_, distance)| *distance).map_or(0, |(index, _)| index as u16)
    };
    let [r, g, b] = rgb.map(index);
    16 + 36 * r + 6 * g + b
}

fn write_characters(out: &mut impl Write, image: &Image) -> io::Result<()> {
    for y in 0..image.height {
        let characters = (0..image.width).map(|x| {
            let [r, g, b] = image.pixel(x, y).map(u32::from);
            let luma = (299 * r + 587 * g + 114 * b) / 1000;
            RAMP[luma as usize * RAMP.len() / 256]
        });
        out.write_all(&characters.collect::<Vec<_>>())?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Display {
        let find = |name: &str| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
        display(true, true, |name| find(name).unwrap_or_default().to_owned())
    }

    #[test]
    fn output_suits_terminal() {
        assert_eq!(with(&[("TERM", "xterm-kitty"), ("COLORTERM", "truecolor")]), Display::Image);
        assert_eq!(with(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "WezTerm")]), Display::Image);
        assert_eq!(
            with(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/x"), ("COLORTERM", "24bit")]),
            Display::Blocks
        );
        assert_eq!(with(&[("TERM", "xterm-256color")]), Display::Palette);
        assert_eq!(with(&[("TERM", "dumb")]), Display::Characters);
        assert_eq!(display(false, true, |_| "xterm-kitty".into()), Display::Characters);
        assert_eq!(display(true, false, |_| "xterm-kitty".into()), Display::Characters);
    }

    #[test]
    fn base64_has_padding() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn images_are_sent_in_chunks() {
        let mut out = Vec::new();
        write_kitty(&mut out, &[7; 3 * CHUNK], (80, 20)).unwrap();
        let text = String::from_utf8(out).unwrap();
        let chunks: Vec<_> = text.trim_end().split("\x1b_G").skip(1).collect();
        assert_eq!(chunks.len(), 4);
        assert!(chunks[0].starts_with("a=T,f=100,q=2,c=80,r=20,m=1;Bwc"), "{}", &chunks[0][..40]);
        assert!(chunks[3].starts_with("m=0;") && chunks.iter().all(|chunk| chunk.ends_with("\x1b\\")));
    }

    #[test]
    fn blocks_hold_two_rows() {
        let image = Image { width: 1, height: 3, rgb: vec![255, 0, 0, 0, 0, 255, 1, 2, 3] };
        let text = |display| {
            let mut out = Vec::new();
            write_blocks(&mut out, &image, display).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(Display::Blocks),
            "\x1b[38;2;255;0;0;48;2;0;0;255m\u{2580}\x1b[0m\n\x1b[38;2;1;2;3;48;2;1;2;3m\u{2580}\x1b[0m\n"
        );
        assert!(text(Display::Palette).starts_with("\x1b[38;5;196;48;5;21m"));
    }
}
