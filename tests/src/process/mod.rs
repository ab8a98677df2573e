// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes of a test: start, output, signals, and exit within the documented time.

mod programs;
mod run;
mod stop;

pub use run::TestRun;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    process::{Child, Command},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};
use stop::Stop;

/// Maximum time of any step; a longer one hangs.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Held while a process starts: until its `exec` it has copies of all files of this process, locks
/// on stream names included, so a test must not take a name again in that moment.
static STARTING: Mutex<()> = Mutex::new(());

/// Blocks the start of processes until the guard is dropped.
pub fn block_process_starts() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a process.
#[derive(Debug)]
pub struct Outcome {
    /// Whether the exit status is 0.
    pub ok: bool,
    /// The signal that killed the process, if one did.
    pub signal: Option<i32>,
    /// Lines of stdout.
    pub lines: Vec<String>,
    /// All of stderr.
    pub stderr: String,
}

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    lines: mpsc::Receiver<(Instant, String)>,
    seen: Vec<String>,
    stderr: Option<thread::JoinHandle<String>>,
    stop: Stop,
    /// Time at which its output ended: the test may wait for it much later.
    ended: Arc<OnceLock<Instant>>,
}

impl Process {
    /// Starts a command whose stdout and stderr are pipes.
    fn start(mut command: Command, what: &str) -> Self {
        let starting = block_process_starts();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(starting);
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let mut stderr = child.stderr.take().expect("stderr is a pipe");
        let (sender, lines) = mpsc::channel();
        let ended = Arc::new(OnceLock::new());
        let end = ended.clone();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
            let _ = end.set(Instant::now());
        });
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self {
            what: what.to_owned(),
            child,
            lines,
            seen: Vec::new(),
            stderr: Some(stderr),
            stop: Stop::default(),
            ended,
        }
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process has exited.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Kills the process with SIGKILL, so that it cleans nothing up.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Kills the process, and returns its stderr.
    pub fn kill_for_stderr(mut self) -> String {
        self.kill();
        self.take_stderr()
    }

    /// Stops the process with SIGSTOP: it exists without running.
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
        // Some threads may still run for a moment.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        wait_until(&format!("{} is stopped", self.what), || {
            waitid(WaitId::Pid(Pid::from_child(&self.child)), stopped).expect("a child").is_some()
        });
    }

    /// Continues a suspended process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGINT, which stops a pipeline.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child can be signaled");
    }

    /// Waits until the process prints a JSON line with this event, and returns the line.
    pub fn wait_for(&mut self, event: &str) -> Value {
        self.find_event(event).unwrap_or_else(|| {
            let _ = self.child.kill();
            let stderr = self.take_stderr();
            panic!("{}: no event {event:?}\n{}\n{stderr:?}", self.what, self.seen.join("\n"))
        })
    }

    /// Returns the next line of stdout.
    pub fn next_line(&mut self) -> String {
        let Ok((at, line)) = self.lines.recv_timeout(PATIENCE) else {
            let _ = self.child.kill();
            let stderr = self.take_stderr();
            panic!("{}: no further line\n{}\n{stderr}", self.what, self.seen.join("\n"))
        };
        self.record(at, line.clone());
        line
    }

    /// Returns the last JSON line so far with this event; lines up to the present one are skipped
    /// from now on.
    pub fn last(&mut self, event: &str) -> Option<Value> {
        let begin = self.seen.len();
        while let Ok((at, line)) = self.lines.try_recv() {
            self.record(at, line);
        }
        let mut values =
            self.seen[begin..].iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.rfind(|value| value["event"] == event)
    }

    /// Returns the next JSON line with this event, or none if the process ends or times out before.
    pub fn find_event(&mut self, event: &str) -> Option<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (at, line) = self.lines.recv_timeout(left).ok()?;
            self.record(at, line.clone());
            if let Ok(value) = serde_json::from_str::<Value>(&line)
                && value["event"] == event
            {
                return Some(value);
            }
        }
    }

    /// Waits until the process reports that it has stopped, and checks the duration. The process
    /// may be unable to exit.
    pub fn wait_until_stopped(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.stop.is_done() {
            let left = deadline.saturating_duration_since(Instant::now());
            let (at, line) = self.lines.recv_timeout(left).unwrap_or_else(|_| {
                let _ = self.child.kill();
                panic!("{} does not report its stop\n{}", self.what, self.seen.join("\n"))
            });
            self.record(at, line);
        }
        self.stop.check_without_exit(&self.what);
    }

    fn record(&mut self, at: Instant, line: String) {
        self.stop.note(&line, at);
        self.seen.push(line);
    }

    fn take_stderr(&mut self) -> String {
        self.stderr.take().map(|thread| thread.join().unwrap_or_default()).unwrap_or_default()
    }

    /// Waits until the process exits by itself, and checks the duration of its stop and exit.
    pub fn finish(mut self) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                self.stop.exited(self.ended.get().copied().unwrap_or_else(Instant::now));
                break Some(status);
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let stderr = self.take_stderr();
        while let Ok((at, line)) = self.lines.recv() {
            self.record(at, line);
        }
        let Some(status) = status else {
            panic!("{} hangs\n{}\n{stderr}", self.what, self.seen.join("\n"));
        };
        self.stop.check(&self.what);
        Outcome {
            ok: status.success(),
            signal: status.signal(),
            lines: std::mem::take(&mut self.seen),
            stderr,
        }
    }

    /// Waits until the process exits by itself, with success.
    pub fn expect_success(self) -> Outcome {
        let what = self.what.clone();
        let outcome = self.finish();
        assert!(outcome.ok, "{what} failed\n{}\n{}", outcome.lines.join("\n"), outcome.stderr);
        outcome
    }

    /// Waits until the process fails, and returns its stderr.
    pub fn expect_failure(self) -> String {
        let what = self.what.clone();
        let outcome = self.finish();
        assert!(!outcome.ok, "{what} did not fail\n{}\n{}", outcome.lines.join("\n"), outcome.stderr);
        outcome.stderr
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    /// Returns the JSON lines with this event.
    pub fn events(&self, event: &str) -> Vec<Value> {
        let values = self.lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.filter(|value| value["event"] == event).collect()
    }

    /// Returns the summary that a peer printed at its end.
    pub fn summary(&self) -> Value {
        self.events("summary").pop().unwrap_or_else(|| panic!("no summary\n{}", self.stderr))
    }
}
