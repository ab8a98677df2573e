// SPDX-License-Identifier: MIT OR Apache-2.0

//! The simulated driver in one process.

mod common;

use common::run;

/// Runs each named case as a test of its own, on three seeds.
macro_rules! each {
    ($($name:ident $($variable:literal = $value:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                for seed in ["1", "2", "3"] {
                    run(stringify!($name), &[("SIMCUDA_SEED", seed), $(($variable, $value)),*]);
                }
            }
        )*
        cases! { $($name)* }
    };
}

each! {
    content_follows_stream_order;
    fresh_memory_is_not_zeroed;
    null_stream_orders_blocking_streams;
    each_thread_has_default_stream_of_its_own;
    default_stream_outlives_its_thread;
    wait_refers_to_last_record_before_it;
    context_wide_record_covers_every_stream;
    pageable_source_is_read_before_return;
    cuda_call_in_host_function_is_refused;
    invalid_handles_are_refused;
    vmm_sizes_must_be_whole_granules;
    write_to_read_only_mapping_poisons_context;
    memory_operations_order_streams;
    memory_operations_v1_are_disabled;
    cpu_store_unblocks_waiting_stream;
    unregistering_waits_for_queued_writes;
    freeing_waits_for_queued_work;
    calls_that_free_wait_beside_waiting_stream;
    other_calls_do_not_wait_beside_waiting_stream;
    full_stream_blocks_next_call;
    as_many_waiting_streams_as_channels_hold_back_others;
    fewer_waiting_streams_hold_back_none "CUDA_DEVICE_MAX_CONNECTIONS" = "9";
    ring_of_waiting_streams_never_ends "CUDA_DEVICE_MAX_CONNECTIONS" = "32";
    pool_misuse_is_refused;
    own_ipc_handles_are_refused;
    interprocess_event_4095_fails;
    context_wide_record_during_capture_fails;
    calls_of_other_threads_invalidate_captures_as_measured;
    event_carries_capture_to_waiting_stream;
    injected_errors_are_returned "SIMCUDA_FAIL" = "cuMemAlloc_v2:2:2,cuEventCreate:3+:700";
    withheld_attributes_disable_functions "SIMCUDA_WITHHOLD" = "122,125,103:unknown,115";
    two_devices_have_separate_access "SIMCUDA_DEVICES" = "2";
    visible_devices_are_reordered "SIMCUDA_DEVICES" = "2" "CUDA_VISIBLE_DEVICES" = "1,0";
    allocation_above_memory_size_fails "SIMCUDA_MEM" = "8388608";
}

mod cases {
    use crate::common::*;
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    pub fn content_follows_stream_order() {
        start();
        let (first, second) = (stream(), stream());
        let (a, b) = (made(|out| cuMemAlloc_v2(out, 1000)), made(|out| cuMemAlloc_v2(out, 1000)));
        let event = made(|out| cuEventCreate(out, 2));
        for round in 1..50 {
            assert_eq!(cuMemsetD8Async(a, round, 1000, first), 0);
            assert_eq!(cuEventRecord(event, first), 0);
            assert_eq!(cuStreamWaitEvent(second, event, 0), 0);
            assert_eq!(cuMemcpyDtoDAsync_v2(b, a, 1000, second), 0);
            assert_eq!(cuEventRecord(event, second), 0);
            assert_eq!(cuStreamWaitEvent(first, event, 0), 0);
            assert_eq!(cuStreamSynchronize(second), 0);
            assert_eq!(bytes(b, 1000), vec![round; 1000]);
        }
        assert_eq!(cuMemsetD2D16Async(a, 10, 0x0201, 3, 4, first), 0);
        assert_eq!(cuCtxSynchronize(), 0);
        assert_eq!(bytes(a, 12), [1, 2, 1, 2, 1, 2, 49, 49, 49, 49, 1, 2]);
    }

    pub fn fresh_memory_is_not_zeroed() {
        start();
        assert_eq!(bytes(made(|out| cuMemAlloc_v2(out, 5000)), 5000), [0xfd; 5000]);
        let handle = made(|out| cuMemCreate(out, MIB_2, &properties(), 0));
        assert_eq!(bytes(map(handle, 3), MIB_2), vec![0xfd; MIB_2]);
        let (stream, pool) = (stream(), made(|out| cuMemPoolCreate(out, &pool_properties())));
        for _ in 0..2 {
            let piece = made(|out| cuMemAllocFromPoolAsync(out, 5000, pool, stream));
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(bytes(piece, 5000), [0xfd; 5000]);
            assert_eq!((cuMemsetD8Async(piece, 1, 5000, stream), cuMemFreeAsync(piece, stream)), (0, 0));
            assert_eq!(cuStreamSynchronize(stream), 0);
        }
    }

