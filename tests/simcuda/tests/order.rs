// SPDX-License-Identifier: MIT OR Apache-2.0

//! The detector of unordered accesses: each kind of order in a program that is clean with it, and
//! reported without it.
//!
//! # Safety
//!
//! The signatures are those of `tests/simcuda/src/calls/order.rs`. The flag of a host function is
//! never freed.

#![allow(unsafe_code, reason = "calls a C interface")]

mod common;

use common::Process;
use gpu_order::{Violation, check};

/// Whether a case establishes the order that its name says.
const EDGE: &str = "SIMCUDA_TEST_EDGE";

/// Runs a case with or without its order, and returns the detector's verdict.
fn verdict(case: &str, edge: bool, environment: &[(&str, &str)]) -> Result<(), Box<Violation>> {
    let trace = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = trace.path().to_str().expect("a path in UTF-8");
    let edge = if edge { "1" } else { "0" };
    let environment = [&[("SIMCUDA_ORDER", path), (EDGE, edge)], environment].concat();
    Process::start(case, &environment).finish();
    let summary = check(path)?;
    assert!(summary.accesses >= 2, "{case}: {summary:?}");
    Ok(())
}

/// The case is clean with its order, and reported without, in each case for several seeds.
#[track_caller]
fn detects(case: &str) {
    for seed in ["1", "2", "3"] {
        if let Err(violation) = verdict(case, true, &[("SIMCUDA_SEED", seed)]) {
            panic!("{case}, ordered, seed {seed}: {violation}");
        }
        match verdict(case, false, &[("SIMCUDA_SEED", seed)]) {
            Err(violation) if matches!(*violation, Violation::Unordered { .. }) => {}
            other => panic!("{case}, unordered, seed {seed}: {other:?}"),
        }
    }
}

macro_rules! detected {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                detects(stringify!($name));
            }
        )*

        cases! {
            $($name)*
            event_reader value_reader claim_reader relay doomed_reader
        }
    };
}

detected! {
    stream_order event_order context_event_order synchronize_order context_synchronize_order
    stream_query_order event_query_order synchronous_copy_order host_function_order
    null_stream_order per_thread_stream_order kernel_ranges registered_memory_order
    interprocess_event_order stream_value_order cpu_value_order claim_order
    order_through_another_process pool_free_order pool_reuse_order end_of_process_order
}

mod cases {
    use crate::common::*;
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn edge() -> bool {
        std::env::var(crate::EDGE).expect("set by the test") == "1"
    }

    fn announce(name: &str, address: *const c_void) {
        // SAFETY: see the module header.
        unsafe {
            let call: libloading::Symbol<'_, unsafe extern "C" fn(*const c_void)> =
                library().get(name).expect("the call exists");
            call(address);
        }
    }

    fn access(address: u64, len: usize, write: bool) {
        // SAFETY: as above.
        unsafe {
            let call: libloading::Symbol<'_, unsafe extern "C" fn(u64, usize, i32)> =
                library().get("simcudaAccess").expect("the call exists");
            call(address, len, write.into());
        }
    }

    fn launch(stream: usize, ranges: &[[u64; 3]]) {
        // SAFETY: as above; the last number is a flag and padding.
        let code = unsafe {
            let call: libloading::Symbol<'_, unsafe extern "C" fn(usize, usize, *const [u64; 3]) -> i32> =
                library().get("simcudaLaunch").expect("the call exists");
            call(stream, ranges.len(), ranges.as_ptr())
        };
        assert_eq!(code, 0);
    }

    fn memory() -> u64 {
        made(|out| cuMemAlloc_v2(out, MIB_2))
    }

    fn write(memory: u64, stream: usize) {
        assert_eq!(cuMemsetD8Async(memory, 7, MIB_2, stream), 0);
    }

    fn read(memory: u64, stream: usize) {
        let copy = self::memory();
        assert_eq!(cuMemcpyDtoDAsync_v2(copy, memory, MIB_2, stream), 0);
    }

    /// Waits until all work is complete, without an order that the next steps could use.
    fn end(_: u64) {
        assert_eq!(cuCtxSynchronize(), 0);
    }

    fn event() -> usize {
        made(|out| cuEventCreate(out, 2))
    }

    pub fn stream_order() {
        start();
        let (memory, first, second) = (memory(), stream(), stream());
        write(memory, first);
        read(memory, if edge() { first } else { second });
        end(memory);
    }

    pub fn event_order() {
        start();
        let (memory, first, second, event) = (memory(), stream(), stream(), event());
        // Without the edge, the event does not cover the write.
        if !edge() {
            assert_eq!(cuEventRecord(event, first), 0);
        }
        write(memory, first);
        if edge() {
            assert_eq!(cuEventRecord(event, first), 0);
        }
        settle();
        assert_eq!(cuStreamWaitEvent(second, event, 0), 0);
        read(memory, second);
        end(memory);
    }

    pub fn context_event_order() {
        let context = start();
        let (memory, first, second, event) = (memory(), stream(), stream(), event());
        write(memory, first);
        if edge() {
            assert_eq!(cuCtxRecordEvent(context, event), 0);
        }
        assert_eq!(cuStreamWaitEvent(second, event, 0), 0);
        write(memory, second);
        end(memory);
    }

