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
        let mut process = Process::start("ipc_socket", &[]);
        let path = process.receive();
        assert!(std::path::Path::new(&path).exists(), "{path}");
        match end {
            "exit" => process.finish(),
            _ => process.kill(),
        }
        assert!(!std::path::Path::new(&path).exists(), "{path} exists after {end}");
    }
}

#[test]
fn pool_pointer_second_import_and_early_free_are_errors() {
    let errors = common::errors_file("pool");
    let errors_path = errors.to_str().expect("a path in UTF-8");
    run("pool_exporter", &[("SIMCUDA_ERRORS", errors_path), ("SIMCUDA_STRICT", "log")]);
    std::fs::remove_file(errors).expect("the driver wrote the violations file");
}

/// Runs a program until its last message, and returns the violations that abort it then.
fn violation_of(program: &str, last: &str) -> String {
    let errors = common::errors_file(program);
    let environment = [("SIMCUDA_ERRORS", errors.to_str().expect("a path in UTF-8"))];
    let mut process = Process::start(program, &environment);
    assert_eq!(process.receive(), last);
    assert!(!process.end().success());
    let written = std::fs::read_to_string(&errors).expect("the driver wrote the violations file");
    std::fs::remove_file(errors).expect("remove the violations file");
    written
}

#[test]
fn free_of_memory_open_elsewhere_aborts() {
    let written = violation_of("frees_open_memory", "freeing");
    assert!(written.contains("freed while another process has it open"), "{written}");
}

#[test]
fn use_of_destroyed_context_aborts() {
    let written = violation_of("pushes_destroyed_context", "pushing");
    assert!(written.contains("a destroyed context is made current"), "{written}");
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
        run("memory_value_survivor", &[("SIMCUDA_SEED", seed), ("SIMCUDA_AFTERLIFE_US", "4000000")]);
    }
}