    pub fn null_stream_orders_blocking_streams() {
        start();
        let blocking = made(|out| cuStreamCreate(out, 0));
        let free = stream();
        let gate = Gate::on(blocking);
        let a = made(|out| cuMemAlloc_v2(out, 8));
        assert_eq!(cuMemsetD8Async(a, 1, 8, 0), 0);
        let after = made(|out| cuStreamCreate(out, 0));
        assert_eq!(cuMemsetD8Async(a, 2, 8, after), 0);
        // Neither memset has run, but work in a non-blocking stream has.
        assert_eq!(cuMemsetD8Async(a, 3, 4, free), 0);
        assert_eq!(cuStreamSynchronize(free), 0);
        assert_eq!((cuStreamQuery(0), cuStreamQuery(after)), (NOT_READY, NOT_READY));
        gate.open();
        assert_eq!(cuStreamSynchronize(after), 0);
        assert_eq!(bytes(a, 8), [2; 8]);
    }

    pub fn each_thread_has_default_stream_of_its_own() {
        const PER_THREAD: usize = 2;
        let context = start();
        let gate = Gate::on(PER_THREAD);
        let event = made(|out| cuEventCreate(out, 2));
        let of_another_thread = || {
            assert_eq!(cuCtxPushCurrent_v2(context), 0);
            assert_eq!((cuStreamQuery(PER_THREAD), cuEventRecord(event, PER_THREAD)), (0, 0));
            assert_eq!(cuEventSynchronize(event), 0);
        };
        std::thread::scope(|scope| scope.spawn(of_another_thread).join().unwrap());
        assert_eq!(cuStreamQuery(PER_THREAD), NOT_READY);
        // The NULL stream, and a record of the whole context, follow those of all threads.
        assert_eq!((cuStreamQuery(0), cuCtxRecordEvent(context, event)), (NOT_READY, 0));
        assert_eq!(cuEventQuery(event), NOT_READY);
        gate.open();
        assert_eq!(cuEventSynchronize(event), 0);
    }

    pub fn default_stream_outlives_its_thread() {
        const PER_THREAD: usize = 2;
        let context = start();
        let on_a_thread = |call: &(dyn Fn() + Sync)| {
            let run = || {
                assert_eq!(cuCtxPushCurrent_v2(context), 0);
                call();
            };
            std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        };
        let gate = std::sync::Mutex::new(None);
        on_a_thread(&|| *gate.lock().unwrap() = Some(Gate::on(PER_THREAD)));
        // No later thread has the stream of the ended one; its work is still the context's.
        on_a_thread(&|| assert_eq!(cuStreamQuery(PER_THREAD), 0));
        assert_eq!(cuStreamQuery(PER_THREAD), 0);
        let event = made(|out| cuEventCreate(out, 2));
        assert_eq!((cuCtxRecordEvent(context, event), cuEventQuery(event)), (0, NOT_READY));
        gate.lock().unwrap().take().unwrap().open();
        assert_eq!(cuEventSynchronize(event), 0);
    }

    pub fn wait_refers_to_last_record_before_it() {
        start();
        let (first, second, waiting) = (stream(), stream(), stream());
        let event = made(|out| cuEventCreate(out, 2));
        assert_eq!((cuEventQuery(event), cuStreamWaitEvent(waiting, event, 0)), (0, 0));
        assert_eq!(cuStreamSynchronize(waiting), 0);
        let gate = Gate::on(first);
        assert_eq!(cuEventRecord(event, first), 0);
        assert_eq!(cuStreamWaitEvent(waiting, event, 0), 0);
        // A second record, in an idle stream: the event is complete, the wait for the first record
        // is not.
        assert_eq!((cuEventRecord(event, second), cuEventSynchronize(event)), (0, 0));
        assert_eq!((cuEventQuery(event), cuStreamQuery(waiting)), (0, NOT_READY));
        gate.open();
        assert_eq!(cuStreamSynchronize(waiting), 0);
    }

