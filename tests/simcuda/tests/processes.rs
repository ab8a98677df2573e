// SPDX-License-Identifier: MIT OR Apache-2.0

//! The simulated driver across processes, including killed ones.

mod common;

use common::{Process, run};
use std::process::Command;

/// Returns a command that runs a program in new namespaces, with its own /proc and /dev/shm.
fn isolate(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--ipc", "--net", "--uts", "sh", "-c"]);
    command.args(["mount -t proc proc /proc && mount -t tmpfs none /dev/shm && exec \"$@\"", "sh"]);
    command.arg(program);
    command
}

#[test]
fn vmm_fd_is_imported_by_another_process() {
    run("vmm_exporter", &[]);
}

#[test]
fn legacy_handle_opens_in_one_context_only() {
    run("legacy_exporter", &[]);
}

/// The exporter's IPC server is found by its path, not by its pid.
#[test]
fn legacy_handle_opens_across_namespaces() {
    if isolate("true").output().is_ok_and(|output| output.status.success()) {
        run("legacy_exporter_to_another_namespace", &[]);
    } else {
        println!("SKIP simcuda/namespaces: creating namespaces is not permitted on this machine");
    }
}

#[test]
fn ipc_socket_is_removed_on_exit_and_kill() {
    for end in ["exit", "kill"] {
        let mut process = Process::start("doorway", &[]);
        let path = process.hear();
        assert!(std::path::Path::new(&path).exists(), "{path}");
        match end {
            "exit" => process.finish(),
            _ => process.kill(),
        }
        assert!(!std::path::Path::new(&path).exists(), "{path} exists after {end}");
    }
}

#[test]
fn free_of_memory_open_elsewhere_is_reported() {
    run("legacy_exporter_frees_early", &[]);
}

#[test]
fn pool_pointer_second_import_and_early_free_are_errors() {
    let errors = common::errors_file("pool");
    run("pool_exporter", &[("SIMCUDA_ERRORS", errors.to_str().expect("a path in UTF-8"))]);
    std::fs::remove_file(errors).expect("the driver wrote the violations file");
}

#[test]
fn strict_abort_mode_aborts_on_violation() {
    let errors = common::errors_file("abort");
    let environment =
        [("SIMCUDA_STRICT", "abort"), ("SIMCUDA_ERRORS", errors.to_str().expect("a path in UTF-8"))];
    let mut exporter = Process::start("frees_early_and_aborts", &environment);
    assert_eq!(exporter.hear(), "aborting");
    assert!(!exporter.end().success());
    let written = std::fs::read_to_string(&errors).expect("the driver wrote the violations file");
    assert!(written.contains("VIOLATION"), "{written}");
    std::fs::remove_file(errors).expect("remove the violations file");
}

#[test]
fn killed_reader_event_stays_pending_and_blocks_next_record() {
    for seed in ["1", "2", "3"] {
        run("event_exporter", &[("SIMCUDA_SEED", seed)]);
    }
}

#[test]
fn killed_exporter_event_blocks_waiting_stream() {
    for seed in ["1", "2", "3"] {
        run("event_reader", &[("SIMCUDA_SEED", seed)]);
    }
}

#[test]
fn idle_exporter_kill_leaves_imports_usable() {
    run("reader_of_an_idle_exporter", &[]);
}

#[test]
fn killed_exporter_queue_keeps_running() {
    for seed in ["1", "2", "3"] {
        run("words_survivor", &[("SIMCUDA_SEED", seed), ("SIMCUDA_AFTERLIFE_US", "4000000")]);
    }
}

#[test]
fn event_file_is_removed_at_exit_and_kept_after_kill() {
    for (end, stays) in [("exit", false), ("kill", true)] {
        let mut process = Process::start("event_maker", &[]);
        let name = format!("cuda.shm.{}.{:x}.1", process.hear(), process.id());
        let path = std::path::Path::new("/dev/shm").join(name);
        assert_eq!(std::fs::metadata(&path).expect("the event file exists").len(), 81_920);
        match end {
            "exit" => process.finish(),
            _ => process.kill(),
        }
        assert_eq!(path.exists(), stays, "{end}");
        let _ = std::fs::remove_file(path);
    }
}

