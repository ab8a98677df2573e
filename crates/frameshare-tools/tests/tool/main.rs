// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command beside live streams of other processes.

mod doctor;
mod documents;
mod errors;
mod frames;
mod gpu;
mod images;
mod metrics;
mod recordings;
mod schema;
mod streams;
mod terminal;
mod top;

use frameshare_tests::process::{Process, TestRun};
use serde_json::Value;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::{Command, Stdio},
};

/// The program under test.
const TOOL: &str = env!("CARGO_BIN_EXE_frameshare");

/// Status and output of a run of the command.
struct Ran {
    status: i32,
    stdout: String,
    stderr: String,
}

/// Returns the command, in the runtime folder of a test run.
fn tool(run: &TestRun, arguments: &str) -> Command {
    let mut command = Command::new(TOOL);
    command.args(arguments.split_whitespace()).current_dir(run.path("")).stdin(Stdio::null());
    command.env("XDG_RUNTIME_DIR", run.path("")).env_remove("FRAMESHARE_PATH").env_remove("NO_COLOR");
    command
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("the command starts");
    let status = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or_default());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Ran { status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn run_tool(run: &TestRun, arguments: &str) -> Ran {
    ran(&mut tool(run, arguments))
}

/// Lets another user run the command in the folder of a test run, by [`run_as_other_user`].
fn admit_other_user(run: &TestRun) {
    fs::set_permissions(run.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    // The folder of build results may be closed to others. Another process copies: a child that
    // another test forks meanwhile would hold the copy open for writing, and `execve` would fail
    // with `ETXTBSY`.
    let copied = Command::new("cp").arg(TOOL).arg(run.path("frameshare-tool")).status();
    assert!(copied.expect("cp starts").success());
}

fn run_as_other_user(run: &TestRun, arguments: &str) -> Ran {
    let mut command = Command::new("setpriv");
    command.args("--reuid 65534 --regid 65534 --clear-groups ./frameshare-tool".split(' '));
    ran(command.args(arguments.split(' ')).current_dir(run.path("")))
}

/// Runs the command and returns its JSON.
fn json(run: &TestRun, arguments: &str) -> Value {
    let ran = run_tool(run, &format!("{arguments} --json"));
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    parse(arguments.split(' ').next().unwrap_or_default(), &ran.stdout)
}

/// Parses a line of a command's JSON, which the schema has to describe.
#[track_caller]
fn parse(command: &str, line: &str) -> Value {
    let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    schema::assert_valid(command, &value);
    value
}

/// Starts an exporter of the stream `s` that publishes until the test ends.
fn export(run: &TestRun, options: &str) -> Process {
    let frames = "--frames 100000000 --fps 100 --size 5000 --readers 0";
    let mut exporter = run.peer(&format!("export --socket {} {frames} {options}", run.socket("s")));
    exporter.wait_for("open");
    exporter
}

/// Starts a reader of the stream `s`.
fn read(run: &TestRun, options: &str) -> Process {
    let mut reader = run.peer(&format!("read --socket {} --quiet yes {options}", run.socket("s")));
    reader.wait_for("connected");
    reader
}
