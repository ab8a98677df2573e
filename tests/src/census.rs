//! What an exporter and the reader that stays have of what can leak.

use std::{fmt, fs, io};

/// Slots that an exporter may have: as many as it likes at a time, and no more than this.
const MAX_SLOTS: usize = 64;

/// The thread that gives GPU memory up.
const IDLE: &str = "frameshare-idle";

/// Of one process.
#[derive(Clone, Debug)]
struct Count {
    pid: u32,
    slots: usize,
    descriptors: usize,
    threads: usize,
    kilobytes: u64,
}

/// Of the processes of one stream.
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

/// How many threads a process has. One that comes when it is first needed, and stays, is counted before it is there.
fn threads(pid: u32) -> io::Result<usize> {
    let (mut all, mut idle) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let name = fs::read_to_string(entry?.path().join("comm")).unwrap_or_default();
        all += 1;
        idle += usize::from(name.trim() == IDLE);
    }
    Ok(all - idle + idle.max(1))
}

impl Census {
    /// Counts now.
    pub fn of(pids: &[u32]) -> io::Result<Self> {
        pids.iter().map(|pid| Count::of(*pid)).collect::<io::Result<_>>().map(Self)
    }

    /// Whether none of them has been replaced.
    pub fn is_of_the_same_process_as(&self, other: &Self) -> bool {
        self.0.iter().map(|count| count.pid).eq(other.0.iter().map(|count| count.pid))
    }

    /// What there is more of than there was; an allocator may keep so many kilobytes more.
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
