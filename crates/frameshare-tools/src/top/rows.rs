// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rows of the table: a stream, then its readers as branches.

use super::{
    sample::{Reader, State, Stream},
    usage::Cost,
};
use crate::stream::short_format;

/// Number of columns.
pub const COLUMNS: usize = 9;
pub const TITLES: [&str; COLUMNS] =
    ["STREAM, READER", "RATE", "AGE", "LAG", "HELD", "LOST", "COPIES", "WAKES", "CPU"];

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// Whether it is a stream's, and not a reader's.
    pub is_stream: bool,
    pub cells: [String; COLUMNS],
}

impl Row {
    pub fn into_cells(self) -> [String; COLUMNS] {
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
            let row = |is_stream: bool, name: String| {
                let mut cells: [String; COLUMNS] = Default::default();
                cells[0] = name;
                Row { is_stream, cells }
            };
            return vec![row(true, stream.name.clone()), row(false, format!("└ {error}"))];
        }
    };
    let [wakeups, cpu] = costs(state.cost);
    let cells = [
        format!("{} {}", stream.name, short_format(&state.snapshot)),
        per_second(state.rate),
        state.age().map(age).unwrap_or_default(),
        count(state.lag()),
        format!("{}/{}", state.held(), state.snapshot.counters.slots),
        count(state.lost()),
        per_second(state.copies),
        wakeups,
        cpu,
    ];
    let mut rows = vec![Row { is_stream: true, cells }];
    rows.extend(readers(state));
    rows
}

fn readers(state: &State) -> impl Iterator<Item = Row> {
    let last = state.readers.len().saturating_sub(1);
    state.readers.iter().enumerate().map(move |(index, reader)| {
        let branch = if index == last { '└' } else { '├' };
        let [wakeups, cpu] = costs(reader.cost);
        let cells = [
            format!("{branch} {}", describe(reader)),
            per_second(reader.rate),
            reader.age.map(age).unwrap_or_default(),
            count(reader.state.lag),
            format!("{}/{}", reader.state.held, reader.state.credit),
            count(reader.state.lost),
            per_second(reader.copies()),
            wakeups,
            cpu,
        ];
        Row { is_stream: false, cells }
    })
}

fn describe(Reader { state, is_copied, .. }: &Reader) -> String {
    let copied = if *is_copied { " copied" } else { "" };
    format!("{} {} {} {}{copied}", state.id, state.name, state.pid, state.policy)
}

/// Returns wake-ups per second and CPU time.
fn costs(cost: Option<Cost>) -> [String; 2] {
    let Some(Cost { cpu, wakeups }) = cost else { return Default::default() };
    let percent = 100.0 * cpu;
    let cpu = if percent < 99.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") };
    [count(wakeups.round() as u64), cpu]
}

/// Returns a rate with at most six characters.
fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => String::new(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 9999.95 => format!("{rate:.1}"),
        Some(rate) => count(rate.round() as u64),
    }
}

/// Returns a number with at most five characters.
fn count(number: u64) -> String {
    match number {
        0..100_000 => number.to_string(),
        100_000..10_000_000 => format!("{}k", number / 1_000),
        10_000_000..10_000_000_000 => format!("{}M", number / 1_000_000),
        _ => format!("{}G", number / 1_000_000_000),
    }
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

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!(
            [0, 99_999, 100_000, 9_999_999, 10_000_000].map(count),
            ["0", "99999", "100k", "9999k", "10M"]
        );
        let rates = [None, Some(0.0), Some(30.04), Some(9999.9), Some(12_345.6)].map(per_second);
        assert_eq!(rates, ["", "0", "30.0", "9999.9", "12346"]);
        let cost = |cpu| costs(Some(Cost { cpu, wakeups: 1234.5 }));
        assert_eq!(cost(0.123), ["1235", "12.3%"]);
        assert_eq!(cost(12.8)[1], "1280%");
    }
}
