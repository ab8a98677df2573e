// SPDX-License-Identifier: MIT OR Apache-2.0

//! Progress display: on a terminal a table and a preview, redrawn in place, otherwise a few lines
//! per second. Lines have 80 columns at most.

use super::{
    log::{Log, ReaderLog},
    preview::{self, Colors},
    process::Process,
};
use crate::report::Reader;
use std::{
    collections::{HashMap, VecDeque},
    io::{IsTerminal, Write, stdout},
    time::{Duration, Instant},
};

/// Minimum time between two drawings on a terminal.
const REFRESH: Duration = Duration::from_millis(50);
/// Time window of the rates.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum length of a line, in characters.
const COLUMNS: usize = 80;

pub struct Table {
    loops: u32,
    is_terminal: bool,
    colors: Colors,
    begin: Instant,
    /// Lines of the table on the terminal.
    height: usize,
    /// Time of the last drawing on the terminal.
    drawn: Option<Instant>,
    last_line: Option<Instant>,
    rates: HashMap<u32, Rate>,
}

impl Table {
    pub fn new(loops: u32) -> Self {
        Self {
            loops,
            is_terminal: stdout().is_terminal(),
            colors: Colors::of_terminal(),
            begin: Instant::now(),
            height: 0,
            drawn: None,
            last_line: None,
            rates: HashMap::new(),
        }
    }

    /// Writes a line above the table.
    pub fn say(&mut self, line: &str) {
        let mut text = String::new();
        self.erase(&mut text);
        put(&text);
        eprintln!("{line}");
    }

    /// Draws the table, unless it was drawn just now.
    pub fn draw(&mut self, log: &Log) {
        if !self.is_terminal || self.drawn.is_none_or(|drawn| drawn.elapsed() >= REFRESH) {
            self.redraw(log);
        }
    }

    /// Draws the table.
    pub fn redraw(&mut self, log: &Log) {
        let rows = self.rows(log);
        if self.is_terminal {
            self.drawn = Some(Instant::now());
            let mut text = String::from("\x1b[?7l"); // no wrapping: truncate long lines
            self.erase(&mut text);
            let mut lines: Vec<_> = fold(&self.heading(log)).into_iter().chain(table(&rows)).collect();
            let preview = log.preview.iter().flat_map(|preview| preview::lines(preview, self.colors));
            let preview: Vec<_> = caption(log).into_iter().chain(preview).collect();
            // The cursor is below.
            if lines.len() + preview.len() < preview::terminal_lines() {
                lines.extend(preview);
            }
            for line in lines {
                text += &line;
                text.push('\n');
                self.height += 1;
            }
            put(&(text + "\x1b[?7h"));
        } else if self.last_line.is_none_or(|last| last.elapsed() >= WINDOW) && log.exporter.published > 0 {
            self.last_line = Some(Instant::now());
            let parts: Vec<_> = self.heading(log).into_iter().chain(rows.iter().map(Row::inline)).collect();
            put(&(fold(&parts).join("\n") + "\n"));
        }
    }

    fn erase(&mut self, text: &mut String) {
        if self.height > 0 {
            text.push_str(&format!("\x1b[{}A\x1b[J", self.height));
            self.height = 0;
        }
    }

    fn heading(&self, log: &Log) -> Vec<String> {
        let now = &log.exporter;
        let (time, used) = (self.begin.elapsed().as_secs_f64(), now.slots.saturating_sub(now.free_slots));
        match now.published {
            0 => vec![format!("{time:5.1} s  waiting for the readers")],
            frames => vec![
                format!(
                    "{time:5.1} s  loop {} of {}: {frames} frames published",
                    now.current_loop, self.loops
                ),
                format!("{} copied", now.copies),
                format!("{used} slots of {} in use", now.max_slots),
            ],
        }
    }

    fn rows(&mut self, log: &Log) -> Vec<Row> {
        let mut rows = Vec::new();
        for (process, _, reader) in log.processes() {
            rows.push(Row {
                rate: self.rate(reader.pid, reader.frames.len() as u64),
                ..Row::of(process, reader)
            });
        }
        let is_guest = |reader: &&Reader| log.readers.iter().all(|own| own.pid != reader.pid);
        for guest in log.exporter.readers.iter().filter(is_guest) {
            let taken = guest.sent.saturating_sub(guest.lost + u64::from(guest.queued));
            rows.push(Row { rate: self.rate(guest.pid, taken), ..Row::of_guest(guest, taken) });
        }
        rows
    }

    fn rate(&mut self, pid: u32, frames: u64) -> f64 {
        self.rates.entry(pid).or_default().at(Instant::now(), frames)
    }
}

