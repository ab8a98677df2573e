// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exhausted resources: the joining reader gets an error that names the resource, and present
//! readers continue.

use crate::{Stream, assert_all_read, folder, is_root};
use frameshare_tests::{
    census::descriptors,
    process::{Process, TestRun, wait_until},
    skip,
};
use std::{fs, path::Path, process::Command, thread, time::Duration};

fn open_files(process: &Process) -> usize {
    descriptors(process.pid()).expect("the process exists")
}

/// Limits the number of open files of a process from now on.
fn limit_files(process: &Process, count: usize) {
    let status = Command::new("prlimit")
        .args(["--pid", &process.pid().to_string(), &format!("--nofile={count}:")])
        .status()
        .expect("prlimit is there");
    assert!(status.success());
}

/// Readers are admitted only while every frame that all readers may hold can still be allocated.
#[test]
fn exporter_at_file_limit_refuses_readers_and_continues() {
    let run = TestRun::new();
    let mut exporter = run.peer_by(
        "prlimit --nofile=64:",
        "export --stream s --frames 100000000 --fps 500 --size 20000 --readers 1 --until end",
    );
    exporter.wait_for("open");
    let stream = Stream { exporter, run };
    let witness = stream.read("--policy lossless");
    let (mut admitted, mut refused) = (Vec::new(), 0);
    for _ in 0..12 {
        let mut hoarder = stream.run.peer("read --stream s --quiet yes --hoard 4");
        if hoarder.find_event("hoarding").is_some() {
            admitted.push(hoarder);
        } else {
            let error = hoarder.expect_failure();
            assert!(error.contains("ulimit -n"), "{error}");
            refused += 1;
        }
    }
    assert!(admitted.len() >= 2 && refused >= 2, "{} admitted, {refused} refused", admitted.len());
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
    assert_eq!(outcome.events("refused").len(), refused);
}

/// Oversized metadata is a file for each frame, also of the frames that wait for a paused reader.
/// At this rate a busy machine may delay the other reader by two seconds.
#[test]
fn paused_reader_that_uses_up_files_is_evicted() {
    let run = TestRun::new();
    let mut exporter = run.peer_by(
        "prlimit --nofile=120:",
        "export --stream s --frames 100000000 --fps 20 --size 20000 --readers 2 --until end --metadata-bytes 70000 \
         --slow-readers queue-then-wait --max-queued-time-ms 600000",
    );
    exporter.wait_for("open");
    let mut stream = Stream { exporter, run };
    let witness = stream.read("--policy lossless");
    let mut paused = stream.read("--policy lossless");
    paused.wait_for("first");
    paused.suspend();
    assert_eq!(stream.wait_for_notice("removed", paused.pid())["reason"], "LimitExceeded");
    stream.wait_for_frames(20);
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
    paused.resume();
    let end = paused.finish().summary()["end"].clone();
    assert!(end.as_str().is_some_and(|end| end.contains("the exporter ran out of them")), "{end}");
}

/// Also when no further file can be opened, not even for the connection itself.
#[test]
fn exporter_without_free_files_reports_it() {
    let stream = Stream::start("--fps 500 --readers 1");
    // It uses all its credit: from now on the exporter needs no further slot.
    let mut hoarder = stream.read("--hoard 4");
    hoarder.wait_for("hoarding");
    let mut before = 0;
    wait_until("all slots are there", || {
        thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut before, open_files(&stream.exporter)) == before
    });
    limit_files(&stream.exporter, before);
    let error = stream.run.peer("read --stream s --timeout-ms 5000").expect_failure();
    assert!(error.contains("Too many open files") && error.contains("ulimit -n"), "{error}");
    limit_files(&stream.exporter, before + 100);
    stream.read("--frames 10").expect_success();
    stream.end();
}

/// The kernel would end the process by SIGXFSZ: with the first page that is shared, or with the
/// first frame.
#[test]
fn file_size_limit_is_named_in_error() {
    for limit in [1_000, 500_000] {
        let run = TestRun::new();
        let command = format!("prlimit --fsize={limit}:");
        let error = run.peer_by(&command, "export --stream s --size 1000000 --readers 0").expect_failure();
        assert!(error.contains("ulimit -f") && error.contains(&limit.to_string()), "{limit}: {error}");
    }
}

