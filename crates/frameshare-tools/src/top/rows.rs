// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rows of the table: a stream, then its readers as branches.

use super::sample::{State, Stream};
use crate::stream::short_format;
use frameshare::{
    MemoryKind,
    observer::{ReaderState, Snapshot},
};

pub const TITLES: [&str; 6] = ["STREAM, READER", "FRAMES/S", "AGE", "LAG", "HELD", "LOST"];

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// Whether it is a stream's, and not a reader's.
    pub is_stream: bool,
    pub cells: [String; 6],
}

impl Row {
    pub fn into_cells(self) -> [String; 6] {
        self.cells
    }
}

/// Returns the rows of all streams.
pub fn of(streams: &[Stream]) -> Vec<Row> {
    streams.iter().flat_map(rows_of).collect()
}

fn rows_of(stream: &Stream) -> Vec<Row> {
    let state = match &stream.state {
        Ok(state) => state,
        Err(error) => {
            return vec![
                row(true, stream.name.clone(), None, Default::default()),
                row(false, format!("└ {error}"), None, Default::default()),
            ];
        }
    };
    let name = format!("{} {}", stream.name, short_format(&state.snapshot));
    let counters = &state.snapshot.counters;
    let held = format!("{}/{}", state.held(), counters.slots);
    let rest =
        [state.age().map(age).unwrap_or_default(), state.lag().to_string(), held, state.lost().to_string()];
    let mut rows = vec![row(true, name, state.rate, rest)];
    rows.extend(readers(state));
    rows
}

fn readers(state: &State) -> impl Iterator<Item = Row> {
    let last = state.readers.len().saturating_sub(1);
    state.readers.iter().enumerate().map(move |(index, (reader, rate))| {
        let branch = if index == last { '└' } else { '├' };
        let rest = [
            String::new(),
            reader.lag.to_string(),
            format!("{}/{}", reader.held, reader.credit),
            reader.lost.to_string(),
        ];
        row(false, format!("{branch} {}", describe(reader, &state.snapshot)), *rate, rest)
    })
}

fn describe(reader: &ReaderState, snapshot: &Snapshot) -> String {
    let copied = match reader.memory == MemoryKind::Host && snapshot.memory != MemoryKind::Host {
        true => " copied",
        false => "",
    };
    format!("{} {} {} {}{copied}", reader.id, reader.name, reader.pid, reader.policy)
}

fn row(is_stream: bool, name: String, rate: Option<f64>, [age, lag, held, lost]: [String; 4]) -> Row {
    let rate = rate.map(|rate| format!("{rate:.1}")).unwrap_or_default();
    Row { is_stream, cells: [name, rate, age, lag, held, lost] }
}

/// Returns an age with at most four digits.
fn age(ns: u64) -> String {
    match ns / 1_000_000 {
        ms @ 0..10_000 => format!("{ms} ms"),
        ms @ 10_000..10_000_000 => format!("{} s", ms / 1000),
        ms => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_has_at_most_four_digits() {
        let ages = [0, 9_999_999_999, 10_000_000_000, 9_999_000_000_000, 36_000_000_000_000].map(age);
        assert_eq!(ages, ["0 ms", "9999 ms", "10 s", "9999 s", "10 h"]);
    }
}
