// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes whose seccomp filter denies a system call, as an older kernel or a sandbox does. The
//! calls are those of the table in `docs/sandboxes.md`.

use frameshare_tests::process::{Process, TestRun};

/// Calls without which streams run.
const OPTIONAL: [&str; 10] = [
    "SO_PASSRIGHTS",
    "futex_waitv",
    "getrandom",
    "pidfd",
    "prctl",
    "prlimit64",
    "sched_getaffinity",
    "sched_yield",
    "statx",
    "sysinfo",
];

/// Starts an exporter without some features, or with all of the kernel's.
fn export(run: &TestRun, features: Option<&str>) -> Process {
    let options = "export --stream s --frames 100000000 --fps 500 --size 20000 --readers 0";
    match features {
        Some(features) => run.peer_without(features, options),
        None => run.peer(options),
    }
}

fn read(run: &TestRun, features: &str) -> Process {
    run.peer_without(
        features,
        "read --stream s --verify yes --frames 20 --timeout-ms 60000 --policy lossless",
    )
}

#[test]
fn streams_run_while_optional_calls_are_denied() {
    let alone = OPTIONAL.map(|call| vec![call]);
    for calls in alone.iter().chain([&OPTIONAL.to_vec()]) {
        for features in [calls.join(","), format!("{}:EPERM", calls.join(":EPERM,"))] {
            let run = TestRun::new();
            let mut exporter = export(&run, Some(&features));
            exporter.wait_for("open");
            read(&run, &features).expect_success();
        }
    }
}

/// Negative control: the filter denies, and the error says which ability is missing.
#[test]
fn denied_required_call_is_reported() {
    for call in ["memfd_create", "epoll_create1", "eventfd2"] {
        let error = export(&TestRun::new(), Some(&format!("{call}:EPERM"))).expect_failure();
        assert!(error.contains("Operation not permitted"), "{call}: {error}");
    }
    // Without wake-ups no reader is admitted.
    let run = TestRun::new();
    let mut exporter = export(&run, Some("socketpair:EPERM"));
    exporter.wait_for("open");
    let error = run.peer("read --stream s --frames 20 --timeout-ms 60000").expect_failure();
    assert!(error.contains("cannot serve another reader: Operation not permitted"), "{error}");

    let run = TestRun::new();
    let mut exporter = export(&run, None);
    exporter.wait_for("open");
    for call in ["epoll_create1", "eventfd2", "timerfd_create"] {
        let error = read(&run, &format!("{call}:EPERM")).expect_failure();
        assert!(error.contains("Operation not permitted"), "{call}: {error}");
    }
}
