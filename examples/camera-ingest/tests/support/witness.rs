// SPDX-License-Identifier: MIT OR Apache-2.0

//! An undisturbed reader of an encoded stream: its units tell what the camera has sent.

use crate::common::wait;
use frameshare::{
    Policy,
    reader::{Config, Frames, ReadError},
};
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// A lossless reader that writes H.264 into a file.
pub struct Witness {
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<(), String>>,
    file: PathBuf,
}

impl Witness {
    /// Reads the stream of a socket, through restarts of its exporter.
    pub fn start(stream: &str, file: &Path) -> Self {
        let config = Config::default().policy(Policy::Lossless).max_held(16).reconnect(true);
        let frames = Frames::open(stream, config.connection_timeout(None)).unwrap();
        let (received, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, is_over, target) = (received.clone(), stop.clone(), File::create(file).unwrap());
        let thread = thread::spawn(move || read(frames, target, &count, &is_over));
        Self { received, stop, thread, file: file.to_owned() }
    }

    /// Waits for further units: the stream goes on.
    pub fn wait_for_more(&self, units: u64) {
        let now = self.received.load(Relaxed);
        wait("further units", || (self.received.load(Relaxed) >= now + units).then_some(()));
    }

    /// Ends the reading, which has lost nothing. Returns the file with all units.
    pub fn end(self) -> PathBuf {
        self.stop.store(true, Relaxed);
        assert_eq!(self.thread.join().expect("no panic"), Ok(()), "{}", self.file.display());
        self.file
    }
}

fn read(mut frames: Frames, mut file: File, count: &AtomicU64, stop: &AtomicBool) -> Result<(), String> {
    let mut last = None;
    loop {
        let is_over = stop.load(Relaxed);
        // At the end it reads all that has arrived: a recorder may have read it.
        let next = if is_over { frames.try_next() } else { frames.next_within(Duration::from_millis(100)) };
        let unit = match next {
            Ok(Some(unit)) => unit,
            Ok(None) if is_over => break,
            Ok(None) => continue,
            Err(ReadError::Interrupted) => break,
            Err(error) => return Err(error.to_string()),
        };
        let (session, number) = (unit.session(), unit.descriptor().sequence.0);
        let follows = |last: &(u64, u64)| last.0 != session || last.1 + 1 == number;
        if unit.lost_before() > 0 || !last.as_ref().is_none_or(follows) {
            return Err(format!("unit {number} of {session} came after {last:?}"));
        }
        last = Some((session, number));
        let bytes: Vec<_> = unit.bytes().iter().map(|byte| byte.load(Relaxed)).collect();
        file.write_all(&bytes).map_err(|error| error.to_string())?;
        count.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Difference of a recording to what the camera has sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Runs of frames that were not recorded: first and last.
    pub missing: Vec<(u32, u32)>,
    /// Number of times that frames were recorded again.
    pub repeated: usize,
    /// Frames that the camera has not sent.
    pub foreign: Vec<u32>,
}

/// Maximum distance of frames that belong to each other: numbers come again after a loop.
const NEAR: usize = 1000;

/// Compares the numbers of recorded frames with those that were sent, from the first sent one on.
/// Frames after the last recorded one are not missing: the recorder was stopped before the camera.
pub fn compare(recorded: &[u32], sent: &[u32]) -> Difference {
    let mut difference = Difference::default();
    let begin = recorded.iter().position(|number| Some(number) == sent.first()).unwrap_or(0);
    let mut next = 0;
    for number in &recorded[begin..] {
        let ahead = sent[next..].iter().take(NEAR).position(|other| other == number);
        let behind = sent[..next].iter().rev().take(NEAR).position(|other| other == number);
        match (ahead, behind) {
            (Some(0), _) => next += 1,
            (Some(ahead), behind) if behind.is_none_or(|behind| ahead <= behind) => {
                difference.missing.push((sent[next], sent[next + ahead - 1]));
                next += ahead + 1;
            }
            (_, Some(behind)) => {
                difference.repeated += 1;
                next -= behind;
            }
            _ => difference.foreign.push(*number),
        }
    }
    difference
}

#[test]
fn missing_repeated_and_foreign_frames_are_found() {
    let sent = [7, 8, 9, 0, 1, 2, 3, 4, 5];
    let of = |recorded: &[u32]| compare(recorded, &sent);
    assert_eq!(of(&[5, 6, 7, 8, 9, 0, 1, 2]), Difference::default());
    assert_eq!(of(&[7, 8, 1, 2]).missing, [(9, 0)]);
    assert_eq!(of(&[7, 8, 9, 8, 9, 0, 1]), Difference { repeated: 1, ..Difference::default() });
    assert_eq!(of(&[7, 8, 100, 9]).foreign, [100]);
    assert_eq!(
        of(&[7, 9, 8, 0]),
        Difference { missing: vec![(8, 8), (9, 9)], repeated: 1, foreign: Vec::new() }
    );
}
