// SPDX-License-Identifier: MIT OR Apache-2.0

//! Final summary: comparison of the frames read with the decoded frames.

use crate::{
    log::{Log, RECORDER, Reader},
    report::Frame,
};
use anyhow::Result;
use frameshare::Policy;
use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

/// Prints the summary; returns whether there was no problem.
pub fn print(log: &Log, recording: &Path, played_back: Option<Result<u64>>) -> bool {
    let made = log.published();
    let (published, copies) = log.exported;
    let images = made.values().collect::<HashSet<_>>().len();
    println!("\n{published} frames published, {images} different images,");
    match copies {
        0 => println!("all decoded straight into shared memory"),
        _ => println!("{copies} copied into shared memory"),
    }
    let mut problems = Vec::new();
    let mut say = |who: &str, line: String, found: Vec<String>| {
        let mark = if found.is_empty() { "" } else { ": WRONG" };
        println!("  {who:<10}{}{mark}", line.replace('\n', "\n            "));
        problems.extend(found.into_iter().map(|problem| format!("{who}: {problem}")));
    };
    for (name, policy, reader) in log.readers() {
        let (line, found) = of_reader(reader, policy, &made, published);
        say(name, line, found);
    }
    let recorded = log.readers[RECORDER].frames.len() as u64;
    let (line, found) = match played_back {
        None => ("not played back".to_owned(), None),
        Some(Ok(frames)) => {
            let found = format!("{recorded} frames were recorded, but {frames} play back");
            (format!("{frames} frames play back"), Some(found).filter(|_| frames != recorded))
        }
        Some(Err(error)) => {
            ("not played back".to_owned(), Some(format!("it was not played back: {error:#}")))
        }
    };
    say("recording", format!("{}: {line}", recording.display()), found.into_iter().collect());

    for problem in problems.iter().take(5) {
        println!("  {problem}");
    }
    match problems.len() {
        0 => println!("ok: the readers received exactly the decoded frames"),
        count => println!("FAILED: {count} problems"),
    }
    problems.is_empty()
}

