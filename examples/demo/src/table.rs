// SPDX-License-Identifier: MIT OR Apache-2.0

//! Progress display: on a terminal a table and a preview, redrawn in place, otherwise a line per
//! second. Lines have 80 columns at most.

use crate::{log::Log, report::PREVIEW};
use frameshare::{Policy, observer::ReaderState};
use rustix::termios::tcgetwinsize;
use std::{
    env,
    io::{IsTerminal, Write, stdout},
    time::Instant,
};

/// Maximum length of a line, in characters.
const COLUMNS: usize = 80;
const TITLE: &str = "  reader     process  policy    frames     delay  lag  held  lost";

pub struct Table {
    loops: u32,
    is_terminal: bool,
    begin: Instant,
    /// Lines of the table on the terminal.
    height: usize,
    last_line: Option<Instant>,
}

impl Table {
    pub fn new(loops: u32) -> Self {
        Self { loops, is_terminal: stdout().is_terminal(), begin: Instant::now(), height: 0, last_line: None }
    }

    /// Writes a line above the table.
    pub fn say(&mut self, line: &str) {
        put(&self.erase());
        eprintln!("{line}");
    }

    pub fn draw(&mut self, log: &Log) {
        let heading = self.heading(log);
        if !self.is_terminal {
            if self.last_line.is_none_or(|last| last.elapsed().as_secs() >= 1) {
                self.last_line = Some(Instant::now());
                put(&(heading + "\n"));
            }
            return;
        }
        let mut lines = vec![heading, String::new(), TITLE.to_owned()];
        lines.extend(rows(log));
        let picture = picture(&log.preview);
        let terminal_lines = tcgetwinsize(stdout()).map_or(0, |size| size.ws_row.into());
        // The cursor is below.
        if lines.len() + 1 + picture.len() < terminal_lines {
            lines.push(String::new());
            lines.extend(picture);
        }
        let erase = self.erase();
        self.height = lines.len();
        // Without wrapping: the terminal truncates long lines.
        put(&format!("\x1b[?7l{erase}{}\n\x1b[?7h", lines.join("\n")));
    }

    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.height) {
            0 => String::new(),
            height => format!("\x1b[{height}A\x1b[J"),
        }
    }

    fn heading(&self, log: &Log) -> String {
        let time = self.begin.elapsed().as_secs_f64();
        let Some(now) = log.snapshot.as_ref().filter(|now| now.counters.published > 0) else {
            return format!("{time:5.1} s  waiting for the readers");
        };
        let (counters, max_slots) = (&now.counters, now.limits.max_slots);
        let frames = counters.published.max(log.exported.0);
        let copied: u64 = counters.copies.iter().map(|copies| copies.count).sum();
        let used = counters.slots.saturating_sub(counters.free_slots);
        let progress =
            format!("loop {} of {}: {frames} frames, {copied} copied", log.current_loop, self.loops);
        shortened(&format!("{time:5.1} s  {progress}, {used} of {max_slots} slots in use"))
    }
}

/// Returns a line for each reader of the demo, and for each other one that has joined.
fn rows(log: &Log) -> Vec<String> {
    let own = log.readers().map(|(name, policy, reader)| {
        let state = log.states().iter().find(|state| state.pid == reader.pid);
        let begin = begin_of(name, reader.pid, policy, reader.frames.len() as u64);
        if let Some(failure) = &reader.failure {
            return shortened(&format!("{begin}  {failure}"));
        }
        // A reader that has ended holds no frames.
        let (lag, held) = match state {
            Some(state) if reader.copies.is_none() => (state.lag, state.held),
            _ => (0, 0),
        };
        let delay =
            reader.frames.last().map_or("-".into(), |frame| format!("{:.2} ms", frame.delay as f64 / 1e6));
        let lost: u64 = reader.frames.iter().map(|frame| frame.lost_before).sum();
        format!("{begin}{delay:>10}{lag:>5}{held:>6}{lost:>6}")
    });
    let is_guest = |state: &&ReaderState| log.readers.iter().all(|own| own.pid != state.pid);
    let guests = log.states().iter().filter(is_guest).map(|guest| {
        let taken = guest.sent.saturating_sub(guest.lost + u64::from(guest.queued));
        let begin = begin_of("guest", guest.pid, guest.policy, taken);
        format!("{begin}{:>10}{:>5}{:>6}{:>6}", "-", guest.lag, guest.held, guest.lost)
    });
    own.chain(guests).collect()
}

fn begin_of(name: &str, pid: u32, policy: Policy, frames: u64) -> String {
    format!("  {name:<10}{pid:>8}  {:<9}{frames:>7}", policy.to_string())
}

/// Write errors are ignored: the demo does not depend on its display.
fn put(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns a line of [`COLUMNS`] at most.
fn shortened(line: &str) -> String {
    line.chars().take(COLUMNS).collect()
}

/// Draws a preview: a character shows two pixels, one above the other.
fn picture(pixels: &[u32]) -> Vec<String> {
    // `COLORTERM` names terminals with 24 bits of color. Others have the 216 of xterm's cube.
    let has_all = matches!(env::var("COLORTERM").as_deref(), Ok("truecolor" | "24bit"));
    let color = |pixel: u32| {
        let [_, red, green, blue] = pixel.to_be_bytes();
        let step = |level: u8| (u32::from(level) * 5 + 127) / 255;
        match has_all {
            true => format!("2;{red};{green};{blue}"),
            false => format!("5;{}", 16 + 36 * step(red) + 6 * step(green) + step(blue)),
        }
    };
    let cell =
        |(upper, lower): (&u32, &u32)| format!("\x1b[38;{};48;{}m\u{2580}", color(*upper), color(*lower));
    let line = |rows: &[u32]| {
        let (upper, lower) = rows.split_at(PREVIEW.0);
        format!("  {}\x1b[0m", upper.iter().zip(lower).map(cell).collect::<String>())
    };
    pixels.chunks_exact(2 * PREVIEW.0).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rows_of_pixels_are_a_line() {
        let pixels = [[0xff0000; PREVIEW.0], [0x0000ff; PREVIEW.0]].concat();
        let lines = picture(&pixels);
        assert_eq!((lines.len(), lines[0].matches('\u{2580}').count()), (1, PREVIEW.0), "{lines:?}");
        assert!(lines[0].contains("38;2;255;0;0;48;2;0;0;255m") || lines[0].contains("38;5;196;48;5;21m"));
    }
}
