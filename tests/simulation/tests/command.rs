// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command `simulate`: exit statuses, recordings, and what it prints.

use std::{path::Path, process::Command};

/// Returns the exit status and the standard output.
fn simulate(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let command = Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).current_dir(folder).output();
    let output = command.expect("the command runs");
    let code = output.status.code().expect("the command was not killed");
    (code, String::from_utf8(output.stdout).expect("the output is text"))
}

#[test]
fn failure_is_recorded_and_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, text) = simulate(folder.path(), &["--world", "ring-early", "seconds", "60", "--seed", "1"]);
    assert_eq!(code, 1, "{text}");
    let command = text.lines().find_map(|line| line.strip_prefix("repeat with: simulate "));
    let arguments: Vec<_> = command.expect("a command that repeats the failure").split(' ').collect();
    let (code, replayed) = simulate(folder.path(), &arguments);
    assert_eq!(code, 1, "{replayed}");
    let failed = |text: &str| text.lines().find(|line| line.starts_with("failed: ")).map(str::to_owned);
    assert!(failed(&replayed).is_some_and(|line| line.contains("is wrong")), "{replayed}");
    assert!(text.contains(&replayed), "the replay prints the same trace");
}

#[test]
fn correct_world_exits_with_its_outcomes() {
    let folder = tempfile::tempdir().expect("a folder");
    let ring = |arguments: &[&str]| simulate(folder.path(), &[&["--world", "ring"], arguments].concat());
    let (code, text) = ring(&["seconds", "0.5", "--threads", "2", "--require-all"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("reader: all values read"), "{text}");
    let (code, text) = ring(&["hours", "0"]);
    assert_eq!(code, 3, "{text}");
    let (code, text) = simulate(folder.path(), &["--world", "ring-small", "enumerate", "60"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = simulate(folder.path(), &["--world", "ring-small", "enumerate", "0"]);
    assert_eq!(code, 3, "{text}");
    let (code, text) = ring(&["seed", "5"]);
    assert_eq!((code, text.lines().next().is_some()), (0, true), "{text}");
}

#[test]
fn wrong_usage_exits_with_two() {
    let folder = tempfile::tempdir().expect("a folder");
    for arguments in
        [&["seconds"][..], &["seconds", "-1"], &["replay", "absent"], &["--world", "none", "seed", "1"]]
    {
        assert_eq!(simulate(folder.path(), arguments).0, 2, "{arguments:?}");
    }
}
