// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs programs, and judges their runs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::{fs::symlink, process::ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use frameshare_tests::imports::sources;

use crate::program::{Language, Program};

/// Limit of a run. A program takes a fraction of a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs programs in a folder of its own.
pub struct Runner {
    folder: tempfile::TempDir,
    languages: Vec<Language>,
}

impl Runner {
    /// Builds the workers. A language whose worker cannot be built is left out.
    pub fn new() -> Result<Runner> {
        let mut runner = Runner { folder: tempfile::tempdir()?, languages: vec![Language::Rust] };
        for (language, made) in [(Language::C, runner.make_c()), (Language::Python, runner.make_python())] {
            match made {
                Ok(()) => runner.languages.push(language),
                Err(error) => println!("SKIP gpu-programs-{}: {error:#}", language.name()),
            }
        }
        Ok(runner)
    }

    /// The languages whose workers are available.
    pub fn languages(&self) -> &[Language] {
        &self.languages
    }

    fn make_c(&self) -> Result<()> {
        let library = self.folder.path().join("libframeshare.so.0");
        symlink(self::library("frameshare_c")?, &library)?;
        let output = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
            .arg(repository().join("crates/frameshare-c/include"))
            .arg(repository().join("tests/programs/src/worker/worker.c"))
            .arg("-o")
            .arg(self.folder.path().join("worker"))
            .arg(&library)
            .args(["-ldl", "-Xlinker", "-rpath", "-Xlinker"])
            .arg(self.folder.path())
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Makes the package of the extension module that this build has.
    fn make_python(&self) -> Result<()> {
        let package = self.folder.path().join("frameshare");
        std::fs::create_dir(&package)?;
        for file in std::fs::read_dir(repository().join("crates/frameshare-python/python/frameshare"))? {
            let file = file?;
            symlink(file.path(), package.join(file.file_name()))?;
        }
        // `cargo test` builds the library for C, but not this one.
        let module = library("_frameshare")?;
        let is_old = newest_source()? > module.metadata()?.modified()?;
        ensure!(
            !is_old,
            "{} is older than its sources: `cargo build --workspace --lib --examples`",
            module.display()
        );
        // A copy: another build may replace the file meanwhile.
        std::fs::copy(module, package.join("_frameshare.abi3.so"))?;
        let import = ["-c", "import frameshare"];
        let output = Command::new("python3").args(import).env("PYTHONPATH", self.folder.path()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn worker(&self, language: Language) -> Result<Command> {
        match language {
            Language::Rust => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("worker");
                Ok(command)
            }
            Language::C => Ok(Command::new(self.folder.path().join("worker"))),
            Language::Python => {
                let mut command = Command::new("python3");
                command.arg(repository().join("tests/programs/src/worker/worker.py"));
                command.env("PYTHONPATH", self.folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
                Ok(command)
            }
        }
    }

    /// Runs a program. Returns what is wrong with its run: nothing if it is empty.
    pub fn run(&self, program: &Program) -> Result<String> {
        self.run_in(program, tempfile::tempdir_in(self.folder.path())?.path())
    }

    /// As [`Runner::run`], with the trace and all other files of the run in an empty folder.
    pub fn run_in(&self, program: &Program, folder: &Path) -> Result<String> {
        let file = folder.join("program");
        std::fs::write(&file, program.to_string())?;
        let (errors, trace) = (folder.join("violations"), folder.join("trace"));
        let mut running = Vec::new();
        let (sender, lines) = mpsc::channel();
        for (index, process) in program.processes.iter().enumerate() {
            let log = folder.join(format!("{index}.log"));
            let mut child = self
                .worker(process.language)?
                .arg(&file)
                .arg(index.to_string())
                .arg(folder)
                .env("SIMCUDA_ERRORS", &errors)
                .env("SIMCUDA_ORDER", &trace)
                .envs(program.environment.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(std::fs::File::create(&log)?)
                .spawn()
                .context("cannot start a worker")?;
            let output = BufReader::new(child.stdout.take().context("no output")?);
            let sender = sender.clone();
            std::thread::spawn(move || {
                output.lines().map_while(Result::ok).for_each(|line| _ = sender.send((index, line)));
                let _ = sender.send((index, String::new()));
            });
            running.push(Running { child, log, has_ended: false });
        }
        drop(sender);
        let until = Instant::now() + LIMIT;
        let mut failure = String::new();
        for _ in ["ready", "done"] {
            meet(&mut running, &lines, until);
        }
        for (index, running) in running.iter_mut().enumerate() {
            let dies = program.processes[index].has("die");
            failure += &running.judge(index, dies, until)?;
        }
        failure += &std::fs::read_to_string(&errors).unwrap_or_default();
        if failure.is_empty() {
            failure += &check_order(&trace);
        }
        Ok(failure)
    }
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A shared library of the same build as this program.
fn library(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let path = program.with_file_name("deps").join(format!("lib{name}.so"));
    ensure!(path.exists(), "{} is not built", path.display());
    Ok(path)
}

/// Returns when a source file of the product's crates was last changed.
fn newest_source() -> Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for package in std::fs::read_dir(repository().join("crates"))? {
        for source in sources(&package?.path().join("src")) {
            newest = newest.max(source.metadata()?.modified()?);
        }
    }
    Ok(newest)
}

struct Running {
    child: Child,
    log: PathBuf,
    has_ended: bool,
}

/// Waits until all processes have sent a line or ended, then lets them go on.
fn meet(running: &mut [Running], lines: &mpsc::Receiver<(usize, String)>, until: Instant) {
    let mut missing: Vec<usize> = (0..running.len()).filter(|index| !running[*index].has_ended).collect();
    while !missing.is_empty() {
        let Ok((index, line)) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            return;
        };
        running[index].has_ended |= line.is_empty();
        missing.retain(|other| *other != index);
    }
    for running in running {
        if let Some(input) = &mut running.child.stdin {
            let _ = input.write_all(b"go on\n");
        }
    }
}

impl Running {
    /// Waits for the end of a process, and returns what is wrong with it.
    fn judge(&mut self, index: usize, dies: bool, until: Instant) -> Result<String> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break Some(status),
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                None => {
                    let stacks = stacks(self.child.id());
                    self.child.kill()?;
                    self.child.wait()?;
                    return Ok(format!("process {index} did not end in time\n{stacks}{}", self.text()));
                }
            }
        };
        let is_right = status.is_some_and(|status| status.success() || dies && status.signal() == Some(9));
        if is_right {
            return Ok(String::new());
        }
        let status = status.map_or_else(String::new, |status| status.to_string());
        Ok(format!("process {index}: {status}\n{}", self.text()))
    }

