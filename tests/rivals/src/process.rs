// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pipelines in processes of their own.

use crate::Setting;
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// `gst-launch-1.0` and its output. Killed on drop.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
    stderr: Option<JoinHandle<String>>,
}

/// The end of a process.
pub struct End {
    pub ok: bool,
    pub after: Duration,
    /// First error message.
    pub error: String,
}

/// Variables of `tests/gpu/mps.sh`: processes of this role are clients of NVIDIA's multi-process
/// service, whose daemon has its pipes in the folder.
const EXPORTERS: &str = "MPS_OF_EXPORTERS";
const READERS: &str = "MPS_OF_READERS";

fn command(setting: &Setting, user: &[&str]) -> Command {
    let mut words = setting.by.iter().map(String::as_str).chain(user.iter().copied());
    let mut command = Command::new(words.next().unwrap_or("env"));
    command.args(words);
    if !setting.by.is_empty() || !user.is_empty() {
        command.arg("env");
    }
    if !user.is_empty() || std::env::var_os("GST_REGISTRY").is_none() {
        command.arg(format!("GST_REGISTRY={}", setting.folder.join("registry.bin").display()));
    }
    command.args(setting.plugins.iter().map(|path| format!("GST_PLUGIN_PATH={path}")));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the version of GStreamer that it prints.
pub fn version(setting: &Setting) -> Result<String> {
    let output = command(setting, &[]).args(["gst-launch-1.0", "--version"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().nth(1).context("gst-launch-1.0 does not say its version")?.to_owned())
}

impl Process {
    /// Starts an exporting pipeline.
    pub fn exporter(setting: &Setting, pipeline: &str) -> Result<Self> {
        Self::begin(setting, &[], pipeline, EXPORTERS)
    }

    /// Starts a pipeline; `user` is a command that changes the user.
    pub fn start(setting: &Setting, user: &[&str], pipeline: &str) -> Result<Self> {
        Self::begin(setting, user, pipeline, READERS)
    }

    fn begin(setting: &Setting, user: &[&str], pipeline: &str, mps: &str) -> Result<Self> {
        // The daemon serves one user.
        let mps = std::env::var_os(mps).filter(|_| user.is_empty());
        let mut child = command(setting, user)
            .envs(mps.map(|folder| ("CUDA_MPS_PIPE_DIRECTORY", folder)))
            .args(["gst-launch-1.0", "-q", "-e"])
            .args(pipeline.split_whitespace())
            .spawn()
            .with_context(|| pipeline.to_owned())?;
        let stdout = child.stdout.take().context("a pipe")?;
        let mut stderr = child.stderr.take().context("a pipe")?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, lines, stderr: Some(stderr) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a number")?;
        Ok(kill_process(pid, signal)?)
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Printed checksums and their times.
    pub fn frames(&self) -> Vec<(Instant, String)> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let sum =
            |line: &str| line.split_whitespace().last().filter(|word| word.len() == 40).map(str::to_owned);
        lines.iter().filter_map(|(when, line)| Some((*when, sum(line)?))).collect()
    }

    /// Frames per second between two times.
    pub fn rate(&self, from: Instant, to: Instant) -> f64 {
        let count = self.frames().iter().filter(|(when, _)| (from..to).contains(when)).count();
        count as f64 / (to - from).as_secs_f64()
    }

    /// Waits for a number of frames; false after the timeout.
    pub fn wait_for_frames(&mut self, count: usize, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            if self.frames().len() >= count {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process exits; `None` after the timeout.
    pub fn end(&mut self, timeout: Duration) -> Result<Option<End>> {
        let begin = Instant::now();
        while begin.elapsed() < timeout {
            if let Some(status) = self.child.try_wait()? {
                let after = begin.elapsed();
                let text = self.stderr.take().map(|thread| thread.join().unwrap_or_default());
                let text = text.unwrap_or_default();
                let error = text.lines().find_map(|line| line.split_once("ERROR: ").map(|(_, rest)| rest));
                // Without the path of the element.
                let error = error.map(|error| error.split_once(": ").map_or(error, |(_, rest)| rest));
                return Ok(Some(End { ok: status.success(), after, error: error.unwrap_or("").to_owned() }));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(None)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
