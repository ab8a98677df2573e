// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test cases by suite. Each case is documented at its function.

mod faults;
mod nvdec;
mod sink;
mod source;
mod surfaces;

use std::fmt::Display;

use anyhow::{Context as _, Result, ensure};
use frameshare_gpu_harness::{Case, GIVEN_UP, Needs, Place};

use crate::job::{Command, Connect, Read, WasRead};
use crate::peer::Peer;

/// Frames of a case.
const FRAMES: u64 = 40;

/// Parts of the names of driver calls that allocate, free, import, export or wait.
const COSTLY: [&str; 9] =
    ["Alloc", "Free", "Ipc", "Import", "Export", "Synchronize", "Register", "Create", "Destroy"];

/// Returns whether a driver call is costly, or has `more` in its name.
fn is_costly(call: &str, more: &str) -> bool {
    COSTLY.iter().chain([&more]).any(|word| call.contains(word))
}

/// The text of driver calls and their numbers.
fn listed<'a>(calls: impl IntoIterator<Item = &'a (&'a str, u64)>) -> String {
    calls.into_iter().map(|(call, number)| format!("{call} {number}")).collect::<Vec<_>>().join(", ")
}

const CUDA: &str = "video/x-raw(memory:CUDAMemory)";

/// All cases.
pub static ALL: &[&[Case]] = &[sink::CASES, surfaces::CASES, source::CASES, nvdec::CASES, faults::CASES];

/// Returns a case that needs only a GPU and little time.
const fn case(suite: &'static str, name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite, name, seconds: 90, needs: Needs::Nothing, conduct }
}

/// Configurations of elements and readers for a stream's path.
trait Descriptions {
    fn sink(&self, properties: &str) -> String;
    fn source(&self, properties: &str) -> String;
    fn lossless(&self) -> Connect;
}

impl Descriptions for Place {
    /// Returns a sink's description.
    fn sink(&self, properties: &str) -> String {
        let (path, timeout) = (self.path(), GIVEN_UP.as_nanos());
        format!(
            "framesharesink name=sink sync=false socket-path={path} reader-timeout={timeout} \
             fence-timeout={timeout} {properties}"
        )
    }

    /// Returns the description of a lossless source.
    fn source(&self, properties: &str) -> String {
        format!("framesharesrc socket-path={} policy=lossless {properties}", self.path())
    }

    /// Returns the configuration of a lossless reader.
    fn lossless(&self) -> Connect {
        Connect { path: self.path(), lossless: true, ..Connect::default() }
    }
}

/// Returns pipelines that choose a clip's decoder by themselves.
fn autoplugging(clip: impl Display, sink: &str) -> [String; 2] {
    // Without this filter the sink would accept encoded video as well.
    let raw_alone = format!("capsfilter caps=video/x-raw(ANY) ! {sink}");
    [
        format!("filesrc location={clip} ! decodebin ! {sink}"),
        format!("playbin uri=file://{clip} video-sink=\"{raw_alone}\""),
    ]
}

/// Checks that a reader got every frame, each intact.
fn whole(read: &WasRead, expected: &[u64]) -> Result<()> {
    complete(read, expected)?;
    right(read, expected)
}

/// Checks that a reader got every frame.
fn complete(read: &WasRead, expected: &[u64]) -> Result<()> {
    ensure!(read.error.is_empty(), "after {} frames: {}", read.frames.len(), read.error);
    ensure!(
        read.frames.len() == expected.len() && read.lost == 0,
        "{} of {} frames arrived, {} were lost",
        read.frames.len(),
        expected.len(),
        read.lost
    );
    Ok(())
}

/// Checks that all frames of a reader are intact.
fn right(read: &WasRead, expected: &[u64]) -> Result<()> {
    let wrong = mistakes(read, expected)?;
    // A misplaced frame is reported differently from a torn one.
    let tell = |(frame, instead): &(u64, Option<u64>)| match instead {
        Some(other) => format!("{frame} (which is frame {other})"),
        None => frame.to_string(),
    };
    let texts: Vec<_> = wrong.iter().map(tell).collect();
    ensure!(wrong.is_empty(), "{} frames have wrong checksums: {}", wrong.len(), texts.join(", "));
    Ok(())
}

/// Returns the wrong frames, and which other frame each equals, if any.
fn mistakes(read: &WasRead, expected: &[u64]) -> Result<Vec<(u64, Option<u64>)>> {
    let mut wrong = Vec::new();
    for (sequence, sum) in &read.frames {
        let index = usize::try_from(sequence - 1)?;
        if expected.get(index).with_context(|| format!("unexpected frame {sequence}"))? != sum {
            let instead = expected.iter().position(|other| other == sum);
            wrong.push((*sequence, instead.map(|index| index as u64 + 1)));
        }
    }
    Ok(wrong)
}

/// Reads with all readers to the end of a pipeline's stream; each frame takes this time on the GPU,
/// in µs.
fn play_to(readers: &[Peer], exporter: &Peer, slow_us: u64) -> Result<Vec<WasRead>> {
    for reader in readers {
        reader.begin(&Command::Read(Read { slow_us, ..Read::default() }))?;
    }
    exporter.execute(Command::Go)?;
    let ended = exporter.execute(Command::AwaitEnd { ms: 60_000 });
    let reads: Result<Vec<_>> = readers.iter().map(Peer::was_read).collect();
    ended?;
    reads
}
