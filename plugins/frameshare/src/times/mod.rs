// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times, from the timestamps of an exporter's pipeline to those of a reader's: pure functions, and
//! state that the elements own.
//!
//! | step | from | to | |
//! | --- | --- | --- | --- |
//! | [`Running`] | timestamp | running time | by the exporter's segment |
//! | [`Times`] | running time | `CLOCK_MONOTONIC` | by base time, `ts-offset`, the delay of a wait for readers, and the [`Difference`] of the clocks; without latency, which readers are told apart ([`Latency`]) |
//! | [`Timestamps`] | `CLOCK_MONOTONIC` | running time | of a live reader, by its own base time and clock |
//! | [`LiveTime`] | running time | timestamp | a connection's frames are moved together: at a join, a switch, or a pause |
//! | [`Timeline`], [`FileTime`] | `CLOCK_MONOTONIC` | timestamp | the exporter's own, for a reader that is not live |
//!
//! The rule for a pause of a live reader is in [`LiveTime::resume`].

mod clock;
mod file;
mod latency;
mod live;
mod published;
mod timeline;
mod timestamps;

pub(crate) use clock::{Difference, KnownClock, PipelineClock};
pub(crate) use file::FileTime;
pub(crate) use latency::Latency;
pub(crate) use live::{Consumer, First, LiveTime};
pub(crate) use published::{Running, Times};
pub(crate) use timeline::Timeline;
pub(crate) use timestamps::{Timestamps, nearest, sum};

#[cfg(test)]
mod tests;
