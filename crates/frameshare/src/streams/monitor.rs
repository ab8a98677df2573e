// SPDX-License-Identifier: MIT OR Apache-2.0

//! Monitor of streams: reports each one that appears or vanishes.
//!
//! The kernel reports new and removed sockets, and the closing of a lock file, which is the end of
//! an exporter that was killed. These events are not in step with the state that they announce: a
//! new socket is not listened on yet, and a dying process closes its files one by one. A stream is
//! therefore checked at each event, and again some times after the last one.

use super::{StreamInfo, find, names_in, stream_of};
use crate::{
    Interrupt, StreamName,
    foreign::report,
    named_folder::NamedFolder,
    sys::{FolderChange, FolderWatch, Timeout, wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    time::{Duration, Instant},
};

/// Times between the last event of a stream and its checks.
const CHECKS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(20), Duration::from_millis(200), Duration::from_secs(1)];

/// Interval of attempts to watch a folder whose parent is missing.
const BLIND_INTERVAL: Duration = Duration::from_secs(1);

/// A change of the list of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamChange {
    /// The stream is shared from now on.
    Appeared(StreamInfo),
    /// The stream is no longer shared by that process.
    Vanished(StreamInfo),
}

/// Reports the streams that are shared, and then every change.
#[derive(Debug)]
pub struct StreamMonitor {
    folder: NamedFolder,
    watch: FolderWatch,
    known: BTreeMap<StreamName, StreamInfo>,
    /// Streams with recent events: the time of the last one, and the number of checks since then.
    unsettled: BTreeMap<StreamName, (Instant, usize)>,
    changes: VecDeque<StreamChange>,
}

impl StreamMonitor {
    /// Starts to watch the folder of streams that have a name. It may be created later.
    ///
    /// # Errors
    /// The error of inotify(7), such as a lack of watches or files.
    pub fn new() -> io::Result<Self> {
        Self::of(NamedFolder::own())
    }

    fn of(folder: NamedFolder) -> io::Result<Self> {
        let watch = FolderWatch::new(folder.path().to_owned())?;
        let (known, unsettled, changes) = Default::default();
        let mut monitor = Self { folder, watch, known, unsettled, changes };
        monitor.check_everything();
        Ok(monitor)
    }