    /// Reads on one stream, calls `order`, or waits without it, and writes on another stream.
    fn with_cpu(order: impl FnOnce(usize, usize)) {
        start();
        let (memory, first, second, event) = (memory(), stream(), stream(), event());
        read(memory, first);
        assert_eq!(cuEventRecord(event, first), 0);
        if edge() {
            order(first, event);
        } else {
            settle();
        }
        write(memory, second);
        end(memory);
    }

    pub fn synchronize_order() {
        with_cpu(|stream, _| assert_eq!(cuStreamSynchronize(stream), 0));
    }

    pub fn context_synchronize_order() {
        with_cpu(|_, _| assert_eq!(cuCtxSynchronize(), 0));
    }

    pub fn stream_query_order() {
        with_cpu(|stream, _| eventually("the stream is idle", || cuStreamQuery(stream) == 0));
    }

    pub fn event_query_order() {
        with_cpu(|_, event| eventually("the event is complete", || cuEventQuery(event) == 0));
    }

    pub fn synchronous_copy_order() {
        start();
        let (memory, other) = (memory(), stream());
        let mut bytes = vec![0; MIB_2];
        if edge() {
            assert_eq!(cuMemcpyDtoH_v2(bytes.as_mut_ptr(), memory, MIB_2), 0);
        } else {
            read(memory, 0);
        }
        write(memory, other);
        end(memory);
    }

    pub fn host_function_order() {
        extern "C" fn set(flag: *mut c_void) {
            // SAFETY: see the module header.
            unsafe { &*flag.cast::<AtomicBool>() }.store(true, Ordering::Release);
        }
        with_cpu(|stream, _| {
            let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
            assert_eq!(cuLaunchHostFunc(stream, set, std::ptr::from_ref(flag).cast_mut().cast()), 0);
            eventually("the host function ran", || flag.load(Ordering::Acquire));
        });
    }

    pub fn null_stream_order() {
        start();
        // A blocking stream is ordered with the NULL stream, a non-blocking one is not.
        let other = made(|out| cuStreamCreate(out, u32::from(!edge())));
        let memory = memory();
        write(memory, 0);
        read(memory, other);
        end(memory);
    }

    pub fn per_thread_stream_order() {
        let context = start();
        let memory = memory();
        write(memory, 2);
        let read = move || {
            assert_eq!(cuCtxSetCurrent(context), 0);
            read(memory, 2);
        };
        if edge() {
            read();
        } else {
            std::thread::spawn(read).join().expect("the thread reads");
        }
        end(memory);
    }

    pub fn kernel_ranges() {
        start();
        let (memory, first, second) = (memory(), stream(), stream());
        launch(first, &[[memory, 4096, 1]]);
        // The other kernel reads what follows, or one byte more.
        let start = if edge() { memory + 4096 } else { memory + 4095 };
        launch(second, &[[start, 4096, 0], [memory + 65536, 64, 1]]);
        end(memory);
    }

    pub fn registered_memory_order() {
        start();
        let (memory, stream, host) = (memory(), stream(), SharedValues::new());
        assert_eq!(cuMemcpyDtoDAsync_v2(host.device, memory, 4096, stream), 0);
        if edge() {
            assert_eq!(cuStreamSynchronize(stream), 0);
        } else {
            settle();
        }
        access(host.host as u64 + 64, 8, false);
        end(memory);
    }

    /// Exports memory to a reader: returns the text that names it.
    fn export(memory: u64) -> String {
        hex(&blob(|out| cuIpcGetMemHandle(out, memory)))
    }

    fn import() -> u64 {
        made(|out| cuIpcOpenMemHandle_v2(out, unhex(&receive()), 1))
    }

    pub fn interprocess_event_order() {
        start();
        let (memory, stream, event) = (memory(), stream(), shared_event());
        let mut reader = Process::start("event_reader", &[]);
        reader.send(&export(memory));
        reader.send(&hex(&blob(|out| cuIpcGetEventHandle(out, event))));
        write(memory, stream);
        assert_eq!(cuEventRecord(event, stream), 0);
        reader.send("recorded");
        assert_eq!(reader.receive(), "read");
        reader.finish();
        end(memory);
    }

    pub fn event_reader() {
        start();
        let (memory, stream) = (import(), stream());
        let event = made(|out| cuIpcOpenEventHandle(out, unhex(&receive())));
        assert_eq!(receive(), "recorded");
        if edge() {
            assert_eq!(cuStreamWaitEvent(stream, event, 0), 0);
        } else {
            settle();
        }
        read(memory, stream);
        end(memory);
        send("read");
    }

    /// Writes memory and then a value for a reader, `before` the value is stored.
    fn with_value(reader: &str, order: impl FnOnce(usize, &SharedValues)) {
        start();
        let (memory, stream, values) = (memory(), stream(), SharedValues::new());
        let mut reader = Process::start(reader, &[]);
        reader.send(&export(memory));
        reader.send(&format!("{} {}", std::process::id(), values.fd));
        write(memory, stream);
        order(stream, &values);
        assert_eq!(reader.receive(), "read");
        reader.finish();
        end(memory);
    }

