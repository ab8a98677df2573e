//! The cases, by suite. What each shows stands above its function.

mod nvdec;
mod sink;
mod source;
mod surfaces;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::job::{Command, Connect, Read, WasRead};
use crate::peer::Peer;

/// Frames of a case.
const FRAMES: u64 = 40;

const CUDA: &str = "video/x-raw(memory:CUDAMemory)";

/// One thing to show.
pub struct Case {
    pub suite: &'static str,
    pub name: &'static str,
    /// How long it may take, in seconds.
    pub seconds: u64,
    pub needs: Needs,
    /// Shows it; what it returns is worth telling.
    pub conduct: fn(seed: u64) -> Result<String>,
}

/// What a case cannot do without, beside a GPU.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "the runner knows them all")]
pub enum Needs {
    Nothing,
    TwoDevices,
    Simulation,
    Namespaces,
}

/// Every case there is.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [sink::CASES, surfaces::CASES, source::CASES, nvdec::CASES].into_iter().flatten()
}

/// A case that needs no more than a GPU and little time.
const fn case(suite: &'static str, name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite, name, seconds: 90, needs: Needs::Nothing, conduct }
}

/// A stream's place, for one case.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Place> {
        // Short enough for a socket, whatever the machine calls its folder for temporary files.
        Ok(Place(tempfile::Builder::new().prefix("gpu-gst").tempdir_in("/tmp")?))
    }

    /// Lets other users in.
    fn open(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        Ok(std::fs::set_permissions(self.0.path(), std::fs::Permissions::from_mode(0o777))?)
    }

    fn path(&self) -> String {
        self.0.path().join("s").display().to_string()
    }

    /// A sink.
    fn sink(&self, properties: &str) -> String {
        let path = self.path();
        format!("framesharesink name=sink sync=false socket-path={path} {properties}")
    }

    /// A source that loses nothing.
    fn source(&self, properties: &str) -> String {
        format!("framesharesrc socket-path={} policy=lossless {properties}", self.path())
    }

    /// A reader that loses nothing.
    fn lossless(&self) -> Connect {
        Connect { path: self.path(), lossless: true, ..Connect::default() }
    }
}

/// Checks that a reader got every frame, and each as it should be.
fn whole(read: &WasRead, expected: &[u64]) -> Result<()> {
    complete(read, expected)?;
    right(read, expected)
}

/// Checks that a reader got every frame.
fn complete(read: &WasRead, expected: &[u64]) -> Result<()> {
    ensure!(read.error.is_empty(), "after {} frames: {}", read.frames.len(), read.error);
    ensure!(
        read.frames.len() == expected.len() && read.lost == 0,
        "{} of {} frames came, {} were lost",
        read.frames.len(),
        expected.len(),
        read.lost
    );
    Ok(())
}

/// Checks that what a reader got is as it should be.
fn right(read: &WasRead, expected: &[u64]) -> Result<()> {
    let wrong = mistakes(read, expected)?;
    // A frame in another's place is another mistake than a torn one.
    let tell = |(frame, instead): &(u64, Option<u64>)| match instead {
        Some(other) => format!("{frame} (which is frame {other})"),
        None => frame.to_string(),
    };
    let told: Vec<_> = wrong.iter().map(tell).collect();
    ensure!(wrong.is_empty(), "{} frames are not what they should be: {}", wrong.len(), told.join(", "));
    Ok(())
}

/// The frames that are not what they should be, and which frame each is instead.
fn mistakes(read: &WasRead, expected: &[u64]) -> Result<Vec<(u64, Option<u64>)>> {
    let mut wrong = Vec::new();
    for (sequence, sum) in &read.frames {
        let index = usize::try_from(sequence - 1)?;
        if expected.get(index).with_context(|| format!("there is no frame {sequence}"))? != sum {
            let instead = expected.iter().position(|other| other == sum);
            wrong.push((*sequence, instead.map(|index| index as u64 + 1)));
        }
    }
    Ok(wrong)
}

/// Reads with all readers to the end of what a pipeline plays.
fn play_to(readers: &[Peer], exporter: &Peer) -> Result<Vec<WasRead>> {
    for reader in readers {
        reader.begin(&Command::Read(Read::default()))?;
    }
    exporter.tell(Command::Go)?;
    let ended = exporter.tell(Command::AwaitEnd { ms: 60_000 });
    let reads: Result<Vec<_>> = readers.iter().map(Peer::was_read).collect();
    ended?;
    reads
}