#[test]
fn reader_out_of_files_reports_it_and_affects_no_other() {
    let stream = Stream::start("--fps 500 --readers 1");
    let witness = stream.read("--policy lossless");
    // Too few for the descriptors of the `Welcome`.
    for files in [6, 7, 8] {
        let command = format!("prlimit --nofile={files}:");
        let error = stream
            .run
            .peer_by(&command, "read --stream s --timeout-ms 5000 --policy lossless")
            .expect_failure();
        assert!(error.contains("ulimit -n") || error.contains("Too many open files"), "{files}: {error}");
    }
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
}

#[test]
fn reader_out_of_memory_reports_it_and_affects_no_other() {
    let stream = Stream::start("--fps 20 --readers 1 --size 60000000");
    let witness = stream.read("--policy lossless");
    let small = stream.run.peer_by("prlimit --as=50000000:", "read --stream s --policy lossless");
    let end = small.finish().summary()["end"].clone();
    assert!(end.as_str().is_some_and(|end| end.contains("cannot import")), "{end}");
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
}

/// Memory files are not files of /dev/shm, whose size bounds POSIX shared memory.
#[test]
fn full_dev_shm_does_not_affect_stream() {
    if !is_root("full_dev_shm_does_not_affect_stream") {
        return;
    }
    let run = TestRun::new();
    // Private first, so that the machine's own mount is not covered. (In a chroot `unshare` could
    // not ensure that.)
    let script = "mount --make-private /dev/shm && mount -t tmpfs -o size=4k none /dev/shm && \
                  head -c 4096 /dev/zero >/dev/shm/full && exec \"$@\"";
    fs::write(run.path("full-shm"), script).unwrap();
    let full = format!("unshare --mount --propagation unchanged sh {}", run.path("full-shm").display());
    let exporter = run.peer_by(&full, "export --stream s --frames 20");
    let reader = run.peer_by(&full, "read --stream s --policy lossless --verify yes");
    assert_eq!(reader.expect_success().summary()["frames"], 20);
    exporter.expect_success();
}

/// An exporter has a thread of its own, a reader of host memory none.
#[test]
fn exporter_at_task_limit_fails_and_reader_works() {
    if !is_root("exporter_at_task_limit_fails_and_reader_works") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    // The kernel counts the tasks of a user, so the test uses one without other tasks.
    let user = 4_000_000 + std::process::id();
    let alone = format!("prlimit --nproc=1:1 setpriv --reuid {user} --regid {user} --clear-groups");
    folder(&run, "user", user, 0o755);
    let socket = |folder: &str| run.path(folder).join("s.sock").display().to_string();
    let error = run.peer_by(&alone, &format!("export --socket {}", socket("user"))).expect_failure();
    assert!(error.contains("ulimit -u"), "{error}");

    let exporter = run
        .peer(&format!("export --socket {} --frames 20 --allowed-uids {user} --socket-mode 666", socket("")));
    let reader = format!("read --socket {} --verify yes --frames 1", socket(""));
    run.peer_by(&alone, &reader).expect_success();
    exporter.expect_success();
}

/// The administrator may forbid memory files that could be executed, vm.memfd_noexec=2: here in a
/// PID namespace, for which the kernel has a setting of its own.
#[test]
fn exporter_runs_where_memory_files_must_not_be_executable() {
    let test = "exporter_runs_where_memory_files_must_not_be_executable";
    let setting = "/proc/sys/vm/memfd_noexec";
    if !is_root(test) {
        return;
    }
    if !Path::new(setting).exists() {
        return skip::skip(&format!("faults/{test}"), "the kernel has no vm.memfd_noexec (Linux 6.3)");
    }
    let run = TestRun::new();
    fs::write(run.path("strict"), format!("echo 2 >{setting} && exec \"$@\"\n")).unwrap();
    let mut exporter = run.peer_by(
        "unshare --pid --fork --kill-child --mount-proc sh strict",
        "export --stream s --frames 100000000 --fps 500 --size 20000 --readers 0",
    );
    exporter.wait_for("open");
    run.peer("read --stream s --verify yes --frames 20 --timeout-ms 60000").expect_success();
}