/// Write errors are ignored: the demo does not depend on its display.
fn put(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn table(rows: &[Row]) -> impl Iterator<Item = String> {
    let title = format!(
        "\n  {:<10}{:>8}  {:<9}{:>7}{:>8}{:>10}{:>5}{:>6}{:>6}",
        "reader", "process", "policy", "frames", "rate", "delay", "lag", "held", "lost"
    );
    // The empty line counts as a line of the table.
    title.lines().map(str::to_owned).collect::<Vec<_>>().into_iter().chain(rows.iter().map(Row::line))
}

/// Returns the lines above the preview: the motion between the last two frames of its reader.
fn caption(log: &Log) -> [String; 2] {
    let reader = log.processes().find(|(process, ..)| *process == Process::Motion).map(|(.., reader)| reader);
    let motion = reader.and_then(|reader| reader.frames.last()?.motion);
    [String::new(), motion.map_or_else(String::new, |motion| format!("  motion {}", bar(motion)))]
}

struct Row {
    name: String,
    pid: u32,
    policy: String,
    frames: u64,
    rate: f64,
    delay: Option<u64>,
    lag: u64,
    held: u32,
    lost: u64,
    failure: Option<String>,
}

impl Row {
    fn of(process: impl std::fmt::Display, reader: &ReaderLog) -> Self {
        let last = reader.frames.last();
        let lost = reader.frames.iter().map(|frame| frame.lost_before).sum();
        let own = Self {
            name: process.to_string(),
            pid: reader.pid,
            policy: String::new(),
            frames: reader.frames.len() as u64,
            rate: 0.0,
            delay: last.map(|frame| frame.delay),
            lag: 0,
            held: 0,
            lost,
            failure: reader.failure.clone(),
        };
        match &reader.now {
            None => own,
            Some(now) => Self { policy: now.policy.clone(), lag: now.lag, held: now.held, ..own },
        }
    }

    fn of_guest(guest: &Reader, frames: u64) -> Self {
        Self {
            name: "guest".into(),
            pid: guest.pid,
            policy: guest.policy.clone(),
            frames,
            rate: 0.0,
            delay: None,
            lag: guest.lag,
            held: guest.held,
            lost: guest.lost,
            failure: None,
        }
    }

    fn line(&self) -> String {
        let Self { name, pid, policy, frames, rate, lag, held, lost, .. } = self;
        let begin = format!("  {name:<10}{pid:>8}  {policy:<9}{frames:>7}");
        let delay = self.delay.map_or("-".into(), milliseconds);
        match &self.failure {
            Some(failure) => shortened(&format!("{begin}  {failure}")),
            None => format!("{begin}{rate:>6.1}/s{delay:>10}{lag:>5}{held:>6}{lost:>6}"),
        }
    }

    fn inline(&self) -> String {
        let Self { name, frames, rate, lag, held, lost, .. } = self;
        match &self.failure {
            Some(failure) => format!("{name} {frames} {failure}"),
            None => format!("{name} {frames} {rate:.1}/s lag {lag} held {held} lost {lost}"),
        }
    }
}

/// Joins parts of a text with commas, in lines of [`COLUMNS`] at most.
pub fn fold(parts: &[String]) -> Vec<String> {
    let mut lines = Vec::<String>::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + part.chars().count() <= COLUMNS => {
                line.push_str(", ");
                line.push_str(part);
            }
            Some(line) => {
                line.push(',');
                lines.push(shortened(&format!("         {part}")));
            }
            None => lines.push(shortened(part)),
        }
    }
    lines
}

/// Returns a line of [`COLUMNS`] at most, with room for a comma.
fn shortened(line: &str) -> String {
    line.chars().take(COLUMNS - 1).collect()
}

/// Formats a time in ns.
pub fn milliseconds(nanoseconds: u64) -> String {
    format!("{:.2} ms", nanoseconds as f64 / 1e6)
}

/// Returns a bar for a fraction. Images mostly differ by little: a tenth fills the bar, and the
/// square root makes small values visible.
fn bar(fraction: f64) -> String {
    const LENGTH: usize = 16;
    let full = ((fraction * 10.0).clamp(0.0, 1.0).sqrt() * LENGTH as f64).round() as usize;
    format!("[{}{}] {:4.1} %", "#".repeat(full), " ".repeat(LENGTH - full), fraction * 100.0)
}

/// Growth rate of a counter.
#[derive(Default)]
struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    fn at(&mut self, now: Instant, count: u64) -> f64 {
        self.0.push_back((now, count));
        while self.0.get(1).is_some_and(|(second, _)| now - *second >= WINDOW) {
            self.0.pop_front();
        }
        let (begin, before) = self.0[0];
        let time = (now - begin).as_secs_f64();
        if time > 0.0 { count.saturating_sub(before) as f64 / time } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_last_second() {
        let begin = Instant::now();
        let at = |tenths: u64| begin + Duration::from_millis(tenths * 100);
        let mut rate = Rate::default();
        assert_eq!(rate.at(at(0), 0), 0.0);
        assert_eq!(rate.at(at(5), 10), 20.0);
        assert_eq!(rate.at(at(10), 20), 20.0);
        assert!((rate.at(at(20), 120) - 100.0).abs() < 1e-6);
        assert!(rate.at(at(60), 120) < 21.0);
        assert_eq!(rate.at(at(70), 120), 0.0);
    }

    #[test]
    fn folded_lines_have_all_parts_and_80_columns() {
        let parts: Vec<_> = (0..9).map(|part| format!("part {part} {}", "x".repeat(part * 4))).collect();
        let lines = fold(&parts);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= COLUMNS), "{lines:#?}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines.join(" ")), words(&parts.join(", ")));
        assert_eq!(fold(&["a".repeat(200)])[0].len(), COLUMNS - 1);
        assert!(fold(&[]).is_empty());
    }

    #[test]
    fn bars_have_equal_length() {
        let lengths = [0.0, 0.01, 0.5, 1.0, 7.0].map(|fraction| bar(fraction).find(']'));
        assert!(lengths.iter().all(|length| *length == lengths[0]));
    }
}