    pub fn context_wide_record_covers_every_stream() {
        let context = start();
        let (busy, idle) = (stream(), stream());
        for event in [made(|out| cuEventCreate(out, 2)), shared_event()] {
            let gate = Gate::on(busy);
            assert_eq!(cuCtxRecordEvent(context, event), 0);
            assert_eq!(cuEventQuery(event), NOT_READY);
            // The record is no barrier: later work does not wait.
            let a = made(|out| cuMemAlloc_v2(out, 8));
            assert_eq!((cuMemsetD8Async(a, 3, 8, idle), cuStreamSynchronize(idle)), (0, 0));
            gate.open();
            assert_eq!(cuEventSynchronize(event), 0);
        }
        // A destroyed stream is covered, too.
        let gate = Gate::on(busy);
        assert_eq!(cuStreamDestroy_v2(busy), 0);
        let event = made(|out| cuEventCreate(out, 2));
        assert_eq!((cuCtxRecordEvent(context, event), cuEventQuery(event)), (0, NOT_READY));
        gate.open();
        assert_eq!(cuEventSynchronize(event), 0);
    }

    pub fn pageable_source_is_read_before_return() {
        start();
        let stream = stream();
        let a = made(|out| cuMemAlloc_v2(out, 64));
        let gate = Gate::on(stream);
        let mut source = [1u8; 32];
        assert_eq!(cuMemcpyHtoDAsync_v2(a, source.as_ptr(), 32, stream), 0);
        source.fill(2);
        let mut pinned: *mut c_void = std::ptr::null_mut();
        assert_eq!(cuMemAllocHost_v2(&mut pinned, 32), 0);
        assert_eq!(cuMemcpyHtoDAsync_v2(a + 32, pinned.cast(), 32, stream), 0);
        let text = [5u8; 32];
        assert_eq!(cuMemcpyHtoD_v2(pinned as u64, text.as_ptr(), 32), 0);
        gate.open();
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(bytes(a, 64), [[1; 32], [5; 32]].concat());
    }

    pub fn cuda_call_in_host_function_is_refused() {
        static ANSWER: AtomicI32 = AtomicI32::new(-1);
        extern "C" fn call(_: *mut c_void) {
            ANSWER.store(cuCtxSynchronize(), Ordering::Release);
        }
        start();
        let stream = stream();
        assert_eq!(
            (cuLaunchHostFunc(stream, call, std::ptr::null_mut()), cuStreamSynchronize(stream)),
            (0, 0)
        );
        assert_eq!(ANSWER.load(Ordering::Acquire), 800);
    }

