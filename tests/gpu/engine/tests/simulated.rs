// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the suites on the simulated driver, with several seeds.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use frameshare_gpu_harness::Link;
use frameshare_gpu_harness::testing::{self, simulated::driver, times};

/// Suites that depend on which stream is slow. They run with the adversary, too, and with more
/// seeds in `make test-long`.
const SEEDED: [&str; 9] = [
    "engine-backlog",
    "engine-captures",
    "engine-fences",
    "engine-order",
    "engine-foreign",
    "engine-policies",
    "engine-downloads",
    "engine-two-gpus",
    "engine-waits",
];

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpu-engine");

fn suites(driver: &Path, seed: u64, names: &[&str]) -> Output {
    let arguments = [&["--frames", "60"], names].concat();
    testing::simulated::run(PROGRAM, driver, seed, &arguments)
}

fn must_pass(output: &Output, what: &str) {
    testing::must_pass(output, what);
    testing::tell_skipped("gpu-engine", output);
}

/// Without a context-wide record, a release waits on a worker thread and still covers the named
/// work in other contexts.
#[test]
fn deferred_release_covers_named_streams() {
    let driver = driver(&["cuCtxRecordEvent"]);
    let names = ["engine-fences/another-context-named", "engine-fences/another-context-unnamed"];
    must_pass(&suites(driver.path(), 1, &names), "without the context-wide record");
}

/// Failing driver calls; `faults` selects which call fails.
#[test]
fn downloads_and_in_place_frames_survive_failing_calls() {
    let driver = driver(&[]);
    for (faults, name) in [
        // Code 900, as if a stream were being captured at the first poll of a download.
        ("cuEventQuery:1:900", "engine-downloads/nothing-passes-a-download"),
        ("cuEventQuery:1+:1", "engine-downloads/owner-notified-whatever-becomes-of-the-frame"),
        ("cuStreamBatchMemOp:1:1", "engine-downloads/owner-notified-whatever-becomes-of-the-frame"),
        // No lossless reader loses a frame: the page of a fence, and host slots, one or all.
        ("cuMemHostRegister:1:2", "engine-downloads/lossless-readers-lose-nothing"),
        ("cuMemHostRegister:2:2", "engine-downloads/lossless-readers-lose-nothing"),
        ("cuMemHostRegister:3:2", "engine-downloads/lossless-readers-lose-nothing"),
        ("cuMemHostRegister:1+:2", "engine-downloads/lossless-readers-lose-nothing"),
        // The copies, and the wait for the writer.
        ("cuMemcpyDtoHAsync:1:1", "engine-downloads/reader-joins-during-a-download"),
        ("cuMemcpyDtoHAsync:3:1", "engine-downloads/reader-joins-during-a-download"),
        ("cuStreamWaitEvent:1:1", "engine-downloads/reader-joins-during-a-download"),
    ] {
        let mut command = testing::simulated::command(PROGRAM, driver.path(), 1, &[name]);
        must_pass(&command.env("SIMCUDA_FAIL", faults).output().unwrap(), faults);
    }
}

/// Drivers that register no host memory, as attribute 99 says.
#[test]
fn downloads_need_no_registered_memory() {
    let names = [
        "one-download-for-all",
        "gpu-far-behind",
        "lossless-readers-lose-nothing",
        "lossless-reader-at-the-slot-limit",
        "nothing-passes-a-download",
        "nothing-passes-a-frame-just-downloaded",
        "reader-joins-during-a-download",
        "formats-change",
        "stop-behind-a-busy-stream",
    ];
    let names = names.map(|name| format!("engine-downloads/{name}"));
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let driver = driver(&[]);
    let mut command = testing::simulated::command(PROGRAM, driver.path(), 1, &names);
    must_pass(&command.env("SIMCUDA_WITHHOLD", "99,113").output().unwrap(), "without registered memory");
}

/// Drivers without 64-bit memory operations and without interprocess events, which have no kind of
/// fence.
#[test]
fn downloads_need_no_fences() {
    let driver = driver(&[]);
    let names = ["engine-downloads/lossless-readers-lose-nothing"];
    let mut command = testing::simulated::command(PROGRAM, driver.path(), 1, &names);
    must_pass(&command.env("SIMCUDA_WITHHOLD", "122,125").output().unwrap(), "without fences");
}

/// Other releases do not wait for that worker thread.
#[test]
fn deferred_release_does_not_delay_other_releases() {
    let driver = driver(&["cuCtxRecordEvent"]);
    must_pass(
        &suites(driver.path(), 1, &["engine-order/releases-wait-for-no-gpu"]),
        "without the context-wide record",
    );
}

/// In each mode a thread captures in a loop while another takes and drops 1,000 frames with each
/// fence.
#[test]
fn named_frames_break_no_capture() {
    let frames = times(1000).to_string();
    let arguments = ["--frames", &frames, "engine-captures/frames-read-on-named-streams"];
    let output = testing::simulated::run(PROGRAM, driver(&[]).path(), 1, &arguments);
    must_pass(&output, "frames beside captures");
}

