// SPDX-License-Identifier: MIT OR Apache-2.0

//! Number of repetitions of repeated actions, which `FRAMESHARE_TIMES=N` multiplies
//! (`make test-long`).

/// Returns the number of repetitions.
pub fn times(count: usize) -> usize {
    let factor = std::env::var("FRAMESHARE_TIMES").ok();
    count * factor.map_or(1, |factor| factor.parse().expect("FRAMESHARE_TIMES is a number"))
}
