// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers on another GPU than the frames.

use anyhow::{Context as _, Result};

use super::{Case, FENCES, KINDS, Needs, SIZE, Setup, frames, to_the_end, whole};
use crate::job::{Connect, Fate, Publish, Read, Says, Slow};
use crate::peer::Peer;

const SUITE: &str = "engine-two-gpus";

pub const CASES: &[Case] = &[
    Case { suite: SUITE, name: "readers-on-both", seconds: 180, needs: Needs::TwoDevices, conduct: both },
    Case {
        suite: SUITE,
        name: "frames-behind-a-stream-of-the-other",
        seconds: 60,
        needs: Needs::TwoDevices,
        conduct: behind_the_other,
    },
];

/// One reader on each GPU, with every kind of memory and fence.
fn both(seed: u64) -> Result<String> {
    let readers = Peer::some(2)?;
    let frames = (frames() / 10).max(20);
    for kind in KINDS {
        for fence in FENCES {
            let setup = Setup::new(kind, seed)?;
            setup
                .join(&readers, |number| Connect { device: number, ..setup.lossless(number, Some(fence)) })
                .with_context(|| format!("{kind} {fence}"))?;
            let publish = Publish { frames, size: SIZE, slow: Slow::Sometimes(600), ..Publish::default() };
            let read = Read { slow: Slow::Sometimes(1500), ..to_the_end() };
            for (device, read) in setup.run(&readers, publish, |_| read.clone())?.iter().enumerate() {
                whole(read, frames).with_context(|| format!("{kind} {fence}, reader on GPU {device}"))?;
            }
        }
    }
    Ok(format!("{frames} frames each"))
}

/// Publications name a stream of the other GPU, which waits for the work that writes the frame.
/// Some fail: their slots are in use until that work is done.
fn behind_the_other(seed: u64) -> Result<String> {
    for kind in KINDS {
        for (second_fate, frames) in [(Fate::Published, 40), (Fate::Refused, 20)] {
            let setup = Setup::new(kind, seed)?;
            let readers = Peer::some(2)?;
            setup.join(&readers, |number| Connect {
                device: number,
                host: number == 1,
                ..setup.lossless(number, None)
            })?;
            let (says, second) = (Says::OtherDevice, Some(Slow::Always(3000)));
            let publish = Publish { frames: 40, size: SIZE, second, second_fate, says, ..Publish::default() };
            for read in setup.run(&readers, publish, |_| to_the_end())? {
                whole(&read, frames).with_context(|| format!("{kind}, {second_fate:?}"))?;
            }
        }
    }
    Ok(String::new())
}
