//! Whether a reader saw what the decoder made.

use crate::report::Frame;
use std::collections::BTreeMap;

/// What a reader may do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Nothing.
    Everything,
    /// What it lost, as long as it was told how much that was.
    NewestFrames,
}

/// The outcome of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Frames that the reader had and the decoder had made.
    pub compared: u64,
    /// Those of them that were not the same.
    pub differing: u64,
    /// Frames that the reader was told it lost.
    pub lost: u64,
    /// Everything that is not as it should be, in the order in which it came up.
    pub problems: Vec<String>,
}

/// Compares the frames that a reader had, in their order, with those that the decoder made: checksums by the numbers
/// that they were published under, which are 1 to `published`.
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
                    proof.problems.push(format!("frame {sequence} is not what the decoder made"));
                }
            }
            None => proof.problems.push(format!("the decoder made no frame {sequence}")),
        }
        if sequence <= last {
            proof.problems.push(format!("frame {sequence} came after frame {last}"));
        } else if sequence - last - 1 != lost_before {
            let missing = sequence - last - 1;
            proof
                .problems
                .push(format!("{missing} are missing before frame {sequence}, {lost_before} were counted"));
        }
        proof.lost += lost_before;
        last = sequence;
    }
    let known = made.range(1..=published.max(1)).count() as u64;
    if known != published || published == 0 {
        proof.problems.push(format!("of the {published} frames published {known} are known"));
    }
    // Even who may lose frames loses the older ones: the newest stays until it is taken.
    if last < published {
        proof.problems.push(format!("the last frame was {last}, and not {published}"));
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

    /// The problems that a lossless reader of ten frames has after `change`.
    fn problems(change: impl FnOnce(&mut Vec<Frame>)) -> Vec<String> {
        let mut frames = all(10);
        change(&mut frames);
        compare(&made(10), 10, &frames, Promise::Everything).problems
    }

    #[test]
    fn a_reader_that_saw_everything_is_right() {
        let proof = compare(&made(10), 10, &all(10), Promise::Everything);
        assert_eq!(proof, Proof { compared: 10, ..Proof::default() });
    }

    #[test]
    fn a_reader_of_the_newest_may_lose_what_it_counts() {
        let frames = [frame(2, 1), frame(3, 0), frame(7, 3), frame(10, 2)];
        let proof = compare(&made(10), 10, &frames, Promise::NewestFrames);
        assert_eq!(proof, Proof { compared: 4, lost: 6, ..Proof::default() });
        let lossless = compare(&made(10), 10, &frames, Promise::Everything);
        assert_eq!(lossless.problems, ["6 frames were lost"]);
    }

    #[test]
    fn another_picture_is_found() {
        assert_eq!(problems(|frames| frames[4].sum ^= 1), ["frame 5 is not what the decoder made"]);
        let last = compare(&made(1), 1, &[Frame { sum: 0, ..frame(1, 0) }], Promise::NewestFrames);
        assert_eq!((last.compared, last.differing), (1, 1));
    }

    #[test]
    fn a_missing_frame_is_found() {
        assert_eq!(
            problems(|frames| frames.retain(|frame| frame.sequence != 5)),
            ["1 are missing before frame 6, 0 were counted"]
        );
        assert_eq!(
            problems(|frames| frames.retain(|frame| frame.sequence != 1)),
            ["1 are missing before frame 2, 0 were counted"]
        );
        assert_eq!(problems(|frames| frames.truncate(9)), ["the last frame was 9, and not 10"]);
        assert_eq!(problems(Vec::clear), ["the last frame was 0, and not 10"]);
    }

    #[test]
    fn a_wrong_count_of_lost_frames_is_found() {
        let frames = [frame(1, 0), frame(5, 2), frame(10, 4)];
        let proof = compare(&made(10), 10, &frames, Promise::NewestFrames);
        assert_eq!(proof.problems, ["3 are missing before frame 5, 2 were counted"]);
    }

    #[test]
    fn a_wrong_order_is_found() {
        assert!(problems(|frames| frames.swap(3, 4)).contains(&"frame 4 came after frame 5".to_owned()));
        assert!(
            problems(|frames| frames.insert(3, frame(3, 0)))
                .contains(&"frame 3 came after frame 3".to_owned())
        );
    }

    #[test]
    fn a_frame_that_was_never_made_is_found() {
        assert_eq!(problems(|frames| frames.push(frame(11, 0))), ["the decoder made no frame 11"]);
    }

    #[test]
    fn where_the_decoder_is_not_known_nothing_is_proven() {
        let problems = |made: &BTreeMap<u64, u64>, published, frames: &[Frame]| {
            compare(made, published, frames, Promise::NewestFrames).problems
        };
        assert!(!problems(&BTreeMap::new(), 0, &[]).is_empty());
        assert!(!problems(&made(10), 0, &[]).is_empty());
        assert!(!problems(&made(10), 11, &all(10)).is_empty());
        let mut incomplete = made(10);
        incomplete.remove(&3);
        let frames = [&all(2)[..], &[frame(4, 1)], &all(10)[4..]].concat();
        assert_eq!(problems(&incomplete, 10, &frames), ["of the 10 frames published 9 are known"]);
    }
}
