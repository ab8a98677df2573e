// SPDX-License-Identifier: MIT OR Apache-2.0

//! Resource counts of an exporter and of its permanent reader, to find leaks.

use std::{fmt, fs, io};

/// Most slots that an exporter allocates; below it the number varies.
const MAX_SLOTS: usize = 64;

/// Thread that frees GPU memory.
const IDLE: &str = "frameshare-drop";

/// Counts of one process.
#[derive(Clone, Debug)]
struct Count {
    pid: u32,
    slots: usize,
    descriptors: usize,
    threads: usize,
    kilobytes: u64,
}

/// Counts of all processes of one stream.
#[derive(Clone, Debug)]
pub struct Census(Vec<Count>);

impl Count {
    fn of(pid: u32) -> io::Result<Self> {
        let (mut slots, mut descriptors) = (0, 0);
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let target = fs::read_link(entry?.path()).unwrap_or_default();
            let is_slot = target.to_string_lossy().contains("frameshare-slot");
            *if is_slot { &mut slots } else { &mut descriptors } += 1;
        }
        let threads = threads(pid)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
        let kilobytes = rss.and_then(|text| text.trim().parse().ok());
        let kilobytes = kilobytes.ok_or_else(|| io::Error::other("no RssAnon"))?;
        Ok(Self { pid, slots, descriptors, threads, kilobytes })
    }
}

/// Number of threads of a process. A permanent thread that starts on demand is counted even before
/// it starts.
fn threads(pid: u32) -> io::Result<usize> {
    let (mut all, mut idle) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        // The thread may have ended since the folder was listed.
        let name = fs::read_to_string(entry?.path().join("comm")).unwrap_or_default();
        all += 1;
        idle += usize::from(name.trim() == IDLE);
    }
    Ok(all - idle + idle.max(1))
}

impl Census {
    /// Reads the current counts.
    pub fn of(pids: &[u32]) -> io::Result<Self> {
        pids.iter().map(|pid| Count::of(*pid)).collect::<io::Result<_>>().map(Self)
    }

    /// Whether all processes are the same ones as in `other`.
    pub fn is_of_the_same_process_as(&self, other: &Self) -> bool {
        self.0.iter().map(|count| count.pid).eq(other.0.iter().map(|count| count.pid))
    }

    /// Lists the counts that have grown; memory may grow by `kilobytes`, which an allocator may
    /// keep.
    pub fn growth(&self, after: &Self, kilobytes: u64) -> impl Iterator<Item = String> {
        self.0.iter().zip(&after.0).filter_map(move |(before, after)| {
            let grown = after.slots > MAX_SLOTS
                || after.descriptors > before.descriptors
                || after.threads > before.threads
                || after.kilobytes > before.kilobytes + kilobytes;
            grown.then(|| format!("{before} became {after}"))
        })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, slots, descriptors, threads, kilobytes } = self;
        write!(f, "{pid}: {slots} slots, {descriptors} other files, {threads} threads, {kilobytes} kB")
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&counts.join(", "))
    }
}