    /// Waits for the next change; the streams that exist at the start come first. None after the
    /// timeout, or if the wait was interrupted.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> io::Result<Option<StreamChange>> {
        let timeout = Timeout::after(timeout);
        loop {
            self.collect();
            if let Some(change) = self.changes.pop_front() {
                return Ok(Some(change));
            }
            if interrupt.is_set() || timeout.is_over() {
                return Ok(None);
            }
            let until = timeout.min(self.next_check());
            let mut fds = [PollFd::new(&self.watch, PollFlags::IN), PollFd::new(interrupt, PollFlags::IN)];
            wait(&mut fds, until)?;
        }
    }

    /// Reads the events of the folder, and makes the checks that are due.
    fn collect(&mut self) {
        for change in self.watch.changes() {
            match change {
                FolderChange::File(file) => {
                    if let Some(name) = stream_of(&file) {
                        self.unsettled.insert(name, (Instant::now(), 0));
                    }
                }
                FolderChange::Everything => self.check_everything(),
            }
        }
        let now = Instant::now();
        let due = |(since, checks): &(Instant, usize)| *since + CHECKS[*checks] <= now;
        let names: Vec<_> =
            self.unsettled.iter().filter(|(_, at)| due(at)).map(|(name, _)| name.clone()).collect();
        names.into_iter().for_each(|name| self.check(name));
    }

    fn check_everything(&mut self) {
        let names = self.folder.check().and_then(|()| names_in(self.folder.path())).unwrap_or_else(|error| {
            report!(warn, "cannot list the streams in {}: {error}", self.folder.path().display());
            Vec::new()
        });
        let now = Instant::now();
        let all = names.into_iter().chain(self.known.keys().cloned());
        self.unsettled.extend(all.map(|name| (name, (now, 0))));
    }

    /// Compares a stream with what was reported of it.
    fn check(&mut self, name: StreamName) {
        if let Some((_, checks)) = self.unsettled.get_mut(&name) {
            *checks += 1;
            if *checks == CHECKS.len() {
                self.unsettled.remove(&name);
            }
        }
        let is_full = self.known.len() >= super::MAX_STREAMS && !self.known.contains_key(&name);
        let may_list = !is_full && self.folder.check().is_ok();
        let found = if may_list { find(self.folder.path(), name.clone()) } else { None };
        // A busy exporter does not tell its process.
        let is_same = match (&found, self.known.get(&name)) {
            (Some(found), Some(known)) => found.exporter_pid.is_none() || found == known,
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return;
        }
        self.changes.extend(self.known.remove(&name).map(StreamChange::Vanished));
        if let Some(found) = found {
            self.known.insert(name, found.clone());
            self.changes.push_back(StreamChange::Appeared(found));
        }
    }

    fn next_check(&self) -> Timeout {
        let checks = self.unsettled.values().map(|(since, checks)| *since + CHECKS[*checks]);
        let blind = self.watch.is_blind().then(|| Instant::now() + BLIND_INTERVAL);
        checks.chain(blind).min().map_or(Timeout::Never, Timeout::At)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Endpoint,
        exporter::{Config, Exporter},
    };
    use std::{
        os::unix::process::CommandExt,
        path::Path,
        process::{Command, Stdio},
        thread,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn exporter(folder: &Path, name: &str) -> Exporter {
        let endpoint = Endpoint::at(folder.join(format!("{name}.sock"))).unwrap();
        Exporter::bind(&endpoint, Config::default(), |_| {}).unwrap()
    }

    fn monitor_of(folder: &Path) -> StreamMonitor {
        StreamMonitor::of(NamedFolder::at(folder.to_owned(), rustix::process::geteuid().as_raw())).unwrap()
    }

    /// Returns the next change as a text.
    fn next(monitor: &mut StreamMonitor) -> String {
        match monitor.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap() {
            Some(StreamChange::Appeared(stream)) => format!("+{}", stream.name),
            Some(StreamChange::Vanished(stream)) => format!("-{}", stream.name),
            None => "nothing".into(),
        }
    }

    fn settle(monitor: &mut StreamMonitor) {
        let last = Duration::from_millis(1100);
        assert_eq!(monitor.next(Some(last), &Interrupt::new().unwrap()).unwrap(), None);
        assert!(monitor.unsettled.is_empty());
    }

    #[test]
    fn streams_appear_and_vanish_with_their_exporters() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("frameshare");
        let mut monitor = monitor_of(&folder);
        let interrupt = Interrupt::new().unwrap();
        assert_eq!(monitor.next(Some(Duration::ZERO), &interrupt).unwrap(), None);
        std::fs::create_dir(&folder).unwrap();
        let first = exporter(&folder, "a");
        assert_eq!(next(&mut monitor), "+a");
        let second = exporter(&folder, "b");
        assert_eq!(next(&mut monitor), "+b");
        drop(first);
        assert_eq!(next(&mut monitor), "-a");
        settle(&mut monitor);
        let mut other = monitor_of(&folder);
        assert_eq!(next(&mut other), "+b");
        drop(second);
        assert_eq!((next(&mut monitor), next(&mut other)), ("-b".into(), "-b".into()));
        // The folder is removed and created again.
        let third = exporter(&folder, "c");
        assert_eq!(next(&mut monitor), "+c");
        drop(third);
        assert_eq!(next(&mut monitor), "-c");
        std::fs::remove_dir_all(&folder).unwrap();
        settle(&mut monitor);
        std::fs::create_dir(&folder).unwrap();
        let _fourth = exporter(&folder, "d");
        assert_eq!(next(&mut monitor), "+d");
    }

    #[test]
    fn interrupt_ends_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut monitor = monitor_of(folder.path());
        let interrupt = Interrupt::new().unwrap();
        let other = interrupt.clone();
        let waiting = thread::spawn(move || monitor.next(None, &other).unwrap());
        interrupt.set();
        assert_eq!(waiting.join().unwrap(), None);
    }

    /// The exporter that the next test kills: this test's own process, started by it.
    #[test]
    fn exporter_in_a_process() {
        let Some(folder) = std::env::var_os("FRAMESHARE_TEST_FOLDER") else { return };
        let _exporter = exporter(Path::new(&folder), "killed");
        thread::sleep(PATIENCE);
    }

    #[test]
    fn stream_of_killed_exporter_vanishes() {
        let folder = tempfile::tempdir().unwrap();
        let mut monitor = monitor_of(folder.path());
        for _ in 0..3 {
            let mut child = Command::new("/proc/self/exe")
                .arg0("exporter")
                .args(["--exact", "streams::monitor::tests::exporter_in_a_process"])
                .env("FRAMESHARE_TEST_FOLDER", folder.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            assert_eq!(next(&mut monitor), "+killed");
            let pid = monitor.known.values().next().unwrap().exporter_pid;
            assert_eq!(pid, Some(child.id()));
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(next(&mut monitor), "-killed");
            assert!(folder.path().join("killed.sock").exists(), "the socket stays");
        }
        settle(&mut monitor);
    }
}