    fn import_values() -> SharedValues {
        let line = receive();
        let (pid, fd) = line.split_once(' ').expect("a pid and a descriptor");
        SharedValues::of(fd_of(pid.parse().expect("a pid"), fd.parse().expect("a descriptor")))
    }

    pub fn stream_value_order() {
        with_value("value_reader", |stream, values| {
            // Without the edge the value is written by a stream that does not wait for the frame.
            let stream = if edge() { stream } else { self::stream() };
            assert_eq!(cuStreamWriteValue64_v2(stream, values.at(3), 5, 0), 0);
        });
    }

    pub fn cpu_value_order() {
        with_value("value_reader", |stream, values| {
            if edge() {
                assert_eq!(cuStreamSynchronize(stream), 0);
            }
            announce("simcudaRelease", values.host.wrapping_add(3).cast());
            values.set(3, 5);
        });
    }

    pub fn value_reader() {
        start();
        let (memory, stream, values) = (import(), stream(), import_values());
        assert_eq!(cuStreamWaitValue64_v2(stream, values.at(3), 5, 0), 0);
        read(memory, stream);
        end(memory);
        send("read");
    }

    pub fn claim_order() {
        with_value("claim_reader", |stream, values| {
            assert_eq!(cuStreamSynchronize(stream), 0);
            if edge() {
                announce("simcudaRelease", values.host.wrapping_add(9).cast());
            }
            values.set(9, 1);
        });
    }

    pub fn claim_reader() {
        start();
        let (memory, stream, values) = (import(), stream(), import_values());
        eventually("the frame is published", || values.get(9) == 1);
        announce("simcudaAcquire", values.host.wrapping_add(9).cast());
        read(memory, stream);
        end(memory);
        send("read");
    }

    pub fn order_through_another_process() {
        start();
        let (memory, first, second, values) = (memory(), stream(), stream(), SharedValues::new());
        let mut relay = Process::start("relay", &[]);
        relay.send(&format!("{} {}", std::process::id(), values.fd));
        write(memory, first);
        assert_eq!(cuStreamWriteValue64_v2(first, values.at(0), 1, 0), 0);
        assert_eq!(cuStreamWaitValue64_v2(second, values.at(1), 1, 0), 0);
        write(memory, second);
        end(memory);
        relay.finish();
    }

    pub fn relay() {
        start();
        let (stream, values) = (stream(), import_values());
        if edge() {
            assert_eq!(cuStreamWaitValue64_v2(stream, values.at(0), 1, 0), 0);
        } else {
            settle();
        }
        assert_eq!(
            (cuStreamWriteValue64_v2(stream, values.at(1), 1, 0), cuStreamSynchronize(stream)),
            (0, 0)
        );
    }

    pub fn pool_free_order() {
        start();
        let (owner, other, event) = (stream(), stream(), event());
        let pool = made(|out| cuMemPoolCreate(out, &pool_properties()));
        let memory = made(|out| cuMemAllocFromPoolAsync(out, MIB_2, pool, owner));
        assert_eq!((cuEventRecord(event, owner), cuStreamWaitEvent(other, event, 0)), (0, 0));
        write(memory, other);
        if edge() {
            assert_eq!((cuEventRecord(event, other), cuStreamWaitEvent(owner, event, 0)), (0, 0));
        } else {
            settle();
        }
        assert_eq!((cuMemFreeAsync(memory, owner), cuStreamSynchronize(owner)), (0, 0));
        end(memory);
    }

    /// Memory that was allocated on one stream is written by another one, which may be ahead.
    pub fn pool_reuse_order() {
        start();
        let (owner, other) = (stream(), stream());
        let pool = made(|out| cuMemPoolCreate(out, &pool_properties()));
        let first = made(|out| cuMemAllocFromPoolAsync(out, MIB_2, pool, owner));
        write(first, owner);
        assert_eq!((cuMemFreeAsync(first, owner), cuStreamSynchronize(owner)), (0, 0));
        // The driver orders an allocation behind the last free of its memory, and nothing else.
        let second = made(|out| cuMemAllocFromPoolAsync(out, MIB_2, pool, other));
        write(second, if edge() { other } else { owner });
        end(second);
    }

    pub fn end_of_process_order() {
        start();
        let (memory, stream) = (memory(), stream());
        let mut reader = Process::start("doomed_reader", &[("SIMCUDA_AFTERLIFE_US", "300000")]);
        reader.send(&export(memory));
        assert_eq!(reader.receive(), "reading");
        let reader = reader.kill_without_wait();
        // Its queue runs on until it counts as exited.
        let reader = if edge() {
            reader.reap();
            None
        } else {
            Some(reader)
        };
        write(memory, stream);
        end(memory);
        reader.into_iter().for_each(Process::reap);
    }

    pub fn doomed_reader() {
        start();
        let (memory, stream) = (import(), stream());
        read(memory, stream);
        settle();
        // One item that is left in the queue.
        let _gate = Gate::on(stream);
        read(memory, stream);
        send("reading");
        receive();
    }
}
