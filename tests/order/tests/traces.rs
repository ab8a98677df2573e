// SPDX-License-Identifier: MIT OR Apache-2.0

//! The checker on written traces, and the command line.

use gpu_order::{Checker, Violation};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Two processes: stream 1 of the first one writes memory.
const WRITTEN: &str = "\
1.a begin exporter
2.b begin reader
1.a enqueue 1:1
1.a run 1:1 memset w=0.f:0+100
";

/// Stream 7 of the other process reads a part of it.
const READ: &str = "\
2.b enqueue 7:2
2.b run 7:2 copy r=0.f:ff+1 w=anon:4000+1
";

/// The verdict on a trace in which each process has a last line.
fn verdict(parts: &[&str]) -> Result<(), String> {
    let lines = [parts, &["1.a exits\n", "2.b exits\n"]].concat().concat();
    Checker::new().feed(&lines).map_err(|violation| violation.to_string())
}

#[test]
fn report_names_both_accesses() {
    let report = verdict(&[WRITTEN, READ]).unwrap_err();
    for part in [
        "1 bytes at 0.f:ff",
        "earlier: write by memset, item 1 of stream 1, process 1.a `exporter` (line 4)",
        "later:   read by copy, item 2 of stream 7, process 2.b `reader` (line 6)",
    ] {
        assert!(report.contains(part), "{report}");
    }
}

#[test]
fn reads_and_other_ranges_need_no_order() {
    let reads = WRITTEN.replace("w=", "r=");
    assert_eq!(verdict(&[&reads, READ]), Ok(()));
    let beside = READ.replace("0.f:ff+1", "0.f:100+1");
    assert_eq!(verdict(&[WRITTEN, &beside]), Ok(()));
    let own = WRITTEN.replace("0.f:0+100", "anon:4000+1");
    assert_eq!(verdict(&[&own, READ]), Ok(()), "the address is that of another process");
}

/// The reader has waited for 5; the frame is ready at `ready`.
fn with_value(ready: u64) -> Result<(), String> {
    let early = "1.a enqueue 2:1\n1.a run 2:1 values\n1.a release 2:1 0.e:8 5\n";
    let late = format!("1.a enqueue 1:2\n1.a run 1:2 values\n1.a release 1:2 0.e:8 {ready}\n");
    let wait = "2.b enqueue 7:1\n2.b run 7:1 values\n2.b acquire 7:1 0.e:8 5\n";
    let early = if ready > 5 { early } else { "" };
    verdict(&[WRITTEN, early, &late, wait, READ])
}

#[test]
fn wait_is_ordered_behind_first_sufficient_value() {
    assert_eq!(with_value(5), Ok(()));
    with_value(6).unwrap_err();
}

#[test]
fn memory_of_ended_process_may_be_reused() {
    let write = "2.b enqueue 7:1\n2.b run 7:1 memset w=0.f:0+100\n";
    assert_eq!(verdict(&[WRITTEN, "1.a ended\n", write]), Ok(()));
    verdict(&[WRITTEN, "1.a dying\n", write]).unwrap_err();
    assert_eq!(verdict(&[WRITTEN, "1.a dying\n", READ]), Ok(()));
}

/// A process that writes no further line counts as killed, and its reads are lost with it.
#[test]
fn frame_of_killed_reader_may_be_reused() {
    let reads = WRITTEN.replace("memset w=", "copy r=");
    let write = "2.b enqueue 7:1\n2.b run 7:1 memset w=0.f:0+100\n";
    assert_eq!(verdict(&[&reads, write, "1.a dying\n1.a ended\n"]), Ok(()));
    assert_eq!(verdict(&[&reads, "1.a dying\n", write, "1.a ended\n"]), Ok(()));
    verdict(&[&reads, write, "1.a synced 1:1\n1.a dying\n"]).unwrap_err();
    verdict(&[&reads, write, "1.a exits\n1.a dying\n"]).unwrap_err();
}

#[test]
fn point_before_last_item_orders_no_later_item() {
    let later = "1.a enqueue 1:2\n1.a run 1:2 memset w=0.f:0+100\n";
    let beside = "1.a enqueue 2:1\n1.a run 2:1 copy r=0.f:0+1\n";
    assert_eq!(verdict(&[WRITTEN, later, "1.a synced 1:2\n", beside]), Ok(()));
    verdict(&[WRITTEN, later, "1.a synced 1:1\n", beside]).unwrap_err();
}

#[test]
fn long_history_misses_no_order() {
    let mut lines = String::from(WRITTEN);
    for seq in 2..9000 {
        lines += &format!("1.a enqueue 1:{seq:x}\n1.a run 1:{seq:x} marker\n");
    }
    assert_eq!(verdict(&[&lines, "1.a synced 1:1\n1.a access cpu CPU w=0.f:0+1\n"]), Ok(()));
    verdict(&[&lines, "1.a access cpu CPU w=0.f:0+1\n"]).unwrap_err();
}

#[test]
fn unknown_line_is_an_error() {
    let result = Checker::new().feed("1.a flew away\n");
    assert!(matches!(*result.unwrap_err(), Violation::Unreadable { line: 1, .. }));
}

fn run(arguments: &[&str], trace: &str, and: &str) -> Output {
    let script = format!("printf '%s' '{trace}' >> \"$SIMCUDA_ORDER\"; {and}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-order"));
    command.args(arguments).args(["sh", "-c", &script]).output().unwrap()
}

#[test]
fn run_fails_with_command_or_violation() {
    assert!(run(&["run"], WRITTEN, "exit 0").status.success());
    assert!(!run(&["run"], WRITTEN, "exit 3").status.success());
    let reported = run(&["run"], &format!("{WRITTEN}{READ}1.a exits\n"), "exit 0");
    assert!(!reported.status.success());
    assert!(String::from_utf8_lossy(&reported.stderr).contains("unordered accesses"));
}

#[test]
fn run_aborts_process_of_later_access() {
    let lines = format!("{WRITTEN}{READ}1.a exits\n").replace("2.b", "'$$'.b");
    let started = Instant::now();
    let aborted = run(&["run", "--abort"], &lines, "exec sleep 60");
    assert!(String::from_utf8_lossy(&aborted.stderr).contains("violations"), "{aborted:?}");
    assert!(started.elapsed() < Duration::from_secs(50), "{aborted:?}");
}