    pub fn invalid_handles_are_refused() {
        let mut count = 0;
        assert_eq!(cuDeviceGetCount(&mut count), 3);
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuStreamCreate(&mut 0, 0), 201);
        let first = context(0);
        let (stream, event) = (stream(), made(|out| cuEventCreate(out, 2)));
        context(0);
        // A stream can record only events of its own context.
        assert_eq!(cuEventRecord(event, self::stream()), 400);
        assert_eq!(cuStreamDestroy_v2(stream), 0);
        assert_eq!((cuStreamQuery(stream), cuStreamDestroy_v2(stream)), (400, 400));
        assert_eq!((cuEventDestroy_v2(event), cuEventQuery(event)), (0, 400));
        assert_eq!(cuCtxDestroy_v2(first), 0);
        assert_eq!(cuEventCreate(&mut 0, 4), 1, "interprocess events have no timing");
        assert_eq!(cuMemFree_v2(12345), 1);
        let (mut found, mut status) = (0, -1);
        assert_eq!(cuGetProcAddress_v2(c"cuMemAlloc".as_ptr(), &mut found, 12000, 0, &mut status), 0);
        assert!(found != 0 && status == 0);
        assert_eq!(cuGetProcAddress_v2(c"cuNoSuchCall".as_ptr(), &mut found, 12000, 0, &mut status), 500);
    }

    pub fn vmm_sizes_must_be_whole_granules() {
        start();
        let granule = made(|out| cuMemGetAllocationGranularity(out, &properties(), 0));
        assert_eq!(granule, MIB_2);
        assert_eq!(cuMemCreate(&mut 0, 4096, &properties(), 0), 1);
        let handle = made(|out| cuMemCreate(out, granule, &properties(), 0));
        let address = made(|out| cuMemAddressReserve(out, 2 * granule, 0, 0, 0));
        assert_eq!(cuMemMap(address + 4096, granule, 0, handle, 0), 1);
        assert_eq!(cuMemMap(address, 2 * granule, 0, handle, 0), 801, "larger than the allocation");
        assert_eq!(cuMemMap(address, granule, 0, handle, 0), 0);
        assert_eq!(cuMemMap(address, granule, 0, handle, 0), 1, "already mapped");
        assert_eq!(cuMemRelease(handle), 0);
        assert_eq!(cuMemGetAddressRange_v2(&mut 0, &mut 0, address), 500);
        assert_eq!(cuIpcGetMemHandle(&mut Blob([0; 64]), address), 1);
        assert_eq!(cuMemAddressFree(address, 2 * granule), 1, "still mapped");
        assert_eq!(cuMemUnmap(address, 4096), 1);
        assert_eq!((cuMemUnmap(address, granule), cuMemAddressFree(address, 2 * granule)), (0, 0));
        let other = properties();
        assert_eq!(cuMemCreate(&mut 0, granule, &AllocationProperties { location: [1, 1], ..other }, 0), 101);
        assert_eq!(cuMemImportFromShareableHandle(&mut 0, 0, 1), 999, "not a CUDA descriptor");
    }

    pub fn write_to_read_only_mapping_poisons_context() {
        start();
        let handle = made(|out| cuMemCreate(out, MIB_2, &properties(), 0));
        let writable = map(handle, 3);
        let fd = made(|out| cuMemExportToShareableHandle(out, handle, 1, 0));
        // A second import, and an import of the process's own memory, both succeed.
        for _ in 0..2 {
            let imported = made(|out| cuMemImportFromShareableHandle(out, fd as usize, 1));
            assert_eq!(cuMemRelease(imported), 0);
        }
        let imported = made(|out| cuMemImportFromShareableHandle(out, fd as usize, 1));
        let stream = stream();
        assert_eq!(cuMemsetD8Async(writable, 7, MIB_2, stream), 0);
        assert_eq!(cuStreamSynchronize(stream), 0);

        context(0);
        let readable = map(imported, 1);
        assert_eq!(bytes(readable, 16), [7; 16]);
        let (failing, source) = (self::stream(), made(|out| cuMemAlloc_v2(out, MIB_2)));
        assert_eq!(cuMemsetD8Async(readable, 9, MIB_2, failing), 1, "a memset is refused");
        assert_eq!(cuStreamSynchronize(failing), 0);
        // Copies stand for kernels.
        assert_eq!(cuMemcpyDtoDAsync_v2(readable, source, MIB_2, failing), 0);
        assert_eq!(cuStreamSynchronize(failing), 700);
        assert_eq!((cuCtxSynchronize(), cuMemAlloc_v2(&mut 0, 64), cuStreamQuery(failing)), (700, 700, 700));

        // The other context and the memory are unharmed.
        cuCtxPopCurrent_v2(&mut 0);
        assert_eq!(cuCtxSynchronize(), 0);
        assert_eq!(bytes(writable, 16), [7; 16]);
    }

    pub fn memory_operations_order_streams() {
        start();
        let values = SharedValues::new();
        let (a, b) = (stream(), stream());
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        for round in 1..=100u64 {
            assert_eq!(cuStreamWaitValue64_v2(b, values.at(0), round, 0), 0);
            assert_eq!(cuStreamWriteValue64_v2(b, values.at(1), round, 0), 0);
            assert_eq!(cuMemsetD8Async(memory, round as u8, 64, a), 0);
            let write = |index, value| BatchEntry {
                operation: 5,
                address: values.at(index),
                value,
                ..BatchEntry::default()
            };
            let batch = [
                write(2, round),
                write(0, round),
                BatchEntry { operation: 4, address: values.at(1), value: round, ..write(1, 0) },
            ];
            assert_eq!(cuStreamBatchMemOp_v2(a, 3, batch.as_ptr(), 0), 0);
        }
        assert_eq!((cuStreamSynchronize(a), cuStreamSynchronize(b)), (0, 0));
        assert_eq!([0, 1, 2].map(|index| values.get(index)), [100; 3]);
        assert_eq!(cuStreamBatchMemOp_v2(a, 256, [BatchEntry::default(); 256].as_ptr(), 0), 1);
        assert_eq!(cuStreamWriteValue64_v2(a, values.at(0) + 4, 1, 0), 1, "not aligned");
        let not_registered = Box::new(0u64);
        assert_eq!(cuStreamWriteValue64_v2(a, std::ptr::from_ref(&*not_registered) as u64, 1, 0), 1);
        assert_eq!(cuMemHostRegister_v2(values.host.cast(), 4096, 0), 712);
    }

    pub fn memory_operations_v1_are_disabled() {
        start();
        let values = SharedValues::new();
        assert_eq!(cuStreamWriteValue64(stream(), values.at(0), 1, 0), 801);
        assert_eq!(made(|out| cuDeviceGetAttribute(out, 93, 0)), 0);
        assert_eq!(made(|out| cuDeviceGetAttribute(out, 122, 0)), 1);
    }

    pub fn cpu_store_unblocks_waiting_stream() {
        start();
        let values = SharedValues::new();
        let (blocked, other) = (stream(), stream());
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        assert_eq!(cuStreamWaitValue64_v2(blocked, values.at(0), 5, 0), 0);
        assert_eq!(cuMemsetD8Async(memory, 1, 64, blocked), 0);
        assert_eq!(cuMemsetD8Async(memory, 2, 64, other), 0);
        assert_eq!((cuStreamSynchronize(other), cuStreamQuery(blocked)), (0, NOT_READY));
        values.set(0, 6);
        assert_eq!(cuStreamSynchronize(blocked), 0);
        assert_eq!(bytes(memory, 64), [1; 64]);
        // A stream whose wait never ends can be destroyed.
        assert_eq!(
            (cuStreamWaitValue64_v2(blocked, values.at(1), 1, 0), cuStreamDestroy_v2(blocked)),
            (0, 0)
        );
        assert_eq!(cuMemsetD8Async(memory, 3, 64, stream()), 0);
        // Its work still keeps memory from being freed.
        values.set(1, 1);
        assert_eq!(cuMemFree_v2(memory), 0);
    }

    /// Asserts that `call` returns only after `gate` was opened.
    fn waits_for(gate: &Gate, call: impl FnOnce() + Send) {
        let opened = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let opened = &opened;
            scope.spawn(move || {
                call();
                assert!(opened.load(Ordering::Acquire), "the call returned before the gate was opened");
            });
            settle();
            opened.store(true, Ordering::Release);
            gate.open();
        });
    }

    pub fn unregistering_waits_for_queued_writes() {
        let context = start();
        let values = SharedValues::new();
        let stream = stream();
        let gate = Gate::on(stream);
        assert_eq!(cuStreamWriteValue64_v2(stream, values.at(3), 9, 0), 0);
        let page = values.host as usize;
        waits_for(&gate, move || {
            assert_eq!((cuCtxPushCurrent_v2(context), cuMemHostUnregister(page as *mut c_void)), (0, 0));
        });
        assert_eq!(values.get(3), 9);
        assert_eq!(cuMemHostUnregister(page as *mut c_void), 713);
    }

    pub fn freeing_waits_for_queued_work() {
        let context = start();
        let stream = stream();
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        let gate = Gate::on(stream);
        assert_eq!(cuMemsetD8Async(memory, 1, 64, stream), 0);
        waits_for(&gate, move || assert_eq!((cuCtxPushCurrent_v2(context), cuMemFree_v2(memory)), (0, 0)));
        assert_eq!(cuStreamSynchronize(stream), 0);
    }

    fn host_memory() -> *mut c_void {
        let mut memory = std::ptr::null_mut();
        assert_eq!(cuMemAllocHost_v2(&mut memory, 64), 0);
        memory
    }

    /// Measured: these calls wait for a stream that has nothing to do with their memory.
    pub fn calls_that_free_wait_beside_waiting_stream() {
        let context = start();
        let (waiting, values, registered) = (stream(), SharedValues::new(), SharedValues::new());
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        let (host, registered) = (host_memory() as usize, registered.host as usize);
        let calls: [&(dyn Fn() -> i32 + Sync); 3] =
            [&|| cuMemFree_v2(memory), &|| cuMemFreeHost(host as *mut c_void), &|| {
                cuMemHostUnregister(registered as *mut c_void)
            }];
        for (call, value) in calls.into_iter().zip(1..) {
            let stored = AtomicBool::new(false);
            assert_eq!(cuStreamWaitValue64_v2(waiting, values.at(0), value, 0), 0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!((cuCtxPushCurrent_v2(context), call()), (0, 0));
                    assert!(stored.load(Ordering::Acquire), "call {value} did not wait");
                });
                settle();
                stored.store(true, Ordering::Release);
                values.set(0, value);
            });
        }
    }

    /// Measured: these calls return while a stream waits.
    pub fn other_calls_do_not_wait_beside_waiting_stream() {
        let context = start();
        let (waiting, values) = (stream(), SharedValues::new());
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        assert_eq!(cuStreamWaitValue64_v2(waiting, values.at(0), 1, 0), 0);
        // The launch: a memset stands for a kernel.
        let other = stream();
        assert_eq!((cuMemsetD8Async(memory, 1, 64, other), cuStreamDestroy_v2(other)), (0, 0));
        assert_eq!(cuCtxRecordEvent(context, made(|out| cuEventCreate(out, 2))), 0);
        made(|out| cuMemAlloc_v2(out, 1 << 30));
        let handle = made(|out| cuMemCreate(out, MIB_2, &properties(), 0));
        let mapped = map(handle, 3);
        assert_eq!((cuMemUnmap(mapped, MIB_2), cuMemAddressFree(mapped, MIB_2)), (0, 0));
        assert_eq!(cuMemRelease(handle), 0);
        host_memory();
        SharedValues::new();
        bytes(memory, 64);
        assert_eq!(cuStreamQuery(waiting), NOT_READY);
        values.set(0, 1);
        assert_eq!(cuStreamSynchronize(waiting), 0);
    }

    pub fn full_stream_blocks_next_call() {
        let context = start();
        let stream = stream();
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        let gate = Gate::on(stream);
        // The gate is a host function, which takes 16 entries.
        for _ in 0..1024 - 16 {
            assert_eq!(cuMemsetD8Async(memory, 1, 64, stream), 0);
        }
        waits_for(&gate, move || {
            assert_eq!((cuCtxPushCurrent_v2(context), cuMemsetD8Async(memory, 2, 64, stream)), (0, 0));
        });
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(bytes(memory, 64), [2; 64]);
    }

    /// Queues waits in 8 streams; returns whether they hold back another stream.
    fn waiting_streams_hold_back_others() -> bool {
        start();
        let values = SharedValues::new();
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        let other = stream();
        for waiting in 1..=8 {
            assert_eq!(cuStreamWaitValue64_v2(stream(), values.at(0), 1, 0), 0);
            settle();
            assert_eq!(cuMemsetD8Async(memory, 1, 64, other), 0);
            if waiting < 8 {
                assert_eq!(cuStreamSynchronize(other), 0);
            }
        }
        settle();
        let held_back = cuStreamQuery(other) == NOT_READY;
        values.set(0, 1);
        assert_eq!(cuStreamSynchronize(other), 0);
        held_back
    }

    pub fn as_many_waiting_streams_as_channels_hold_back_others() {
        assert!(waiting_streams_hold_back_others());
    }

    pub fn fewer_waiting_streams_hold_back_none() {
        assert!(!waiting_streams_hold_back_others());
    }

    /// Each stream waits for the value that the one before it writes; the last one to be queued
    /// begins.
    pub fn ring_of_waiting_streams_never_ends() {
        start();
        let values = SharedValues::new();
        let streams = [(); 33].map(|()| stream());
        for (index, &stream) in streams.iter().enumerate().skip(1) {
            assert_eq!(cuStreamWaitValue64_v2(stream, values.at(index - 1), 1, 0), 0);
            assert_eq!(cuStreamWriteValue64_v2(stream, values.at(index), 1, 0), 0);
        }
        settle();
        assert_eq!(cuStreamWriteValue64_v2(streams[0], values.at(0), 1, 0), 0);
        settle();
        assert_eq!((values.get(0), cuStreamQuery(streams[32])), (0, NOT_READY));
        // One channel less in use, and the ring ends.
        values.set(31, 1);
        assert_eq!(streams.map(cuStreamSynchronize), [0; 33]);
    }

    pub fn pool_misuse_is_refused() {
        start();
        let stream = stream();
        let pool = made(|out| cuMemPoolCreate(out, &pool_properties()));
        let memory = made(|out| cuMemAllocFromPoolAsync(out, 100, pool, stream));
        assert_eq!(cuMemPoolExportPointer(&mut Blob([0; 64]), memory), 1, "the pool was not exported");
        let fd = made(|out| cuMemPoolExportToShareableHandle(out, pool, 1, 0));
        blob(|out| cuMemPoolExportPointer(out, memory));
        assert_eq!(cuIpcGetMemHandle(&mut Blob([0; 64]), memory), 1);
        assert_eq!(cuMemPoolSetAccess(pool, &AccessEntry { location: [1, 0], flags: 1 }, 1), 801);
        let imported = made(|out| cuMemPoolImportFromShareableHandle(out, fd as usize, 1, 0));
        assert_eq!(cuMemAllocFromPoolAsync(&mut 0, 100, imported, stream), 1);
        assert_eq!(cuMemPoolExportToShareableHandle(&mut 0, imported, 1, 0), 1);
        let private = PoolProperties { handle_types: 0, ..pool_properties() };
        let private = made(|out| cuMemPoolCreate(out, &private));
        assert_eq!(cuMemPoolExportToShareableHandle(&mut 0, private, 1, 0), 1);
        assert_eq!(cuMemsetD8Async(memory, 4, 100, stream), 0);
        assert_eq!((cuMemFreeAsync(memory, stream), cuMemFreeAsync(memory, stream)), (0, 1));
        assert_eq!((cuMemPoolDestroy(pool), cuStreamSynchronize(stream)), (0, 0));
    }

    pub fn own_ipc_handles_are_refused() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        let handle = blob(|out| cuIpcGetMemHandle(out, memory));
        assert_eq!(
            handle,
            blob(|out| cuIpcGetMemHandle(out, memory)),
            "repeated exports return the same handle"
        );
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, handle, 0), 1);
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, handle, 1), 201);
        assert_eq!(cuIpcGetMemHandle(&mut Blob([0; 64]), memory + 64), 1);
        let event = blob(|out| cuIpcGetEventHandle(out, shared_event()));
        assert_eq!(cuIpcOpenEventHandle(&mut 0, event), 201);
        let (mut legacy, mut id) = (0u64, [0u64; 2]);
        assert_eq!(cuPointerGetAttribute((&raw mut legacy).cast(), 10, memory), 0);
        assert_eq!(legacy, 1);
        assert_eq!(cuPointerGetAttribute((&raw mut id[0]).cast(), 7, memory), 0);
        assert_eq!(cuMemFree_v2(memory), 0);
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        assert_eq!(cuPointerGetAttribute((&raw mut id[1]).cast(), 7, memory), 0);
        assert_ne!(id[0], id[1], "a buffer id is not reused, though an address may be");
        assert_ne!(handle, blob(|out| cuIpcGetMemHandle(out, memory)));
    }

    pub fn interprocess_event_4095_fails() {
        start();
        let events: Vec<_> = (0..4094).map(|_| shared_event()).collect();
        assert_eq!(cuEventCreate(&mut 0, 6), 2);
        assert_eq!(cuEventCreate(&mut 0, 2), 0, "only interprocess events are limited");
        assert_eq!(cuEventDestroy_v2(events[17]), 0);
        shared_event();
        assert_eq!(cuEventCreate(&mut 0, 6), 2);
        // The slot of an event that was destroyed while pending is not free before the event is
        // complete.
        let stream = stream();
        let gate = Gate::on(stream);
        assert_eq!((cuEventRecord(events[18], stream), cuEventDestroy_v2(events[18])), (0, 0));
        assert_eq!(cuEventCreate(&mut 0, 6), 2);
        gate.open();
        assert_eq!(cuStreamSynchronize(stream), 0);
        shared_event();
    }

    pub fn context_wide_record_during_capture_fails() {
        let context = start();
        let (stream, event) = (stream(), made(|out| cuEventCreate(out, 2)));
        assert_eq!((cuStreamBeginCapture_v2(stream, 0), cuCtxRecordEvent(context, event)), (0, 900));
        assert_eq!(cuStreamEndCapture(stream, &mut 0), 901, "the refused call invalidates the capture");
        assert_eq!(cuCtxRecordEvent(context, event), 0);
    }

    /// The modes of captures and threads.
    const GLOBAL: i32 = 0;
    const THREAD_LOCAL: i32 = 1;
    const RELAXED: i32 = 2;

    pub fn calls_of_other_threads_invalidate_captures_as_measured() {
        let context = start();
        let (captured, other) = (stream(), stream());
        let event = || made(|out| cuEventCreate(out, 2));
        let recorded = event();
        assert_eq!(cuEventRecord(recorded, other), 0);
        let context_wide: [&(dyn Fn() -> i32 + Sync); 2] =
            [&|| cuCtxRecordEvent(context, recorded), &cuCtxSynchronize];
        let memory = std::sync::Mutex::new(Vec::from([(); 16].map(|()| made(|out| cuMemAlloc_v2(out, 64)))));
        let unsafe_ones: [&(dyn Fn() -> i32 + Sync); 5] = [
            &|| cuEventQuery(recorded),
            &|| cuStreamQuery(other),
            &|| cuStreamSynchronize(other),
            &|| cuMemAlloc_v2(&mut 0, 64),
            &|| cuMemFree_v2(memory.lock().unwrap().pop().unwrap()),
        ];
        let safe: [&(dyn Fn() -> i32 + Sync); 3] =
            [&|| cuEventRecord(recorded, other), &|| cuStreamWaitEvent(other, recorded, 0), &|| {
                cuStreamIsCapturing(captured, &mut 0)
            }];
        // Calls them on another thread in a capture of each mode, for each mode of the thread.
        let check = |calls: &[&(dyn Fn() -> i32 + Sync)], breaks: &(dyn Fn(i32, i32) -> bool + Sync)| {
            for (call, capture, thread) in calls.iter().flat_map(|call| {
                let modes = [GLOBAL, THREAD_LOCAL, RELAXED];
                modes.into_iter().flat_map(move |capture| modes.map(|thread| (call, capture, thread)))
            }) {
                assert_eq!(cuStreamBeginCapture_v2(captured, capture), 0);
                let answer = std::thread::scope(|scope| {
                    let run = scope.spawn(|| {
                        assert_eq!(cuCtxPushCurrent_v2(context), 0);
                        let mut mode = thread;
                        assert_eq!((cuThreadExchangeStreamCaptureMode(&mut mode), mode), (0, GLOBAL));
                        call()
                    });
                    run.join().unwrap()
                });
                let ended = cuStreamEndCapture(captured, &mut 0);
                let expected = if breaks(capture, thread) { (900, 901) } else { (0, 0) };
                assert!(
                    (answer, ended) == expected || (answer == 600 && expected == (0, 0)),
                    "capture mode {capture}, thread mode {thread}: {answer}, {ended}"
                );
            }
        };
        check(&context_wide, &|_, _| true);
        check(&unsafe_ones, &|capture, thread| capture == GLOBAL && thread == GLOBAL);
        check(&safe, &|_, _| false);
    }

    pub fn event_carries_capture_to_waiting_stream() {
        start();
        let (first, second) = (stream(), stream());
        let [inside, outside] = [(); 2].map(|()| made(|out| cuEventCreate(out, 2)));
        let status = |stream| made(|out| cuStreamIsCapturing(stream, out));
        assert_eq!(cuEventRecord(outside, second), 0);
        assert_eq!(cuStreamBeginCapture_v2(first, GLOBAL), 0);
        assert_eq!((cuEventRecord(inside, first), status(second)), (0, 0));
        assert_eq!((cuStreamWaitEvent(second, inside, 0), status(second)), (0, 1));
        assert_eq!((cuStreamWaitEvent(first, outside, 0), status(first)), (905, 2));
        assert_eq!((cuStreamEndCapture(first, &mut 0), status(second)), (901, 0));
    }

    pub fn injected_errors_are_returned() {
        start();
        assert_eq!([(); 3].map(|()| cuMemAlloc_v2(&mut 0, 64)), [0, 2, 0]);
        assert_eq!([(); 4].map(|()| cuEventCreate(&mut 0, 2)), [0, 0, 700, 700]);
        assert_eq!(cuCtxSynchronize(), 700, "an injected sticky error poisons the context");
    }

    pub fn withheld_attributes_disable_functions() {
        start();
        assert_eq!([122, 125].map(|name| made(|out| cuDeviceGetAttribute(out, name, 0))), [0, 0]);
        assert_eq!(cuDeviceGetAttribute(&mut 0, 103, 0), 1);
        let values = SharedValues::new();
        assert_eq!(cuStreamWriteValue64_v2(stream(), values.at(0), 1, 0), 801);
        assert_eq!(cuEventCreate(&mut 0, 6), 801);
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        assert_eq!(cuIpcGetMemHandle(&mut Blob([0; 64]), memory), 801);
        assert_eq!(cuMemCreate(&mut 0, MIB_2, &properties(), 0), 801);
        assert_eq!(cuMemPoolCreate(&mut 0, &pool_properties()), 801);
    }

    fn uuid(device: i32) -> [u8; 16] {
        made(|out| cuDeviceGetUuid_v2(out, device))
    }

    pub fn two_devices_have_separate_access() {
        start();
        assert_ne!(uuid(0), uuid(1));
        assert_eq!(made(|out| cuDeviceCanAccessPeer(out, 0, 1)), 1);
        let handle = made(|out| cuMemCreate(out, MIB_2, &properties(), 0));
        let address = map(handle, 3);
        // Mapped for device 0 alone: device 1 has no access.
        context(1);
        let stream = stream();
        assert_eq!((cuMemsetD8Async(address, 1, 64, stream), cuStreamSynchronize(stream)), (0, 700));
        context(1);
        let for_device_1 = AccessEntry { location: [1, 1], flags: 3 };
        assert_eq!(cuMemSetAccess(address, MIB_2, &for_device_1, 1), 0);
        let stream = self::stream();
        assert_eq!((cuMemsetD8Async(address, 1, 64, stream), cuStreamSynchronize(stream)), (0, 0));
    }

    pub fn visible_devices_are_reordered() {
        start();
        // Byte 9 of the UUID holds the physical index.
        assert_eq!([uuid(0)[9], uuid(1)[9]], [1, 0]);
    }

    pub fn allocation_above_memory_size_fails() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, 3 * MIB_2));
        assert_eq!(cuMemAlloc_v2(&mut 0, 2 * MIB_2), 2);
        let handle = made(|out| cuMemCreate(out, MIB_2, &properties(), 0));
        assert_eq!(cuMemCreate(&mut 0, MIB_2, &properties(), 0), 2);
        assert_eq!((cuMemRelease(handle), cuMemFree_v2(memory)), (0, 0));
        made(|out| cuMemAlloc_v2(out, 4 * MIB_2));
    }
}
