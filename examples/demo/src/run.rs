// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child processes: their start, their reports, and their end.

use crate::{
    log::{EXPORTER, Log, PROCESSES},
    report::Report,
    table::Table,
};
use anyhow::{Context, Result, ensure};
use frameshare::{Endpoint, StreamName, observer::Observer};
use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Interval in which the table is drawn.
const REFRESH: Duration = Duration::from_millis(100);
/// Time for the processes to end by themselves once the exporter was stopped or has failed.
const GRACE: Duration = Duration::from_millis(800);

pub struct Run {
    endpoint: Endpoint,
    observer: Option<Observer>,
    interrupted: Arc<AtomicBool>,
    children: Vec<(usize, Child)>,
    /// Standard input of the exporter: a line starts the video, the end of the input stops it.
    exporter: Option<ChildStdin>,
    sender: Sender<(usize, Report)>,
    reports: Receiver<(usize, Report)>,
    table: Table,
    log: Log,
}

impl Run {
    pub fn new(stream: &StreamName, loops: u32, interrupted: Arc<AtomicBool>) -> Result<Self> {
        let (sender, reports) = channel();
        Ok(Self {
            endpoint: Endpoint::of_stream(stream)?,
            observer: None,
            interrupted,
            children: Vec::new(),
            exporter: None,
            sender,
            reports,
            table: Table::new(loops),
            log: Log::default(),
        })
    }

    /// Starts this program in a job.
    pub fn start(&mut self, process: usize, arguments: &[&OsStr]) -> Result<()> {
        let mut command = Command::new(env::current_exe().context("cannot find the path of this program")?);
        command
            .args(arguments)
            // Ctrl-C goes to the first process only: it ends the video, and the other processes end
            // with it.
            .process_group(0)
            .stdin(if process == EXPORTER { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot start the {}", PROCESSES[process]))?;
        self.exporter = child.stdin.take().or(self.exporter.take());
        if let Some(reader) = self.log.readers.get_mut(process) {
            reader.pid = child.id();
        }
        let (stdout, sender) = (child.stdout.take().context("no pipe")?, self.sender.clone());
        self.children.push((process, child));
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let report = serde_json::from_str(&line).unwrap_or(Report::Message(line));
                let _ = sender.send((process, report));
            }
        });
        Ok(())
    }

    /// Waits until all processes have ended, and returns the log. The failure of a reader after the
    /// start of the video is logged, and the other processes continue.
    ///
    /// # Errors
    ///
    /// A failure of the exporter, or of any process before the start of the video.
    pub fn wait(mut self) -> Result<Log> {
        let (mut is_started, mut refreshed, mut deadline) = (false, Instant::now(), None);
        let mut failed = Vec::new();
        while !self.children.is_empty() {
            if let Ok((process, report)) = self.reports.recv_timeout(REFRESH / 10) {
                self.note(process, report);
            }
            failed.extend(self.collect()?);
            if refreshed.elapsed() >= REFRESH {
                refreshed = Instant::now();
                self.observe();
                is_started = is_started || self.start_video();
                self.table.draw(&self.log);
            }
            let is_lost =
                failed.contains(&EXPORTER) || failed.len() >= 3 || !is_started && !failed.is_empty();
            if is_lost || self.interrupted.load(Relaxed) {
                self.exporter = None;
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + GRACE) {
                    self.kill();
                }
            }
        }
        // The pipes of processes that have ended may still hold reports.
        drop(std::mem::replace(&mut self.sender, channel().0));
        while let Ok((process, report)) = self.reports.recv() {
            self.note(process, report);
        }
        self.table.draw(&self.log);
        ensure!(self.log.exported.0 > 0, "the exporter did not finish");
        Ok(std::mem::take(&mut self.log))
    }

    fn note(&mut self, process: usize, report: Report) {
        match report {
            Report::Message(text) => self.table.say(&format!("{}: {text}", PROCESSES[process])),
            report => self.log.note(process, report),
        }
    }

    /// Removes the processes that have ended; returns those that failed.
    fn collect(&mut self) -> Result<Vec<usize>> {
        let mut failed = Vec::new();
        for (process, mut child) in std::mem::take(&mut self.children) {
            match child.try_wait()? {
                None => self.children.push((process, child)),
                Some(status) if status.success() => {}
                Some(status) => {
                    self.table.say(&format!("{} failed ({status})", PROCESSES[process]));
                    if let Some(reader) = self.log.readers.get_mut(process) {
                        reader.failure = Some(format!("failed ({status})"));
                    }
                    failed.push(process);
                }
            }
        }
        Ok(failed)
    }

    /// Gets the state of the stream and its readers. An observer takes no frames, and the exporter
    /// does not count it as a reader.
    fn observe(&mut self) {
        let connect = || Observer::connect(&self.endpoint, REFRESH).ok();
        self.observer = self.observer.take().or_else(connect);
        match self.observer.as_mut().map(Observer::snapshot) {
            Some(Ok(snapshot)) => self.log.snapshot = Some(snapshot.clone()),
            _ => self.observer = None,
        }
    }

    /// Starts the video if all readers are connected; returns whether it was started.
    fn start_video(&mut self) -> bool {
        let is_connected = |pid| self.log.states().iter().any(|state| state.pid == pid);
        let Some(exporter) = &mut self.exporter else { return false };
        self.log.readers.iter().all(|reader| is_connected(reader.pid))
            && exporter.write_all(b"start\n").is_ok()
    }

    fn kill(&mut self) {
        for (process, mut child) in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
            self.table.say(&format!("{} was killed", PROCESSES[process]));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.kill();
    }
}