    fn text(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().take(30).map(|line| format!("  {line}\n")).collect()
    }
}

/// Names the kernel functions that the threads of a process wait in.
fn stacks(process: u32) -> String {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return String::new() };
    let mut text = String::new();
    for thread in threads.flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        text += &format!("  thread {} waits in {}\n", read("comm").trim(), read("wchan"));
    }
    text
}

/// Checks the order of all accesses of a run.
fn check_order(trace: &Path) -> String {
    // A program that fails at its begin leaves none.
    if !trace.exists() {
        return String::new();
    }
    let text = std::fs::read_to_string(trace).unwrap_or_default();
    let mut lines: Vec<&str> = text.lines().collect();
    // A killed process is dead from its last line on. That says so only later, and an exporter that
    // sees the end of the connection takes the slots back before.
    for index in 0..lines.len() {
        if let Some(process) = lines[index].strip_suffix(" dying") {
            let is_own = |line: &&str| line.strip_prefix(process).is_some_and(|rest| rest.starts_with(' '));
            let last = lines[..index].iter().rposition(is_own).map_or(0, |last| last + 1);
            lines[last..=index].rotate_right(1);
        }
    }
    let mut checker = gpu_order::Checker::new();
    lines.iter().try_for_each(|line| checker.feed(line)).err().map_or_else(String::new, |it| it.to_string())
}
