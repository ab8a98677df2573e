// SPDX-License-Identifier: MIT OR Apache-2.0

//! Final summary: comparison of the frames read with the decoded frames.

use super::{
    log::{Log, ReaderLog},
    process::Process,
    proof::{self, Promise},
    table::{fold, milliseconds},
};
use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

/// Maximum number of problems printed.
const SHOWN: usize = 5;

/// Prints the summary; returns whether there was no problem.
pub fn print(log: &Log, recording: &Path) -> bool {
    let made = log.published();
    println!("\n{}", of_exporter(log, &made));
    let mut problems = Vec::new();
    let mut say = |who: &str, line: String, found: Vec<String>| {
        let mark = if found.is_empty() { "" } else { ": WRONG" };
        println!("  {who:<10}{}{mark}", line.replace('\n', "\n            "));
        problems.extend(found.into_iter().map(|problem| format!("{who}: {problem}")));
    };
    for (process, promise, reader) in log.processes() {
        let (line, found) = of_reader(reader, &made, log.exporter.published, promise);
        say(&process.to_string(), line, found);
    }
    let (line, found) = of_recording(log, recording);
    say("recording", line, found);

    for problem in problems.iter().take(SHOWN) {
        println!("  {problem}");
    }
    if problems.len() > SHOWN {
        println!("  and {} more", problems.len() - SHOWN);
    }
    println!(
        "{}",
        match problems.is_empty() {
            true => "ok: the readers received exactly the decoded frames",
            false => "FAILED: not every reader received exactly the decoded frames",
        }
    );
    problems.is_empty()
}

fn of_exporter(log: &Log, made: &BTreeMap<u64, u64>) -> String {
    let images = made.values().collect::<HashSet<_>>().len();
    let (frames, copies) = (log.exporter.published, log.exporter.copies);
    let reasons: Vec<_> =
        log.exporter.reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let how = match copies {
        0 => "all decoded straight into shared memory".into(),
        _ => {
            let what = format!("{copies} copied into shared memory");
            fold(&[vec![what], reasons].concat()).join("\n")
        }
    };
    format!("{frames} frames published, {images} different images,\n{how}")
}

fn of_reader(
    reader: &ReaderLog,
    made: &BTreeMap<u64, u64>,
    published: u64,
    promise: Promise,
) -> (String, Vec<String>) {
    let mut proof = proof::compare(made, published, &reader.frames, promise);
    let copies = match (&reader.failure, reader.copies) {
        (Some(failure), _) => {
            proof.problems.insert(0, format!("it {failure}"));
            "\nnot finished".into()
        }
        (None, None) => {
            proof.problems.push("it did not finish".into());
            "\nnot finished".into()
        }
        (None, Some(0)) => "\nall read in place".into(),
        (None, Some(copies)) => format!("\n{copies} copied for an element that keeps them"),
    };
    let policy = match promise {
        Promise::Everything => "lossless",
        Promise::NewestFrames => "latest",
    };
    let mut delays: Vec<_> = reader.frames.iter().map(|frame| frame.delay).collect();
    delays.sort_unstable();
    let delay = match (delays.get(delays.len() / 2), delays.last()) {
        (Some(median), Some(longest)) => {
            format!("\ndelay {} (median), {} (longest)", milliseconds(*median), milliseconds(*longest))
        }
        _ => String::new(),
    };
    let line = format!(
        "{policy:<9} {} frames read, {} compared, {} differ, {} lost{copies}{delay}",
        reader.frames.len(),
        proof.compared,
        proof.differing,
        proof.lost
    );
    (line, proof.problems)
}

fn of_recording(log: &Log, recording: &Path) -> (String, Vec<String>) {
    let name = recording.display();
    let read = log
        .processes()
        .find(|(process, ..)| *process == Process::Recorder)
        .map_or(0, |(.., reader)| reader.frames.len());
    match log.played_back {
        Some(frames) if frames == read as u64 => (format!("{name}: {frames} frames play back"), Vec::new()),
        Some(frames) => {
            let problem = format!("{read} frames were recorded, but {frames} play back");
            (format!("{name}"), vec![problem])
        }
        None => (format!("{name}"), vec!["it was not played back".into()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Exporter, Frame, Reader, Report};

    /// Returns the log of a successful demo of three frames.
    fn log() -> Log {
        let mut log = Log::default();
        for sequence in 1..=3 {
            log.note(Process::Exporter, Report::Decoded { sequence, sum: sequence * 7 });
        }
        for (process, pid) in Process::READERS.into_iter().zip(1..) {
            log.register(process, pid);
            for sequence in 1..=3 {
                log.note(process, Report::Read(frame(sequence)));
            }
            log.note(process, Report::Finished { copies: 0 });
        }
        log.note(Process::Exporter, Report::Exporter(Exporter { published: 3, ..Exporter::default() }));
        log.note(Process::Playback, Report::PlayedBack { frames: 3 });
        log
    }

    fn frame(sequence: u64) -> Frame {
        Frame { sequence, lost_before: 0, sum: sequence * 7, delay: 1, motion: None }
    }

    fn is_good(change: impl FnOnce(&mut Log)) -> bool {
        let mut log = log();
        change(&mut log);
        print(&log, Path::new("recording.mkv"))
    }

    #[test]
    fn summary_is_good_only_without_any_problem() {
        assert!(is_good(|_| {}));
        for reader in 0..Process::READERS.len() {
            assert!(!is_good(|log| log.readers[reader].frames[1].sum += 1));
            assert!(!is_good(|log| log.readers[reader].frames.truncate(2)), "a frame is missing");
            assert!(!is_good(|log| log.readers[reader].copies = None), "it did not finish");
            assert!(!is_good(|log| log.readers[reader].failure = Some("failed".into())));
        }
        assert!(!is_good(|log| log.played_back = Some(2)));
        assert!(!is_good(|log| log.played_back = None));
        assert!(!is_good(|log| log.exporter.published = 4), "a frame without a reader");
        assert!(!is_good(|log| *log = Log::default()));
    }

    #[test]
    fn unpublished_frame_is_not_compared() {
        assert!(is_good(|log| log.note(Process::Exporter, Report::Decoded { sequence: 4, sum: 5 })));
    }

    #[test]
    fn disconnected_reader_holds_no_frames() {
        let now = Reader { pid: 1, policy: "latest".into(), held: 2, queued: 0, sent: 3, lost: 0, lag: 1 };
        let mut log = log();
        let readers = vec![now];
        log.note(
            Process::Exporter,
            Report::Exporter(Exporter { published: 3, readers, ..Exporter::default() }),
        );
        log.note(Process::READERS[0], Report::Finished { copies: 0 });
        let now = log.readers[0].now.as_ref().unwrap();
        assert_eq!((now.held, now.lag), (0, 0));
    }
}