// One test each, since they mostly sleep and can run side by side.
#[test]
fn seeded_suites_pass() {
    for seed in 1..=times(1) as u64 {
        must_pass(&suites(driver(&[]).path(), seed, &SEEDED), &format!("seed {seed}"));
    }
}

#[test]
fn seeded_suites_pass_with_adversary() {
    let driver = driver(&[]);
    let arguments = [&["--frames", "60"], &SEEDED[..]].concat();
    let program = env!("CARGO_BIN_EXE_gpu-engine");
    let mut command = testing::simulated::command(program, driver.path(), 3, &arguments);
    // A case that the adversary cannot pass is skipped here, and runs without it above.
    testing::must_pass(&command.env("SIMCUDA_ADVERSARY", "1").output().unwrap(), "with the adversary");
}

#[test]
fn suites_with_killed_processes_pass() {
    must_pass(&suites(driver(&[]).path(), 1, &["engine-crashes"]), "engine-crashes");
}

#[test]
fn suites_without_seed_pass() {
    let names = ["engine-hostile", "engine-endurance", "engine-soak", "engine-steady", "engine-isolated"];
    must_pass(&suites(driver(&[]).path(), 1, &names), "suites that need one seed");
}

/// Runs a suite in a set-up of `tests/gpu/mps.sh`, whose daemon is a folder here; `variables` name
/// it for the roles that are clients of MPS.
fn under_mps(variables: &[&str], suite: &str) -> Output {
    let (driver, daemon) = (driver(&[]), tempfile::tempdir().unwrap());
    std::fs::write(daemon.path().join("control"), "").unwrap();
    let mut command = testing::simulated::command(PROGRAM, driver.path(), 1, &["--frames", "60", suite]);
    command.envs(variables.iter().map(|variable| (variable, daemon.path()))).output().unwrap()
}

#[test]
fn fault_of_mps_client_costs_its_peers_only() {
    for variables in [&[][..], &["MPS_OF_READERS"], &["MPS_OF_READERS", "MPS_OF_EXPORTERS"]] {
        must_pass(&under_mps(variables, "engine-mps"), &format!("clients: {variables:?}"));
    }
}

/// The measured values are meaningless here, but the lines are the input of the result tables.
#[test]
fn benchmark_prints_its_lines() {
    let output = suites(driver(&[]).path(), 1, &["engine-bench"]);
    must_pass(&output, "engine-bench");
    let measured = String::from_utf8_lossy(&output.stdout).matches(r#""frames_per_s""#).count();
    assert!(measured >= 24, "{measured} lines of measures");
}

/// Hostile peers as before Linux 6.16, where the kernel refuses no descriptors on the sender's
/// side.
#[test]
fn hostile_suite_passes_without_so_passrights() {
    let without = Path::new(PROGRAM).with_file_name("without");
    if !without.exists() {
        let why = "`cargo build -p frameshare-tests --bin without` has not run";
        return testing::skip("gpu-engine/engine-hostile-without-so-passrights", why);
    }
    let driver = driver(&[]);
    let command = testing::simulated::command(PROGRAM, driver.path(), 1, &["engine-hostile"]);
    let mut wrapped = Command::new(without);
    wrapped.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    wrapped.args(["SO_PASSRIGHTS", "--", PROGRAM]).args(command.get_args());
    must_pass(&wrapped.output().unwrap(), "without SO_PASSRIGHTS");
}

/// A runner that is killed, for example by a time limit, takes its case and that case's peers
/// along.
#[test]
fn killed_runner_takes_cases_and_peers_along() {
    let driver = driver(&[]);
    let mut command = testing::simulated::command(PROGRAM, driver.path(), 1, &["engine-soak"]);
    let mut runner = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Wait for the first output of the case, which has peers at that point.
    let mut said = BufReader::new(runner.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains(r#""so_far""#)), "the case prints no progress line");
    runner.kill().unwrap();
    runner.wait().unwrap();
    // All processes inherit the runner's standard error.
    let mut errors = runner.stderr.take().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(errors.read_to_string(&mut String::new())));
    // Earlier than a case notices by itself that its output has no reader.
    receiver.recv_timeout(Duration::from_secs(9)).expect("a process of the runner is still alive").unwrap();
}

/// A process whose parent is killed while starting it must not begin its work.
#[test]
fn process_started_by_dead_parent_does_nothing() {
    let driver = driver(&[]);
    let start = |arguments: &[&str], stdout: Stdio| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).env("LD_LIBRARY_PATH", driver.path()).stdout(stdout);
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("the parent of this process has exited"), "{arguments:?}: {errors}");
    };

    let (ours, theirs) = Link::pair().unwrap();
    ours.send(&"a job", &[]).unwrap();
    drop(ours);
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
    start(&["--peer", &theirs.as_fd().as_raw_fd().to_string()], Stdio::null());

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    start(&["--case", "engine-fences/no-such-case", "1"], Stdio::from(writer));
}