#[test]
fn event_open_without_common_dev_shm_fails() {
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /dev/shm"]);
    if !command.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: mounting a tmpfs on /dev/shm is not permitted");
        return;
    }
    run("event_for_another_dev_shm", &[]);
}

#[test]
fn wait_on_opened_event_in_other_context_crashes() {
    use std::os::unix::process::ExitStatusExt as _;
    let mut exporter = Process::start("event_maker_for_a_victim", &[]);
    let mut victim = Process::start("victim_of_an_event", &[("SIMCUDA_STRICT", "off")]);
    victim.say(&exporter.hear());
    assert_eq!(victim.hear(), "waiting in another context");
    assert_eq!(victim.end().signal(), Some(11));
    exporter.say("done");
    exporter.finish();
}

#[test]
fn forked_child_is_not_initialized() {
    run("forks", &[]);
}

cases! {
    vmm_exporter vmm_importer
    legacy_exporter legacy_importer legacy_exporter_to_another_namespace doorway legacy_exporter_frees_early frees_early_and_aborts
    pool_exporter pool_importer
    event_exporter event_recorder event_reader event_exporter_that_dies event_maker
    reader_of_an_idle_exporter idle_exporter
    words_survivor words_exporter
    event_for_another_dev_shm event_importer
    event_maker_for_a_victim victim_of_an_event
    forks
}

mod cases {
    use crate::common::*;
    use std::process::Command;

    pub fn vmm_exporter() {
        start();
        let handle = made(|place| cuMemCreate(place, MIB_2, &properties(), 0));
        let address = map(handle, 3);
        let fd = made(|place| cuMemExportToShareableHandle(place, handle, 1, 0));
        assert_eq!(cuMemsetD8Async(address, 0x5a, MIB_2, 0), 0);
        assert_eq!(cuCtxSynchronize(), 0);
        let mut reader = Process::start("vmm_importer", &[]);
        reader.say(&format!("{} {fd}", std::process::id()));
        assert_eq!(reader.hear(), "700");
        // The error stays in the reader: the exporter and its memory are unharmed.
        assert_eq!((cuCtxSynchronize(), bytes(address, 64)), (0, vec![0x5a; 64]));
        reader.finish();
    }

    pub fn vmm_importer() {
        start();
        let (pid, fd) = two_numbers();
        let handle =
            made(|place| cuMemImportFromShareableHandle(place, fd_of(pid as u32, fd as i32) as usize, 1));
        let address = map(handle, 1);
        assert_eq!(cuMemRelease(handle), 0);
        assert_eq!(bytes(address, 64), [0x5a; 64]);
        let copy = made(|place| cuMemAlloc_v2(place, MIB_2));
        let stream = stream();
        assert_eq!((cuMemcpyDtoDAsync_v2(copy, address, MIB_2, stream), cuStreamSynchronize(stream)), (0, 0));
        assert_eq!(cuMemcpyDtoDAsync_v2(address, copy, MIB_2, stream), 0);
        say(&cuStreamSynchronize(stream).to_string());
    }

    fn two_numbers() -> (u64, u64) {
        let line = hear();
        let (a, b) = line.split_once(' ').expect("two numbers");
        (a.parse().expect("a number"), b.parse().expect("a number"))
    }

    pub fn legacy_exporter() {
        start();
        let memory = made(|place| cuMemAlloc_v2(place, MIB_2));
        assert_eq!((cuMemsetD8Async(memory, 0x11, MIB_2, 0), cuCtxSynchronize()), (0, 0));
        let handle = blob(|place| cuIpcGetMemHandle(place, memory));
        serve(Process::start("legacy_importer", &[]), memory, &handle);
    }

    fn serve(mut reader: Process, memory: u64, handle: &Blob) {
        reader.say(&hex(handle));
        assert_eq!(reader.hear(), "closed");
        assert_eq!((cuMemFree_v2(memory), cuMemAlloc_v2(&mut 0, MIB_2)), (0, 0));
        reader.say("freed");
        reader.finish();
    }

