// SPDX-License-Identifier: MIT OR Apache-2.0

//! Resource counts of processes, to find leaks.

use crate::process::{PATIENCE, TestRun, wait_until};
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Thread that frees GPU memory. It starts on demand and stays, so it is always counted.
const DROP_THREAD: &str = "frameshare-drop";
/// Thread of GLib that starts others, and stays.
const GLIB_SPAWNER: &str = "pool-spawner";

const SLOTS: &str = "slots";
const DESCRIPTORS: &str = "descriptors";
const MAPPINGS: &str = "mappings";
const THREADS: &str = "threads";

/// Counts of one process, which can be compared with later ones.
#[derive(Clone, Debug)]
pub struct Census {
    pid: u32,
    /// Counts by kind; the files of a test run's streams by name.
    counts: BTreeMap<String, usize>,
    kilobytes: u64,
    /// Memory growth that an allocator may cause; without it memory is not compared.
    tolerated_kilobytes: Option<u64>,
}

impl Census {
    /// Counts the resources of a process.
    ///
    /// # Errors
    ///
    /// Those of reading `/proc`.
    pub fn of(pid: u32) -> io::Result<Self> {
        let place = |what: &str| format!("/proc/{pid}/{what}");
        let (mut slots, mut descriptors) = (0, 0);
        for entry in fs::read_dir(place("fd"))? {
            let target = fs::read_link(entry?.path()).unwrap_or_default();
            let is_slot = target.to_string_lossy().contains("frameshare-slot");
            *if is_slot { &mut slots } else { &mut descriptors } += 1;
        }
        let maps = fs::read_to_string(place("maps"))?;
        let mappings = maps.lines().filter(|line| line.contains("memfd:frameshare")).count();
        let counts =
            [(SLOTS, slots), (DESCRIPTORS, descriptors), (MAPPINGS, mappings), (THREADS, threads(pid)?)];
        let kilobytes = memory(pid, "RssAnon")?.ok_or_else(|| io::Error::other("no RssAnon"))? >> 10;
        let counts = counts.map(|(what, count)| (what.to_owned(), count)).into();
        Ok(Self { pid, counts, kilobytes, tolerated_kilobytes: None })
    }

    /// Counts the resources of a process, and the files of a test run's streams.
    pub fn in_run(pid: u32, run: &TestRun) -> Self {
        let mut census = Self::of(pid).expect("the process exists");
        // The folder is created with the first socket.
        for entry in fs::read_dir(run.path("frameshare")).into_iter().flatten() {
            let name = entry.expect("an entry").file_name();
            census.counts.insert(format!("file {}", name.display()), 1);
        }
        census
    }

    /// Counts the resources of this process, and the files of a test run's streams.
    pub fn here(run: &TestRun) -> Self {
        Self::in_run(std::process::id(), run)
    }

    /// Returns the counts of this process once it shares, reads and runs nothing more than at this
    /// census, which was taken before the first pipeline: resources of a stopped pipeline may take
    /// a moment to disappear, and would otherwise hide as many leaks.
    pub fn settled(&self, run: &TestRun) -> Self {
        let mut census = Self::here(run);
        wait_until("no resource of a pipeline is left", || {
            census = Self::here(run);
            [SLOTS, MAPPINGS, THREADS].iter().all(|&what| census.counts[what] <= self.counts[what])
        });
        census
    }

    /// Tolerates this number of additional slots: their number depends on the speed of releases.
    /// The compared runs must be able to leak more.
    #[must_use]
    pub fn with_slots(self, more: usize) -> Self {
        let most = self.counts[SLOTS] + more;
        self.with_slots_up_to(most)
    }

    /// Tolerates this number of slots.
    #[must_use]
    pub fn with_slots_up_to(mut self, most: usize) -> Self {
        let more = most.saturating_sub(self.counts[SLOTS]);
        self.counts.insert(SLOTS.into(), most);
        self.counts.entry(MAPPINGS.into()).and_modify(|count| *count += more);
        self
    }

    /// Tolerates this number of additional descriptors, and their mappings: an exporter keeps the
    /// pages of a user's readers, and how many were there at once depends on the speed of them all.
    #[must_use]
    pub fn with_descriptors(mut self, more: usize) -> Self {
        for kind in [DESCRIPTORS, MAPPINGS] {
            self.counts.entry(kind.into()).and_modify(|count| *count += more);
        }
        self
    }

    /// Compares memory too, and tolerates this growth in kilobytes.
    #[must_use]
    pub fn with_kilobytes(self, more: u64) -> Self {
        Self { tolerated_kilobytes: Some(more), ..self }
    }

    /// Lists the resources of which there are more than tolerated.
    pub fn growth(&self, now: &Self) -> Vec<String> {
        let more = |(what, count): (&String, &usize)| {
            let before = self.counts.get(what).copied().unwrap_or(0);
            (*count > before).then(|| format!("{what}: {count} instead of {before}"))
        };
        let mut growth: Vec<_> = now.counts.iter().filter_map(more).collect();
        if self.tolerated_kilobytes.is_some_and(|more| now.kilobytes > self.kilobytes + more) {
            growth.push(format!("memory: {} kB instead of {}", now.kilobytes, self.kilobytes));
        }
        growth
    }

    /// Waits until a process has nothing more than at this census: threads take a moment to end,
    /// and a process to detect the end of its peer. Panics if that does not happen.
    pub fn assert_no_growth(&self, pid: u32, run: &TestRun) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let growth = self.growth(&Self::in_run(pid, run));
            if growth.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "process {pid} leaks: {growth:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The same for this process.
    pub fn assert_no_growth_here(&self, run: &TestRun) {
        self.assert_no_growth(std::process::id(), run);
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.pid)?;
        self.counts.iter().try_for_each(|(what, count)| write!(f, " {count} {what},"))?;
        write!(f, " {} kB", self.kilobytes)
    }
}

/// Lists the growth of several processes; nothing if one of them was replaced by another process.
pub fn growth_of_all(before: &[Census], now: &[Census]) -> Vec<String> {
    let pairs = || before.iter().zip(now);
    if pairs().any(|(before, now)| before.pid != now.pid) {
        return Vec::new();
    }
    let of_one = |(before, now): (&Census, &Census)| {
        before.growth(now).into_iter().map(|what| format!("process {}: {what}", now.pid)).collect::<Vec<_>>()
    };
    pairs().flat_map(of_one).collect()
}

/// Returns a figure of a process's memory in bytes, such as `VmHWM`, from its status.
///
/// # Errors
///
/// Those of reading `/proc`: the process does not exist.
pub fn memory(pid: u32, figure: &str) -> io::Result<Option<u64>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(number.map(|kilobytes| kilobytes << 10))
}

/// Counts the descriptors of a process.
///
/// # Errors
///
/// Those of reading `/proc`: the process does not exist.
pub fn descriptors(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Counts the threads of a process; one that frees GPU memory always counts.
///
/// # Errors
///
/// Those of reading `/proc`: the process does not exist.
pub fn threads(pid: u32) -> io::Result<usize> {
    let (mut others, mut dropping) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        match name(&entry?.path()).as_str() {
            GLIB_SPAWNER => {}
            DROP_THREAD => dropping += 1,
            _ => others += 1,
        }
    }
    Ok(others + dropping.max(1))
}

/// Returns the name of a thread; nothing if it has ended since the folder was listed.
fn name(task: &Path) -> String {
    fs::read_to_string(task.join("comm")).unwrap_or_default().trim().to_owned()
}
