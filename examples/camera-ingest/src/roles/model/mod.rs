// SPDX-License-Identifier: MIT OR Apache-2.0

//! Model: starts the Python program for the cameras of the process, and passes its reports on.
//!
//! The program gets the streams of frames and results as arguments, `cam0=cam0.model`, and prints
//! one report a line, in JSON. It ends when its standard input ends: so it does not outlive this
//! process. Where Python or one of its packages is not installed the role is off, with the reason.

use super::Context;
use crate::report::{Condition, Report};
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Environment variable with the interpreter, `python3` by default.
const PYTHON: &str = "CAMERA_INGEST_PYTHON";

/// Packages that the program imports, and what they are called where they are missing.
const CHECK: &str = "
import importlib.util, sys
names = {'torch': 'PyTorch', 'frameshare': 'the Python package frameshare'}
missing = [text for name, text in names.items() if importlib.util.find_spec(name) is None]
if sys.version_info < (3, 11):
    missing.insert(0, 'Python 3.11 or newer')
print(', '.join(missing), end='')
";

/// Time of one wait of a role that is off.
const IDLE: Duration = Duration::from_secs(3600);

/// Interval of checks whether the program has ended.
const TICK: Duration = Duration::from_millis(200);

/// Maximum time that the program may take to end.
const END: Duration = Duration::from_millis(700);

/// Runs the program until the role is stopped, or reports why it is off.
pub fn run(context: &Context) -> Result<()> {
    let python = env::var_os(PYTHON).unwrap_or_else(|| "python3".into());
    if let Some(why) = missing(&python) {
        let text = format!("{why} is not installed");
        report(context, Condition::Off, &text);
        while context.pause(IDLE) {}
        return Ok(());
    }
    let program = &context.config.model.program;
    if !program.is_file() {
        report(context, Condition::Off, &format!("there is no program {}", program.display()));
        while context.pause(IDLE) {}
        return Ok(());
    }
    report(context, Condition::Waiting, "loads the model");
    supervise(start(&python, context)?, context)
}

/// Returns what the program needs and this machine lacks.
fn missing(python: &OsString) -> Option<String> {
    let python_itself = || Some(format!("Python ({})", python.to_string_lossy()));
    match Command::new(python).args(["-c", CHECK]).stdin(Stdio::null()).output() {
        Ok(checked) if checked.status.success() => {
            Some(String::from_utf8_lossy(&checked.stdout).into_owned()).filter(|names| !names.is_empty())
        }
        _ => python_itself(),
    }
}

fn report(context: &Context, condition: Condition, text: &str) {
    for camera in context.cameras.iter().filter(|camera| camera.model) {
        let (camera, text) = (camera.name.clone(), text.to_owned());
        context.reporter.send(&Report { camera, condition, text, values: BTreeMap::new() });
    }
}

fn start(python: &OsString, context: &Context) -> Result<Child> {
    let model = &context.config.model;
    let mut command = Command::new(python);
    crate::config::hide_variables(command.arg(&model.program));
    if let Some(device) = &model.device {
        command.args(["--device", device]);
    }
    let cameras = context.cameras.iter().filter(|camera| camera.model);
    command.args(cameras.map(|camera| format!("{}={}", camera.frames(), camera.model_results())));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().with_context(|| format!("cannot start {}", model.program.display()))
}

/// Passes reports on until the program ends, which is an error unless the role is stopped.
fn supervise(mut child: Child, context: &Context) -> Result<()> {
    let lines = child.stdout.take().context("the program has no standard output")?;
    let status = thread::scope(|scope| {
        scope.spawn(|| pass_on(lines, context));
        end_of(&mut child, context)
    })?;
    if !context.stop.is_set() {
        bail!("{} ended ({status})", context.config.model.program.display());
    }
    Ok(())
}

/// Waits for the end of the program. When the role is stopped it is ended, by SIGKILL if SIGTERM
/// takes too long.
fn end_of(child: &mut Child, context: &Context) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if !context.pause(TICK) {
            break;
        }
    }
    kill_process(Pid::from_child(child), Signal::TERM)?;
    let deadline = Instant::now() + END;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    Ok(child.wait()?)
}

/// Passes the reports of the program on; other lines go to the log.
fn pass_on(lines: ChildStdout, context: &Context) {
    for line in BufReader::new(lines).lines().map_while(Result::ok) {
        match serde_json::from_str::<Report>(&line) {
            Ok(report) => context.reporter.send(&report),
            Err(_) => log::info!("{line}"),
        }
    }
}