    pub fn legacy_exporter_to_another_namespace() {
        start();
        let memory = made(|place| cuMemAlloc_v2(place, MIB_2));
        assert_eq!((cuMemsetD8Async(memory, 0x11, MIB_2, 0), cuCtxSynchronize()), (0, 0));
        let handle = blob(|place| cuIpcGetMemHandle(place, memory));
        let mut isolated = super::isolate(std::env::current_exe().expect("path of the test executable"));
        isolated.args(["--exact", "case", "--ignored", "--nocapture", "--test-threads=1"]);
        serve(Process::spawn(isolated, "legacy_importer", &[]), memory, &handle);
    }

    /// Sends the path of its IPC socket, which contains the first number of a handle.
    pub fn doorway() {
        start();
        let memory = made(|place| cuMemAlloc_v2(place, MIB_2));
        let handle = blob(|place| cuIpcGetMemHandle(place, memory));
        let process =
            handle.0.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).expect("a blob of 64 bytes");
        say(&format!("/tmp/simcuda.{process:016x}"));
        hear();
    }

    pub fn legacy_importer() {
        let first = start();
        let handle = unhex(&hear());
        let memory = made(|place| cuIpcOpenMemHandle_v2(place, handle, 1));
        assert_eq!(made(|place| cuIpcOpenMemHandle_v2(place, handle, 1)), memory);
        assert_eq!(bytes(memory, 64), [0x11; 64]);
        assert_eq!(cuIpcGetMemHandle(&mut Blob([0; 64]), memory), 1, "imports cannot be exported");
        context(0);
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, handle, 1), 400);
        assert_eq!(cuCtxSetCurrent(first), 0);
        assert_eq!((cuIpcCloseMemHandle(memory), bytes(memory, 1)), (0, vec![0x11]));
        assert_eq!((cuIpcCloseMemHandle(memory), cuIpcCloseMemHandle(memory)), (0, 1));
        say("closed");
        assert_eq!(hear(), "freed");
        assert_eq!(
            cuIpcOpenMemHandle_v2(&mut 0, handle, 1),
            400,
            "the address belongs to another allocation"
        );
    }

    /// Frees memory that a reader has open. Returns whether the driver reported a violation.
    fn free_early() -> bool {
        let errors = errors_file("early");
        let environment = [("SIMCUDA_ERRORS", errors.to_str().expect("a path in UTF-8"))];
        let mut exporter = Process::start("frees_early_and_aborts", &environment);
        assert_eq!(exporter.hear(), "aborting");
        exporter.finish();
        let written = std::fs::read_to_string(&errors).unwrap_or_default();
        let _ = std::fs::remove_file(errors);
        written.contains("freed while another process has it open")
    }

    pub fn legacy_exporter_frees_early() {
        assert!(free_early());
    }

    /// Exports memory to a reader that keeps it open, and frees it.
    pub fn frees_early_and_aborts() {
        start();
        let memory = made(|place| cuMemAlloc_v2(place, MIB_2));
        assert_eq!((cuMemsetD8Async(memory, 0x11, MIB_2, 0), cuCtxSynchronize()), (0, 0));
        let handle = blob(|place| cuIpcGetMemHandle(place, memory));
        let mut reader = Process::start("event_importer", &[]);
        reader.say(&format!("memory {}", hex(&handle)));
        assert_eq!(reader.hear(), "open");
        say("aborting");
        // With SIMCUDA_STRICT=abort this call aborts the process.
        assert_eq!(cuMemFree_v2(memory), 0);
        reader.say("done");
        reader.finish();
    }

    /// Opens the handle of the first message, sends the result, and waits.
    pub fn event_importer() {
        start();
        let line = hear();
        let (what, handle) = line.split_once(' ').expect("a kind and a handle");
        let code = match what {
            "memory" => cuIpcOpenMemHandle_v2(&mut 0, unhex(handle), 1),
            _ => cuIpcOpenEventHandle(&mut 0, unhex(handle)),
        };
        say(&if code == 0 { "open".to_owned() } else { code.to_string() });
        hear();
    }

    pub fn pool_exporter() {
        // The reader's driver writes to the same file.
        let errors = std::env::var("SIMCUDA_ERRORS").expect("set by the test");
        start();
        let stream = stream();
        let pool = made(|place| cuMemPoolCreate(place, &pool_properties()));
        let fd = made(|place| cuMemPoolExportToShareableHandle(place, pool, 1, 0));
        for early in [false, true] {
            let memory = made(|place| cuMemAllocFromPoolAsync(place, MIB_2, pool, stream));
            assert_eq!((cuMemsetD8Async(memory, 0x22, MIB_2, stream), cuStreamSynchronize(stream)), (0, 0));
            let handle = blob(|place| cuMemPoolExportPointer(place, memory));
            let mut reader = Process::start("pool_importer", &[]);
            reader.say(&format!("{} {fd}", std::process::id()));
            reader.say(&hex(&handle));
            assert_eq!(reader.hear(), "imported");
            if !early {
                reader.say("free");
                assert_eq!(reader.hear(), "freed");
            }
            assert_eq!((cuMemFreeAsync(memory, stream), cuStreamSynchronize(stream)), (0, 0));
            let reported = std::fs::read_to_string(&errors).unwrap_or_default();
            assert_eq!(reported.contains("importers first"), early, "{reported}");
            if early {
                reader.say("free");
                assert_eq!(reader.hear(), "freed");
            }
            reader.finish();
        }
    }

    pub fn pool_importer() {
        start();
        let (pid, fd) = two_numbers();
        let handle = unhex(&hear());
        let fd = fd_of(pid as u32, fd as i32) as usize;
        let pool = made(|place| cuMemPoolImportFromShareableHandle(place, fd, 1, 0));
        let memory = made(|place| cuMemPoolImportPointer(place, pool, &handle));
        assert_eq!(cuMemPoolImportPointer(&mut 0, pool, &handle), 208);
        assert_eq!(bytes(memory, 64), [0x22; 64]);
        say("imported");
        assert_eq!(hear(), "free");
        let stream = stream();
        assert_eq!((cuMemFreeAsync(memory, stream), cuStreamSynchronize(stream)), (0, 0));
        assert_eq!(cuMemsetD8Async(memory, 1, 1, stream), 1, "unmapped");
        say("freed");
    }

    pub fn event_exporter() {
        start();
        let event = shared_event();
        let mut reader = Process::start("event_recorder", &[]);
        reader.say(&hex(&blob(|place| cuIpcGetEventHandle(place, event))));
        assert_eq!(reader.hear(), "recorded");
        assert_eq!(cuEventQuery(event), NOT_READY);
        reader.kill();
        a_while();
        assert_eq!(cuEventQuery(event), NOT_READY);

        let (waiting, recording, other) = (stream(), stream(), stream());
        assert_eq!((cuStreamWaitEvent(waiting, event, 0), cuEventRecord(event, recording)), (0, 0));
        a_while();
        let states = [waiting, recording, other].map(cuStreamQuery);
        assert_eq!(states, [NOT_READY, NOT_READY, 0]);
        // Destroying the event does not complete it. The streams can be destroyed, and other
        // streams and events work.
        assert_eq!(cuEventDestroy_v2(event), 0);
        a_while();
        assert_eq!([waiting, recording].map(cuStreamQuery), [NOT_READY; 2]);
        assert_eq!([waiting, recording].map(cuStreamDestroy_v2), [0; 2]);
        let fresh = shared_event();
        assert_eq!((cuEventRecord(fresh, other), cuStreamSynchronize(other), cuEventQuery(fresh)), (0, 0, 0));
    }

    pub fn event_recorder() {
        start();
        let event = made(|place| cuIpcOpenEventHandle(place, unhex(&hear())));
        assert_eq!(cuEventQuery(event), 0, "not recorded yet");
        let stream = stream();
        let _gate = Gate::on(stream);
        assert_eq!(cuEventRecord(event, stream), 0);
        say("recorded");
        hear();
    }

    pub fn event_reader() {
        start();
        let mut exporter = Process::start("event_exporter_that_dies", &[]);
        let event = made(|place| cuIpcOpenEventHandle(place, unhex(&exporter.hear())));
        let (waiting, other) = (stream(), stream());
        exporter.say("record");
        assert_eq!(exporter.hear(), "done");
        assert_eq!((cuStreamWaitEvent(waiting, event, 0), cuStreamSynchronize(waiting)), (0, 0));
        exporter.say("record and hold");
        assert_eq!(exporter.hear(), "pending");
        assert_eq!(cuStreamWaitEvent(waiting, event, 0), 0);
        exporter.kill();
        a_while();
        assert_eq!([waiting, other].map(cuStreamQuery), [NOT_READY, 0]);
        assert_eq!(cuStreamDestroy_v2(waiting), 0);
        assert_eq!(cuStreamSynchronize(other), 0);
    }

    pub fn event_exporter_that_dies() {
        start();
        let (event, stream) = (shared_event(), stream());
        say(&hex(&blob(|place| cuIpcGetEventHandle(place, event))));
        assert_eq!(hear(), "record");
        assert_eq!((cuEventRecord(event, stream), cuStreamSynchronize(stream)), (0, 0));
        say("done");
        assert_eq!(hear(), "record and hold");
        let _gate = Gate::on(stream);
        assert_eq!(cuEventRecord(event, stream), 0);
        say("pending");
        hear();
    }

    pub fn event_maker_for_a_victim() {
        start();
        let event = shared_event();
        say(&hex(&blob(|place| cuIpcGetEventHandle(place, event))));
        hear();
    }

    pub fn victim_of_an_event() {
        start();
        let event = made(|place| cuIpcOpenEventHandle(place, unhex(&hear())));
        assert_eq!(cuStreamWaitEvent(stream(), event, 0), 0);
        context(0);
        let elsewhere = stream();
        say("waiting in another context");
        cuStreamWaitEvent(elsewhere, event, 0);
    }

    pub fn event_maker() {
        // Remove a file that a killed process with the same pid may have left.
        let _ = std::fs::remove_file(format!("/dev/shm/cuda.shm.{}.{:x}.1", uid(), std::process::id()));
        start();
        shared_event();
        say(&uid().to_string());
        hear();
    }

    pub fn idle_exporter() {
        start();
        let stream = stream();
        let memory = made(|place| cuMemAlloc_v2(place, MIB_2));
        assert_eq!(cuMemsetD8Async(memory, 1, MIB_2, stream), 0);
        let handle = made(|place| cuMemCreate(place, MIB_2, &properties(), 0));
        assert_eq!(cuMemsetD8Async(map(handle, 3), 2, MIB_2, stream), 0);
        let vmm = made(|place| cuMemExportToShareableHandle(place, handle, 1, 0));
        let pool = made(|place| cuMemPoolCreate(place, &pool_properties()));
        let fd = made(|place| cuMemPoolExportToShareableHandle(place, pool, 1, 0));
        let pooled = made(|place| cuMemAllocFromPoolAsync(place, MIB_2, pool, stream));
        assert_eq!(cuMemsetD8Async(pooled, 3, MIB_2, stream), 0);
        let event = shared_event();
        assert_eq!((cuEventRecord(event, stream), cuEventSynchronize(event)), (0, 0));
        let legacy = blob(|place| cuIpcGetMemHandle(place, memory));
        let pointer = blob(|place| cuMemPoolExportPointer(place, pooled));
        let event = blob(|place| cuIpcGetEventHandle(place, event));
        say(&format!("{vmm} {fd} {} {} {}", hex(&legacy), hex(&pointer), hex(&event)));
        hear();
    }

    pub fn reader_of_an_idle_exporter() {
        start();
        let mut exporter = Process::start("idle_exporter", &[]);
        let line = exporter.hear();
        let parts: Vec<&str> = line.split(' ').collect();
        let fd = |text: &str| fd_of(exporter.id(), text.parse().expect("a number")) as usize;
        let legacy = made(|place| cuIpcOpenMemHandle_v2(place, unhex(parts[2]), 1));
        let vmm = map(made(|place| cuMemImportFromShareableHandle(place, fd(parts[0]), 1)), 1);
        let pool = made(|place| cuMemPoolImportFromShareableHandle(place, fd(parts[1]), 1, 0));
        let pooled = made(|place| cuMemPoolImportPointer(place, pool, &unhex(parts[3])));
        let event = made(|place| cuIpcOpenEventHandle(place, unhex(parts[4])));
        exporter.kill();
        assert_eq!([legacy, vmm, pooled].map(|address| bytes(address, 1)[0]), [1, 2, 3]);
        assert_eq!(cuEventQuery(event), 0);
        let stream = stream();
        assert_eq!((cuMemFreeAsync(pooled, stream), cuStreamSynchronize(stream)), (0, 0));
        assert_eq!(
            (cuIpcCloseMemHandle(legacy), cuMemUnmap(vmm, MIB_2), cuEventDestroy_v2(event)),
            (0, 0, 0)
        );
    }

    const WRITES: u64 = 460;
    const RESCUE: u64 = 1 << 40;

    pub fn words_exporter() {
        start();
        let (pid, fd) = two_numbers();
        let words = Words::of(fd_of(pid as u32, fd as i32));
        let stream = stream();
        assert_eq!(cuStreamWaitValue64_v2(stream, words.at(1), 1, 0), 0);
        for value in 1..=WRITES {
            assert_eq!(cuStreamWriteValue64_v2(stream, words.at(0), value, 0), 0);
        }
        say("queued");
        hear();
    }

    pub fn words_survivor() {
        start();
        let words = Words::new();
        let stream = stream();
        assert_eq!(cuStreamWaitValue64_v2(stream, words.at(0), RESCUE, 0), 0);
        let mut exporter = Process::start("words_exporter", &[]);
        exporter.say(&format!("{} {}", std::process::id(), words.fd));
        assert_eq!(exporter.hear(), "queued");
        assert_eq!(words.get(0), 0, "the stream is still waiting");
        let exporter = exporter.kill_and_not_wait();
        words.set(1, 1);
        words.set(0, RESCUE);
        let mut went_back = false;
        // The old value may come back before the stream has polled.
        eventually("the stream's wait ends", || {
            if words.get(0) < RESCUE {
                went_back = true;
                words.set(0, RESCUE);
            }
            cuStreamQuery(stream) == 0
        });
        eventually("the dead process overwrites the value", || went_back || words.get(0) < RESCUE);
        // A value that is stored after the process has exited stays.
        exporter.gone();
        assert!(words.get(0) <= WRITES);
        words.set(0, RESCUE);
        a_while();
        assert_eq!(words.get(0), RESCUE);
    }

    pub fn event_for_another_dev_shm() {
        start();
        let handle = hex(&blob(|place| cuIpcGetEventHandle(place, shared_event())));
        let exe = std::env::current_exe().expect("path of the test executable");
        let mut isolated = Command::new("unshare");
        isolated.args(["--mount", "sh", "-c", "mount -t tmpfs none /dev/shm && exec \"$@\"", "sh"]).arg(exe);
        isolated.args(["--exact", "case", "--ignored", "--nocapture", "--test-threads=1"]);
        let mut isolated = Process::spawn(isolated, "event_importer", &[]);
        isolated.say(&format!("event {handle}"));
        assert_eq!(isolated.hear(), "205");
        let mut beside = Process::start("event_importer", &[]);
        beside.say(&format!("event {handle}"));
        assert_eq!(beside.hear(), "open");
        isolated.finish();
        beside.finish();
    }

    pub fn forks() {
        start();
        assert_eq!(in_a_fork(cuCtxSynchronize), 3);
        assert_eq!(cuCtxSynchronize(), 0);
    }
}