/// Returns the summary of a reader and its problems.
fn of_reader(
    reader: &Reader,
    policy: Policy,
    made: &BTreeMap<u64, u64>,
    published: u64,
) -> (String, Vec<String>) {
    let mut proof = compare(made, published, &reader.frames, policy);
    if let Some(failure) = &reader.failure {
        proof.problems.insert(0, format!("it {failure}"));
    } else if reader.copies.is_none() {
        proof.problems.push("it did not finish".to_owned());
    }
    let copies = match reader.copies {
        None => "not finished".to_owned(),
        Some(0) => "all read in place".to_owned(),
        Some(copies) => format!("{copies} copied for an element that keeps them"),
    };
    let line = format!(
        "{:<9} {} frames read, {} compared, {} differ, {} lost\n{copies}",
        policy.to_string(),
        reader.frames.len(),
        proof.compared,
        proof.differing,
        proof.lost
    );
    (line, proof.problems)
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Proof {
    /// Frames that the reader received and the decoder decoded.
    compared: u64,
    /// Those with different checksums.
    differing: u64,
    /// Frames that were reported to the reader as lost.
    lost: u64,
    /// All problems, in order of detection.
    problems: Vec<String>,
}

/// Compares a reader's frames, in order, with the decoded frames: by checksum and publication
/// number, 1 to `published`.
fn compare(made: &BTreeMap<u64, u64>, published: u64, frames: &[Frame], policy: Policy) -> Proof {
    let mut proof = Proof::default();
    let mut last = 0;
    for frame in frames {
        let Frame { sequence, lost_before, sum, .. } = *frame;
        match made.get(&sequence) {
            Some(right) => {
                proof.compared += 1;
                if *right != sum {
                    proof.differing += 1;
                    proof.problems.push(format!("frame {sequence} differs from the decoded frame"));
                }
            }
            None => proof.problems.push(format!("frame {sequence} was never decoded")),
        }
        match sequence.checked_sub(last + 1) {
            None => proof.problems.push(format!("frame {sequence} came after frame {last}")),
            Some(missing) if missing != lost_before => proof.problems.push(format!(
                "{missing} frames are missing before frame {sequence}, {lost_before} were counted"
            )),
            Some(_) => {}
        }
        proof.lost += lost_before;
        last = sequence;
    }
    let known = made.range(1..=published.max(1)).count() as u64;
    if known != published || published == 0 {
        proof.problems.push(format!("of {published} published frames, {known} were decoded"));
    }
    // A `latest` reader also gets the last frame: it loses older frames only.
    if last < published {
        proof.problems.push(format!("the last frame was {last}, expected {published}"));
    }
    if policy == Policy::Lossless && proof.lost > 0 {
        proof.problems.push(format!("{} frames were lost", proof.lost));
    }
    proof
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{log::EXPORTER, report::Report};

    /// Returns the log of a successful demo of three frames.
    fn log() -> Log {
        let mut log = Log::default();
        for sequence in 1..=3 {
            log.note(EXPORTER, Report::Decoded { sequence, sum: sequence * 7 });
        }
        for process in 0..3 {
            for sequence in 1..=3 {
                let frame = Frame { sequence, lost_before: 0, sum: sequence * 7, delay: 1 };
                log.note(process, Report::Read(frame));
            }
            log.note(process, Report::Finished { copies: 0 });
        }
        log.note(EXPORTER, Report::Exported { published: 3, copies: 0 });
        log
    }

    #[test]
    fn summary_is_good_only_without_any_problem() {
        let print = |log: &Log, played_back| print(log, Path::new("recording.mkv"), played_back);
        let is_good = |change: &dyn Fn(&mut Log)| {
            let mut log = log();
            change(&mut log);
            print(&log, Some(Ok(3)))
        };
        assert!(is_good(&|_| {}));
        let unpublished = Report::Decoded { sequence: 4, sum: 5 };
        assert!(is_good(&|log| log.note(EXPORTER, unpublished.clone())));
        for reader in 0..3 {
            assert!(!is_good(&|log| log.readers[reader].frames[1].sum += 1));
            assert!(!is_good(&|log| log.readers[reader].frames.truncate(2)), "a frame is missing");
            assert!(!is_good(&|log| log.readers[reader].copies = None), "it did not finish");
            assert!(!is_good(&|log| log.readers[reader].failure = Some("failed".into())));
        }
        assert!(!is_good(&|log| log.exported.0 = 4), "a frame without a reader");
        assert!(!is_good(&|log| *log = Log::default()));
        assert!(print(&log(), None), "the user interrupted the demo");
        assert!(!print(&log(), Some(Ok(2))));
        assert!(!print(&log(), Some(Err(anyhow::Error::msg("no such file")))));
    }

    fn made(count: u64) -> BTreeMap<u64, u64> {
        (1..=count).map(|sequence| (sequence, sequence * 1000)).collect()
    }

    fn frame(sequence: u64, lost_before: u64) -> Frame {
        Frame { sequence, lost_before, sum: sequence * 1000, delay: 0 }
    }

    fn all() -> Vec<Frame> {
        (1..=10).map(|sequence| frame(sequence, 0)).collect()
    }

    /// Returns the first problem of a lossless reader of ten frames after `change`.
    fn problem(change: impl FnOnce(&mut Vec<Frame>)) -> String {
        let mut frames = all();
        change(&mut frames);
        compare(&made(10), 10, &frames, Policy::Lossless).problems.into_iter().next().unwrap_or_default()
    }

    #[test]
    fn latest_reader_may_lose_counted_frames() {
        let proof = compare(&made(10), 10, &all(), Policy::Lossless);
        assert_eq!(proof, Proof { compared: 10, ..Proof::default() });
        let frames = [frame(2, 1), frame(3, 0), frame(7, 3), frame(10, 2)];
        let proof = compare(&made(10), 10, &frames, Policy::Latest);
        assert_eq!(proof, Proof { compared: 4, lost: 6, ..Proof::default() });
        let lossless = compare(&made(10), 10, &frames, Policy::Lossless);
        assert_eq!(lossless.problems, ["6 frames were lost"]);
    }

    #[test]
    fn wrong_frame_or_order_is_detected() {
        assert_eq!(problem(|frames| frames[4].sum ^= 1), "frame 5 differs from the decoded frame");
        for lost in [1, 5] {
            let found = problem(|frames| frames.retain(|frame| frame.sequence != lost));
            assert_eq!(found, format!("1 frames are missing before frame {}, 0 were counted", lost + 1));
        }
        assert_eq!(problem(|frames| frames.truncate(9)), "the last frame was 9, expected 10");
        assert_eq!(problem(Vec::clear), "the last frame was 0, expected 10");
        assert_eq!(problem(|frames| frames.push(frame(11, 0))), "frame 11 was never decoded");
        assert_eq!(problem(|frames| frames.insert(3, frame(3, 0))), "frame 3 came after frame 3");
        assert_eq!(
            problem(|frames| frames.swap(3, 4)),
            "1 frames are missing before frame 5, 0 were counted"
        );
        let frames = [frame(1, 0), frame(5, 2), frame(10, 4)];
        let proof = compare(&made(10), 10, &frames, Policy::Latest);
        assert_eq!(proof.problems, ["3 frames are missing before frame 5, 2 were counted"]);
    }

    #[test]
    fn incomplete_decoder_log_is_a_problem() {
        let problems = |made: &BTreeMap<u64, u64>, published, frames: &[Frame]| {
            compare(made, published, frames, Policy::Latest).problems
        };
        assert!(!problems(&BTreeMap::new(), 0, &[]).is_empty());
        assert!(!problems(&made(10), 0, &[]).is_empty() && !problems(&made(10), 11, &all()).is_empty());
        let mut incomplete = made(10);
        incomplete.remove(&3);
        let frames = [&all()[..2], &[frame(4, 1)], &all()[4..]].concat();
        assert_eq!(problems(&incomplete, 10, &frames), ["of 10 published frames, 9 were decoded"]);
    }
}
