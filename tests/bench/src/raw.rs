// SPDX-License-Identifier: MIT OR Apache-2.0

//! Raw figures of runs, a line of JSON each.

use crate::{
    case::{Case, Transport},
    outcome::Outcome,
};
use anyhow::{Context, Result};
use std::{
    collections::HashSet,
    fs::{self, File},
    io::Write,
    path::Path,
};

/// Appends the result of one run.
pub fn write(file: &mut File, outcome: &Outcome) -> Result<()> {
    Ok(writeln!(file, "{}", serde_json::to_string(outcome)?)?)
}

/// Reads several files, and numbers their rounds consecutively. Incomplete cases at the end of a
/// file are left out.
pub fn read(paths: impl Iterator<Item = impl AsRef<Path>>) -> Result<Vec<Outcome>> {
    let mut all = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let outcomes = text.lines().map(serde_json::from_str).collect::<serde_json::Result<Vec<Outcome>>>();
        let outcomes = outcomes.with_context(|| format!("{}: no raw figures", path.display()))?;
        let before = all.iter().map(|outcome: &Outcome| outcome.round).max().unwrap_or_default();
        let counted_on = |outcome: Outcome| Outcome { round: before + outcome.round, ..outcome };
        all.extend(without_the_cut(outcomes).into_iter().map(counted_on));
    }
    Ok(all)
}

fn without_the_cut(mut outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let transports: HashSet<Transport> = outcomes.iter().map(|outcome| outcome.transport).collect();
    let situation = |outcome: &Outcome| -> (usize, Case) { (outcome.round, outcome.case) };
    if let Some(last) = outcomes.last().map(situation) {
        let begin = outcomes.iter().position(|outcome| situation(outcome) == last).unwrap_or_default();
        let is_run = |transport: &&Transport| last.1.rate > 0 || transport.runs_free();
        if outcomes.len() - begin < transports.iter().filter(is_run).count() {
            outcomes.truncate(begin);
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{case::Size, mps::Mps};

    #[test]
    fn incomplete_case_is_left_out() {
        let run = |round, readers, transport| Outcome {
            round,
            transport,
            mps: Mps::default(),
            case: Case { size: Size { width: 320, height: 240 }, readers, rate: 0, by_kernel: false },
            result: Err("stuck".into()),
        };
        let (ours, theirs) = (Transport::Lossless, Transport::Unixfd);
        let whole = vec![run(1, 1, ours), run(1, 1, theirs), run(1, 3, ours), run(1, 3, theirs)];
        assert_eq!(without_the_cut(whole.clone()).len(), 4);
        let cut = [whole, vec![run(2, 1, ours)]].concat();
        assert_eq!(without_the_cut(cut).len(), 4);
        assert!(without_the_cut(Vec::new()).is_empty());
        // PipeWire is not run at full speed.
        let with_pace = |transport| Outcome {
            case: Case { rate: 60, ..run(1, 1, transport).case },
            ..run(1, 1, transport)
        };
        let whole = vec![with_pace(ours), with_pace(Transport::Pipewire), run(2, 1, ours)];
        assert_eq!(without_the_cut(whole).len(), 3);
    }
}
