// SPDX-License-Identifier: MIT OR Apache-2.0

//! Table of the figures of both ways.

use super::{Job, Outcome};
use crate::slow::spread;
use std::fmt::Write;

/// One figure of an outcome.
type Figure = (&'static str, fn(&Outcome) -> Option<f64>);

const FIGURES: [Figure; 4] = [
    ("CPU of all processes a frame, µs", |outcome| Some(cpu(outcome))),
    ("memory of all processes (PSS), MB", |outcome| Some(memory(outcome))),
    ("GPU memory of all processes, MB", |outcome| outcome.gpu_memory.map(|bytes| bytes as f64 / 1e6)),
    ("frames/s of the slowest reader", |outcome| Some(rate(outcome))),
];

/// By frames and not by seconds: decoders that share too few cores fall behind the video's rate.
fn cpu(outcome: &Outcome) -> f64 {
    let cpu = outcome.processes.iter().map(|process| process.cpu).sum::<u64>() as f64 / 1e3;
    let readers = outcome.processes.iter().filter(|process| process.job != Job::Share);
    let frames = readers.map(|reader| reader.frames).sum::<u64>() as f64 / outcome.readers as f64;
    cpu / frames
}

fn memory(outcome: &Outcome) -> f64 {
    outcome.processes.iter().map(|process| process.pss).sum::<u64>() as f64 / 1e6
}

fn rate(outcome: &Outcome) -> f64 {
    let readers = outcome.processes.iter().filter(|process| process.job != Job::Share);
    readers.map(|reader| reader.frames as f64 / outcome.seconds).fold(f64::INFINITY, f64::min)
}

/// The table in Markdown: both ways, and the ratios of the same rounds.
pub fn markdown(outcomes: &[Outcome], readers: &[usize]) -> String {
    let mut text = String::from("| | readers | shared | each decodes | shared to each |\n|");
    text.push_str(&" --- |".repeat(5));
    text.push('\n');
    for (title, figure) in FIGURES {
        for &count in readers {
            let of = |shares| -> Vec<f64> {
                let runs =
                    outcomes.iter().filter(|outcome| (outcome.readers, outcome.shares) == (count, shares));
                runs.filter_map(figure).collect()
            };
            let (shared, each) = (of(true), of(false));
            if shared.is_empty() {
                continue;
            }
            let ratios: Vec<_> = shared.iter().zip(&each).map(|(shared, each)| shared / each).collect();
            let ratio = ratio(ratios);
            let _ =
                writeln!(text, "| {title} | {count} | {} | {} | {ratio} |", spread(&shared), spread(&each));
        }
    }
    for &count in readers {
        let decoders = |shares| {
            let outcome = outcomes.iter().find(|one| (one.readers, one.shares) == (count, shares));
            outcome.map_or(0, |one| one.processes.iter().filter(|one| one.job != Job::Read).count())
        };
        let _ = writeln!(text, "| decoders | {count} | {} | {} | |", decoders(true), decoders(false));
    }
    text
}

fn ratio(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
    let last = ratios.len().saturating_sub(1);
    format!("{:.2} ({:.2} to {:.2})", at(ratios.len() / 2), at(0), at(last))
}