#[test]
fn event_file_is_removed_at_exit_and_kept_after_kill() {
    for (end, stays) in [("exit", false), ("kill", true)] {
        let mut process = Process::start("event_creator", &[]);
        let name = format!("cuda.shm.{}.{:x}.1", process.receive(), process.id());
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
    let mut exporter = Process::start("event_owner", &[]);
    let mut waiter = Process::start("event_waiter_in_other_context", &[("SIMCUDA_STRICT", "off")]);
    waiter.send(&exporter.receive());
    assert_eq!(waiter.receive(), "waiting in another context");
    assert_eq!(waiter.end().signal(), Some(11));
    exporter.send("done");
    exporter.finish();
}

#[test]
fn forked_child_is_not_initialized() {
    run("driver_in_forked_child", &[]);
}

cases! {
    vmm_exporter vmm_importer
    legacy_exporter legacy_importer legacy_exporter_to_another_namespace
    ipc_socket frees_open_memory pushes_destroyed_context
    pool_exporter pool_importer
    event_exporter event_recorder event_reader killed_event_exporter event_creator
    reader_of_an_idle_exporter idle_exporter
    memory_value_survivor memory_value_exporter
    event_for_another_dev_shm event_importer
    event_owner event_waiter_in_other_context
    driver_in_forked_child
}

mod cases {
    use crate::common::*;
    use std::process::Command;

    pub fn vmm_exporter() {
        start();
        let handle = made(|out| cuMemCreate(out, MIB_2, &properties(), 0));
        let address = map(handle, 3);
        let fd = made(|out| cuMemExportToShareableHandle(out, handle, 1, 0));
        assert_eq!(cuMemsetD8Async(address, 0x5a, MIB_2, 0), 0);
        assert_eq!(cuCtxSynchronize(), 0);
        let mut reader = Process::start("vmm_importer", &[]);
        reader.send(&format!("{} {fd}", std::process::id()));
        assert_eq!(reader.receive(), "700");
        // The error stays in the reader: the exporter and its memory are unharmed.
        assert_eq!((cuCtxSynchronize(), bytes(address, 64)), (0, vec![0x5a; 64]));
        reader.finish();
    }

    pub fn vmm_importer() {
        start();
        let (pid, fd) = two_numbers();
        let handle =
            made(|out| cuMemImportFromShareableHandle(out, fd_of(pid as u32, fd as i32) as usize, 1));
        let address = map(handle, 1);
        assert_eq!(cuMemRelease(handle), 0);
        assert_eq!(bytes(address, 64), [0x5a; 64]);
        let copy = made(|out| cuMemAlloc_v2(out, MIB_2));
        let stream = stream();
        assert_eq!((cuMemcpyDtoDAsync_v2(copy, address, MIB_2, stream), cuStreamSynchronize(stream)), (0, 0));
        assert_eq!(cuMemcpyDtoDAsync_v2(address, copy, MIB_2, stream), 0);
        send(&cuStreamSynchronize(stream).to_string());
    }

    fn two_numbers() -> (u64, u64) {
        let line = receive();
        let (a, b) = line.split_once(' ').expect("two numbers");
        (a.parse().expect("a number"), b.parse().expect("a number"))
    }

    pub fn legacy_exporter() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, MIB_2));
        assert_eq!((cuMemsetD8Async(memory, 0x11, MIB_2, 0), cuCtxSynchronize()), (0, 0));
        let handle = blob(|out| cuIpcGetMemHandle(out, memory));
        serve(Process::start("legacy_importer", &[]), memory, &handle);
    }

    fn serve(mut reader: Process, memory: u64, handle: &Blob) {
        reader.send(&hex(handle));
        assert_eq!(reader.receive(), "closed");
        assert_eq!((cuMemFree_v2(memory), cuMemAlloc_v2(&mut 0, MIB_2)), (0, 0));
        reader.send("freed");
        reader.finish();
    }

    pub fn legacy_exporter_to_another_namespace() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, MIB_2));
        assert_eq!((cuMemsetD8Async(memory, 0x11, MIB_2, 0), cuCtxSynchronize()), (0, 0));
        let handle = blob(|out| cuIpcGetMemHandle(out, memory));
        let mut isolated = super::isolate(std::env::current_exe().expect("path of the test executable"));
        isolated.args(["--exact", "case", "--ignored", "--nocapture", "--test-threads=1"]);
        serve(Process::spawn(isolated, "legacy_importer", &[]), memory, &handle);
    }

    /// Sends the path of its IPC socket, which contains the first number of a handle.
    pub fn ipc_socket() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, MIB_2));
        let handle = blob(|out| cuIpcGetMemHandle(out, memory));
        let process =
            handle.0.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).expect("a blob of 64 bytes");
        send(&format!("/tmp/simcuda.{process:016x}"));
        receive();
    }

    pub fn legacy_importer() {
        let first = start();
        let handle = unhex(&receive());
        let memory = made(|out| cuIpcOpenMemHandle_v2(out, handle, 1));
        assert_eq!(made(|out| cuIpcOpenMemHandle_v2(out, handle, 1)), memory);
        assert_eq!(bytes(memory, 64), [0x11; 64]);
        assert_eq!(cuIpcGetMemHandle(&mut Blob([0; 64]), memory), 1, "imports cannot be exported");
        context(0);
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, handle, 1), 400);
        assert_eq!(cuCtxSetCurrent(first), 0);
        assert_eq!((cuIpcCloseMemHandle(memory), bytes(memory, 1)), (0, vec![0x11]));
        assert_eq!((cuIpcCloseMemHandle(memory), cuIpcCloseMemHandle(memory)), (0, 1));
        send("closed");
        assert_eq!(receive(), "freed");
        assert_eq!(
            cuIpcOpenMemHandle_v2(&mut 0, handle, 1),
            400,
            "the address belongs to another allocation"
        );
    }

    /// Exports memory to a reader that keeps it open, and frees it.
    pub fn frees_open_memory() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, MIB_2));
        assert_eq!((cuMemsetD8Async(memory, 0x11, MIB_2, 0), cuCtxSynchronize()), (0, 0));
        let handle = blob(|out| cuIpcGetMemHandle(out, memory));
        let mut reader = Process::start("event_importer", &[]);
        reader.send(&format!("memory {}", hex(&handle)));
        assert_eq!(reader.receive(), "open");
        send("freeing");
        // This call aborts the process.
        assert_eq!(cuMemFree_v2(memory), 0);
        reader.send("done");
        reader.finish();
    }

    pub fn pushes_destroyed_context() {
        start();
        let destroyed = context(0);
        assert_eq!(cuCtxDestroy_v2(destroyed), 0);
        send("pushing");
        // This call aborts the process.
        assert_eq!(cuCtxPushCurrent_v2(destroyed), 0);
    }

    /// Opens the handle of the first message, sends the result, and waits.
    pub fn event_importer() {
        start();
        let line = receive();
        let (what, handle) = line.split_once(' ').expect("a kind and a handle");
        let code = match what {
            "memory" => cuIpcOpenMemHandle_v2(&mut 0, unhex(handle), 1),
            _ => cuIpcOpenEventHandle(&mut 0, unhex(handle)),
        };
        send(&if code == 0 { "open".to_owned() } else { code.to_string() });
        receive();
    }

    pub fn pool_exporter() {
        // The reader's driver writes to the same file.
        let errors = std::env::var("SIMCUDA_ERRORS").expect("set by the test");
        start();
        let stream = stream();
        let pool = made(|out| cuMemPoolCreate(out, &pool_properties()));
        let fd = made(|out| cuMemPoolExportToShareableHandle(out, pool, 1, 0));
        for early in [false, true] {
            let memory = made(|out| cuMemAllocFromPoolAsync(out, MIB_2, pool, stream));
            assert_eq!((cuMemsetD8Async(memory, 0x22, MIB_2, stream), cuStreamSynchronize(stream)), (0, 0));
            let handle = blob(|out| cuMemPoolExportPointer(out, memory));
            let mut reader = Process::start("pool_importer", &[]);
            reader.send(&format!("{} {fd}", std::process::id()));
            reader.send(&hex(&handle));
            assert_eq!(reader.receive(), "imported");
            if !early {
                reader.send("free");
                assert_eq!(reader.receive(), "freed");
            }
            assert_eq!((cuMemFreeAsync(memory, stream), cuStreamSynchronize(stream)), (0, 0));
            let reported = std::fs::read_to_string(&errors).unwrap_or_default();
            assert_eq!(reported.contains("importers first"), early, "{reported}");
            if early {
                reader.send("free");
                assert_eq!(reader.receive(), "freed");
            }
            reader.finish();
        }
    }

    pub fn pool_importer() {
        start();
        let (pid, fd) = two_numbers();
        let handle = unhex(&receive());
        let fd = fd_of(pid as u32, fd as i32) as usize;
        let pool = made(|out| cuMemPoolImportFromShareableHandle(out, fd, 1, 0));
        let memory = made(|out| cuMemPoolImportPointer(out, pool, &handle));
        assert_eq!(cuMemPoolImportPointer(&mut 0, pool, &handle), 208);
        assert_eq!(bytes(memory, 64), [0x22; 64]);
        send("imported");
        assert_eq!(receive(), "free");
        let stream = stream();
        assert_eq!((cuMemFreeAsync(memory, stream), cuStreamSynchronize(stream)), (0, 0));
        assert_eq!(cuMemsetD8Async(memory, 1, 1, stream), 1, "unmapped");
        send("freed");
    }

    pub fn event_exporter() {
        start();
        let event = shared_event();
        let mut reader = Process::start("event_recorder", &[]);
        reader.send(&hex(&blob(|out| cuIpcGetEventHandle(out, event))));
        assert_eq!(reader.receive(), "recorded");
        assert_eq!(cuEventQuery(event), NOT_READY);
        reader.kill();
        settle();
        assert_eq!(cuEventQuery(event), NOT_READY);

        let (waiting, recording, other) = (stream(), stream(), stream());
        assert_eq!((cuStreamWaitEvent(waiting, event, 0), cuEventRecord(event, recording)), (0, 0));
        settle();
        let states = [waiting, recording, other].map(cuStreamQuery);
        assert_eq!(states, [NOT_READY, NOT_READY, 0]);
        // Destroying the event does not complete it. The streams can be destroyed, and other
        // streams and events work.
        assert_eq!(cuEventDestroy_v2(event), 0);
        settle();
        assert_eq!([waiting, recording].map(cuStreamQuery), [NOT_READY; 2]);
        assert_eq!([waiting, recording].map(cuStreamDestroy_v2), [0; 2]);
        let fresh = shared_event();
        assert_eq!((cuEventRecord(fresh, other), cuStreamSynchronize(other), cuEventQuery(fresh)), (0, 0, 0));
    }

    pub fn event_recorder() {
        start();
        let event = made(|out| cuIpcOpenEventHandle(out, unhex(&receive())));
        assert_eq!(cuEventQuery(event), 0, "not recorded yet");
        let stream = stream();
        let _gate = Gate::on(stream);
        assert_eq!(cuEventRecord(event, stream), 0);
        send("recorded");
        receive();
    }

    pub fn event_reader() {
        start();
        let mut exporter = Process::start("killed_event_exporter", &[]);
        let event = made(|out| cuIpcOpenEventHandle(out, unhex(&exporter.receive())));
        let (waiting, other) = (stream(), stream());
        exporter.send("record");
        assert_eq!(exporter.receive(), "done");
        assert_eq!((cuStreamWaitEvent(waiting, event, 0), cuStreamSynchronize(waiting)), (0, 0));
        exporter.send("record and hold");
        assert_eq!(exporter.receive(), "pending");
        assert_eq!(cuStreamWaitEvent(waiting, event, 0), 0);
        exporter.kill();
        settle();
        assert_eq!([waiting, other].map(cuStreamQuery), [NOT_READY, 0]);
        assert_eq!(cuStreamDestroy_v2(waiting), 0);
        assert_eq!(cuStreamSynchronize(other), 0);
    }

    pub fn killed_event_exporter() {
        start();
        let (event, stream) = (shared_event(), stream());
        send(&hex(&blob(|out| cuIpcGetEventHandle(out, event))));
        assert_eq!(receive(), "record");
        assert_eq!((cuEventRecord(event, stream), cuStreamSynchronize(stream)), (0, 0));
        send("done");
        assert_eq!(receive(), "record and hold");
        let _gate = Gate::on(stream);
        assert_eq!(cuEventRecord(event, stream), 0);
        send("pending");
        receive();
    }

    pub fn event_owner() {
        start();
        let event = shared_event();
        send(&hex(&blob(|out| cuIpcGetEventHandle(out, event))));
        receive();
    }

    pub fn event_waiter_in_other_context() {
        start();
        let event = made(|out| cuIpcOpenEventHandle(out, unhex(&receive())));
        assert_eq!(cuStreamWaitEvent(stream(), event, 0), 0);
        context(0);
        let elsewhere = stream();
        send("waiting in another context");
        cuStreamWaitEvent(elsewhere, event, 0);
    }

    pub fn event_creator() {
        // Remove a file that a killed process with the same pid may have left.
        let _ = std::fs::remove_file(format!("/dev/shm/cuda.shm.{}.{:x}.1", uid(), std::process::id()));
        start();
        shared_event();
        send(&uid().to_string());
        receive();
    }

    pub fn idle_exporter() {
        start();
        let stream = stream();
        let memory = made(|out| cuMemAlloc_v2(out, MIB_2));
        assert_eq!(cuMemsetD8Async(memory, 1, MIB_2, stream), 0);
        let handle = made(|out| cuMemCreate(out, MIB_2, &properties(), 0));
        assert_eq!(cuMemsetD8Async(map(handle, 3), 2, MIB_2, stream), 0);
        let vmm = made(|out| cuMemExportToShareableHandle(out, handle, 1, 0));
        let pool = made(|out| cuMemPoolCreate(out, &pool_properties()));
        let fd = made(|out| cuMemPoolExportToShareableHandle(out, pool, 1, 0));
        let pooled = made(|out| cuMemAllocFromPoolAsync(out, MIB_2, pool, stream));
        assert_eq!(cuMemsetD8Async(pooled, 3, MIB_2, stream), 0);
        let event = shared_event();
        assert_eq!((cuEventRecord(event, stream), cuEventSynchronize(event)), (0, 0));
        let legacy = blob(|out| cuIpcGetMemHandle(out, memory));
        let pointer = blob(|out| cuMemPoolExportPointer(out, pooled));
        let event = blob(|out| cuIpcGetEventHandle(out, event));
        send(&format!("{vmm} {fd} {} {} {}", hex(&legacy), hex(&pointer), hex(&event)));
        receive();
    }

    pub fn reader_of_an_idle_exporter() {
        start();
        let mut exporter = Process::start("idle_exporter", &[]);
        let line = exporter.receive();
        let parts: Vec<&str> = line.split(' ').collect();
        let fd = |text: &str| fd_of(exporter.id(), text.parse().expect("a number")) as usize;
        let legacy = made(|out| cuIpcOpenMemHandle_v2(out, unhex(parts[2]), 1));
        let vmm = map(made(|out| cuMemImportFromShareableHandle(out, fd(parts[0]), 1)), 1);
        let pool = made(|out| cuMemPoolImportFromShareableHandle(out, fd(parts[1]), 1, 0));
        let pooled = made(|out| cuMemPoolImportPointer(out, pool, &unhex(parts[3])));
        let event = made(|out| cuIpcOpenEventHandle(out, unhex(parts[4])));
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
    const RELEASE: u64 = 1 << 40;

    pub fn memory_value_exporter() {
        start();
        let (pid, fd) = two_numbers();
        let values = SharedValues::of(fd_of(pid as u32, fd as i32));
        let stream = stream();
        assert_eq!(cuStreamWaitValue64_v2(stream, values.at(1), 1, 0), 0);
        for value in 1..=WRITES {
            assert_eq!(cuStreamWriteValue64_v2(stream, values.at(0), value, 0), 0);
        }
        send("queued");
        receive();
    }

    pub fn memory_value_survivor() {
        start();
        let values = SharedValues::new();
        let stream = stream();
        assert_eq!(cuStreamWaitValue64_v2(stream, values.at(0), RELEASE, 0), 0);
        let mut exporter = Process::start("memory_value_exporter", &[]);
        exporter.send(&format!("{} {}", std::process::id(), values.fd));
        assert_eq!(exporter.receive(), "queued");
        assert_eq!(values.get(0), 0, "the stream is still waiting");
        let exporter = exporter.kill_without_wait();
        values.set(1, 1);
        values.set(0, RELEASE);
        let mut overwritten = false;
        // The old value may come back before the stream has polled.
        eventually("the stream's wait ends", || {
            if values.get(0) < RELEASE {
                overwritten = true;
                values.set(0, RELEASE);
            }
            cuStreamQuery(stream) == 0
        });
        eventually("the dead process overwrites the value", || overwritten || values.get(0) < RELEASE);
        // A value that is stored after the process has exited stays.
        exporter.reap();
        assert!(values.get(0) <= WRITES);
        values.set(0, RELEASE);
        settle();
        assert_eq!(values.get(0), RELEASE);
    }

    pub fn event_for_another_dev_shm() {
        start();
        let handle = hex(&blob(|out| cuIpcGetEventHandle(out, shared_event())));
        let exe = std::env::current_exe().expect("path of the test executable");
        let mut isolated = Command::new("unshare");
        isolated.args(["--mount", "sh", "-c", "mount -t tmpfs none /dev/shm && exec \"$@\"", "sh"]).arg(exe);
        isolated.args(["--exact", "case", "--ignored", "--nocapture", "--test-threads=1"]);
        let mut isolated = Process::spawn(isolated, "event_importer", &[]);
        isolated.send(&format!("event {handle}"));
        assert_eq!(isolated.receive(), "205");
        let mut beside = Process::start("event_importer", &[]);
        beside.send(&format!("event {handle}"));
        assert_eq!(beside.receive(), "open");
        isolated.finish();
        beside.finish();
    }

    pub fn driver_in_forked_child() {
        start();
        assert_eq!(in_forked_child(cuCtxSynchronize), 3);
        assert_eq!(cuCtxSynchronize(), 0);
    }
}
