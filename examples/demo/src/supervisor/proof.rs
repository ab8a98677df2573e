// SPDX-License-Identifier: MIT OR Apache-2.0

//! Comparison of a reader's frames with the decoded frames.

use crate::report::Frame;
use std::collections::BTreeMap;

/// Delivery guarantee of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No frame may be lost.
    Everything,
    /// Frames may be lost if the reader got their exact number.
    NewestFrames,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Frames that the reader received and the decoder decoded.
    pub compared: u64,
    /// Those with different checksums.
    pub differing: u64,
    /// Frames that were reported to the reader as lost.
    pub lost: u64,
    /// All problems, in order of detection.
    pub problems: Vec<String>,
}

/// Compares a reader's frames, in order, with the decoded frames: by checksum and publication
/// number, 1 to `published`.
pub fn compare(made: &BTreeMap<u64, u64>, published: u64, frames: &[Frame], promise: Promise) -> Proof {
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
        if sequence <= last {
            proof.problems.push(format!("frame {sequence} came after frame {last}"));
        } else if sequence - last - 1 != lost_before {
            let missing = sequence - last - 1;
            proof.problems.push(format!(
                "{missing} frames are missing before frame {sequence}, {lost_before} were counted"
            ));
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
    if promise == Promise::Everything && proof.lost > 0 {
        proof.problems.push(format!("{} frames were lost", proof.lost));
    }
    proof
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(count: u64) -> BTreeMap<u64, u64> {
        (1..=count).map(|sequence| (sequence, sequence * 1000)).collect()
    }

    fn frame(sequence: u64, lost_before: u64) -> Frame {
        Frame { sequence, lost_before, sum: sequence * 1000, delay: 0, motion: None }
    }

    fn all(count: u64) -> Vec<Frame> {
        (1..=count).map(|sequence| frame(sequence, 0)).collect()
    }

    /// Returns the problems of a lossless reader of ten frames after `change`.
    fn problems(change: impl FnOnce(&mut Vec<Frame>)) -> Vec<String> {
        let mut frames = all(10);
        change(&mut frames);
        compare(&made(10), 10, &frames, Promise::Everything).problems
    }

    #[test]
    fn complete_reader_has_no_problems() {
        let proof = compare(&made(10), 10, &all(10), Promise::Everything);
        assert_eq!(proof, Proof { compared: 10, ..Proof::default() });
    }

    #[test]
    fn latest_reader_may_lose_counted_frames() {
        let frames = [frame(2, 1), frame(3, 0), frame(7, 3), frame(10, 2)];
        let proof = compare(&made(10), 10, &frames, Promise::NewestFrames);
        assert_eq!(proof, Proof { compared: 4, lost: 6, ..Proof::default() });
        let lossless = compare(&made(10), 10, &frames, Promise::Everything);
        assert_eq!(lossless.problems, ["6 frames were lost"]);
    }

    #[test]
    fn wrong_image_is_detected() {
        assert_eq!(problems(|frames| frames[4].sum ^= 1), ["frame 5 differs from the decoded frame"]);
        let last = compare(&made(1), 1, &[Frame { sum: 0, ..frame(1, 0) }], Promise::NewestFrames);
        assert_eq!((last.compared, last.differing), (1, 1));
    }

    #[test]
    fn missing_frame_is_detected() {
        assert_eq!(
            problems(|frames| frames.retain(|frame| frame.sequence != 5)),
            ["1 frames are missing before frame 6, 0 were counted"]
        );
        assert_eq!(
            problems(|frames| frames.retain(|frame| frame.sequence != 1)),
            ["1 frames are missing before frame 2, 0 were counted"]
        );
        assert_eq!(problems(|frames| frames.truncate(9)), ["the last frame was 9, expected 10"]);
        assert_eq!(problems(Vec::clear), ["the last frame was 0, expected 10"]);
    }

    #[test]
    fn wrong_loss_count_is_detected() {
        let frames = [frame(1, 0), frame(5, 2), frame(10, 4)];
        let proof = compare(&made(10), 10, &frames, Promise::NewestFrames);
        assert_eq!(proof.problems, ["3 frames are missing before frame 5, 2 were counted"]);
    }

    #[test]
    fn wrong_order_is_detected() {
        assert!(problems(|frames| frames.swap(3, 4)).contains(&"frame 4 came after frame 5".to_owned()));
        assert!(
            problems(|frames| frames.insert(3, frame(3, 0)))
                .contains(&"frame 3 came after frame 3".to_owned())
        );
    }

    #[test]
    fn unknown_frame_is_detected() {
        assert_eq!(problems(|frames| frames.push(frame(11, 0))), ["frame 11 was never decoded"]);
    }

    #[test]
    fn incomplete_decoder_log_is_a_problem() {
        let problems = |made: &BTreeMap<u64, u64>, published, frames: &[Frame]| {
            compare(made, published, frames, Promise::NewestFrames).problems
        };
        assert!(!problems(&BTreeMap::new(), 0, &[]).is_empty());
        assert!(!problems(&made(10), 0, &[]).is_empty());
        assert!(!problems(&made(10), 11, &all(10)).is_empty());
        let mut incomplete = made(10);
        incomplete.remove(&3);
        let frames = [&all(2)[..], &[frame(4, 1)], &all(10)[4..]].concat();
        assert_eq!(problems(&incomplete, 10, &frames), ["of 10 published frames, 9 were decoded"]);
    }
}
