// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers on another GPU than the frames.

use anyhow::{Context as _, Result};

use super::{Case, FENCES, KINDS, Needs, SIZE, Setup, frames, to_the_end, whole};
use crate::job::{Connect, Publish, Read, Slow};
use crate::peer::Peer;

const SUITE: &str = "engine-two-gpus";

pub const CASES: &[Case] =
    &[Case { suite: SUITE, name: "readers-on-both", seconds: 180, needs: Needs::TwoDevices, conduct: both }];

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
