// SPDX-License-Identifier: MIT OR Apache-2.0

//! Census of a process's resources that can leak.

use crate::stage::{PATIENCE, Stage, wait_until};
use gst::glib;
use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Counts by kind; files by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census(BTreeMap<String, usize>);

impl Census {
    pub fn of(pid: u32, stage: &Stage) -> Self {
        let place = |what: &str| PathBuf::from(format!("/proc/{pid}/{what}"));
        let entries = |path: PathBuf| fs::read_dir(&path).map_or(0, Iterator::count);
        // GLib starts a thread that starts others, and keeps it.
        let is_ours =
            |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name != "pool-spawner\n");
        let tasks = fs::read_dir(place("task")).into_iter().flatten().flatten();
        let threads = tasks.map(|task| task.path()).filter(is_ours).count();
        let maps = fs::read_to_string(place("maps")).expect("the process is there");
        let mut counts = BTreeMap::from([
            ("descriptors".to_owned(), entries(place("fd"))),
            ("threads".to_owned(), threads),
            ("mappings".to_owned(), maps.lines().filter(|line| line.contains("memfd:frameshare")).count()),
        ]);
        // The folder is made with the first socket.
        for entry in fs::read_dir(stage.path("frameshare")).into_iter().flatten() {
            let name = entry.expect("an entry").file_name();
            counts.insert(format!("file {}", name.display()), 1);
        }
        Self(counts)
    }

    /// The census of this process.
    pub fn here(stage: &Stage) -> Self {
        Self::of(std::process::id(), stage)
    }

    /// The census of this process once it shares, reads and runs nothing more than at this census,
    /// which was taken before the first pipeline: resources of a stopped pipeline may take a moment
    /// to disappear, and would otherwise hide as many leaks.
    pub fn at_rest(&self, stage: &Stage) -> Self {
        let mut census = Self::here(stage);
        wait_until("nothing is shared, read and run", || {
            census = Self::here(stage);
            ["mappings", "threads"].iter().all(|&what| census.0[what] <= self.0[what])
        });
        census
    }

    /// Tolerates this number of additional slots: their number depends on the speed of releases.
    /// The compared runs must be able to leak more than that.
    pub fn with_slots(mut self, count: usize) -> Self {
        for what in ["mappings", "descriptors"] {
            self.0.entry(what.into()).and_modify(|there| *there += count);
        }
        self
    }

    /// Resources of which there are more now than before.
    pub fn growth(&self, now: &Self) -> Vec<String> {
        let more = |(what, count): (&String, &usize)| {
            let before = self.0.get(what).copied().unwrap_or(0);
            (*count > before).then(|| format!("{what}: {count} instead of {before}"))
        };
        now.0.iter().filter_map(more).collect()
    }

    /// Waits until a process has nothing more than at this census: threads take a moment to end,
    /// and a process to notice the end of its peer.
    pub fn compare_of(&self, pid: u32, stage: &Stage) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let growth = self.growth(&Self::of(pid, stage));
            if growth.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "process {pid} left behind: {growth:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn compare_here(&self, stage: &Stage) {
        self.compare_of(std::process::id(), stage);
    }
}

/// Runs a test in a process of its own, without the resources of other tests. Call it first in the
/// test with the test's path in this binary; it returns true in that other process.
pub fn is_alone(test: &str) -> bool {
    const ALONE: &str = "FRAMESHARE_TEST_ALONE";
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        // GLib would keep the threads of stopped pipelines for another 15 s.
        glib::ThreadPool::set_max_unused_threads(Some(0));
        return true;
    }
    let own = std::env::current_exe().expect("a test has a path");
    let output = Command::new(own)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, test)
        .output()
        .expect("it runs once more");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    false
}
