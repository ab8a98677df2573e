// SPDX-License-Identifier: MIT OR Apache-2.0

//! The adversary of the simulated driver, and each case without it as its control.

mod common;

use common::run;

/// Runs each named case with and without the adversary, on three seeds.
macro_rules! each {
    ($($name:ident $($variable:literal = $value:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                for (adversary, seed) in ["0", "1"].into_iter().flat_map(|mode| ["1", "2", "3"].map(|seed| (mode, seed))) {
                    let environment =
                        [("SIMCUDA_ADVERSARY", adversary), ("SIMCUDA_SEED", seed), $(($variable, $value)),*];
                    run(stringify!($name), &environment);
                }
            }
        )*
        cases! { $($name)* }
    };
}

each! {
    held_item_runs_when_thread_waits "SIMCUDA_DELAY_US" = "100000000";
    full_stream_runs_held_items "SIMCUDA_DELAY_US" = "100000000";
    early_item_is_complete_when_its_call_returns;
    stale_stream_is_the_next_one;
    stale_event_is_the_next_one;
    freed_address_is_that_of_next_allocation;
    waiting_streams_hold_back_all_others;
    ring_of_waiting_streams_never_ends "CUDA_DEVICE_MAX_CONNECTIONS" = "32";
}

mod cases {
    use crate::common::*;

    fn adversary() -> bool {
        std::env::var("SIMCUDA_ADVERSARY").as_deref() == Ok("1")
    }

    fn memset(address: u64, stream: usize) {
        assert_eq!(cuMemsetD8Async(address, 1, 64, stream), 0);
    }

    pub fn held_item_runs_when_thread_waits() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        let event = made(|out| cuEventCreate(out, 2));
        let streams = [(); 64].map(|()| stream());
        for &stream in &streams {
            (0..32).for_each(|_| memset(memory, stream));
        }
        settle();
        let held: Vec<_> = streams.into_iter().filter(|&stream| cuStreamQuery(stream) == NOT_READY).collect();
        // Some streams run everything at once.
        assert!((8..60).contains(&held.len()), "{} of 64 streams are held", held.len());
        assert_eq!(cuStreamSynchronize(held[0]), 0);
        assert_eq!((cuEventRecord(event, held[1]), cuEventSynchronize(event)), (0, 0));
        // A thread that waits for a stream also waits for the work on which that depends.
        assert_eq!((cuEventRecord(event, held[2]), cuStreamWaitEvent(held[3], event, 0)), (0, 0));
        memset(memory, held[3]);
        assert_eq!((cuStreamSynchronize(held[3]), cuStreamQuery(held[2])), (0, 0));
        assert_eq!(cuStreamQuery(held[4]), NOT_READY, "nothing waits for this stream");
        assert_eq!((cuMemFree_v2(memory), cuStreamQuery(held[4])), (0, 0));
    }

    pub fn full_stream_runs_held_items() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        for stream in [(); 4].map(|()| stream()) {
            (0..1100).for_each(|_| memset(memory, stream));
        }
    }

    pub fn early_item_is_complete_when_its_call_returns() {
        start();
        let memory = made(|out| cuMemAlloc_v2(out, MIB_2));
        let early = (0..64).filter(|_| {
            let stream = stream();
            assert_eq!(cuMemsetD8Async(memory, 1, MIB_2 / 4, stream), 0);
            cuStreamQuery(stream) == 0
        });
        let early = early.count();
        assert!(if adversary() { early > 16 } else { early < 16 }, "{early} of 64 are complete");
    }

    pub fn stale_stream_is_the_next_one() {
        start();
        let (older, stale) = (stream(), stream());
        assert_eq!((cuStreamDestroy_v2(older), cuStreamDestroy_v2(stale), cuStreamQuery(stale)), (0, 0, 400));
        let next = stream();
        let gate = Gate::on(next);
        let expected = if adversary() { (stale, NOT_READY) } else { (next, 400) };
        assert_eq!((next, cuStreamQuery(stale)), expected);
        assert_eq!(stream() == older, adversary());
        gate.open();
    }

    pub fn stale_event_is_the_next_one() {
        start();
        let stale = made(|out| cuEventCreate(out, 2));
        assert_eq!(cuEventDestroy_v2(stale), 0);
        let next = shared_event();
        assert_eq!((next == stale, cuEventQuery(stale)), if adversary() { (true, 0) } else { (false, 400) });
    }

    pub fn freed_address_is_that_of_next_allocation() {
        let context = start();
        let stream = stream();
        let pool = made(|out| cuMemPoolCreate(out, &pool_properties()));
        let kinds: [(&str, &dyn Fn() -> u64, &dyn Fn(u64) -> i32); 4] = [
            ("cuMemAlloc", &|| made(|out| cuMemAlloc_v2(out, 64)), &|address| cuMemFree_v2(address)),
            (
                "cuMemAllocHost",
                &|| {
                    let mut memory = std::ptr::null_mut();
                    assert_eq!(cuMemAllocHost_v2(&mut memory, 64), 0);
                    memory as u64
                },
                &|address| cuMemFreeHost(address as *mut std::ffi::c_void),
            ),
            ("cuMemAddressReserve", &|| made(|out| cuMemAddressReserve(out, MIB_2, 0, 0, 0)), &|address| {
                cuMemAddressFree(address, MIB_2)
            }),
            ("pool", &|| made(|out| cuMemAllocFromPoolAsync(out, 64, pool, stream)), &|address| {
                cuMemFreeAsync(address, stream).max(cuStreamSynchronize(stream))
            }),
        ];
        for (name, allocate, free) in kinds {
            let (older, stale) = (allocate(), allocate());
            assert_eq!((free(older), free(stale)), (0, 0), "{name}");
            // Memory of the program does not take the addresses.
            let _other: Vec<_> = (0..4).map(|_| vec![0u8; MIB_2]).collect();
            let (next, second) = (allocate(), allocate());
            if adversary() {
                assert_eq!((next, second), (stale, older), "{name}");
            }
            assert_eq!((free(next), free(second)), (0, 0), "{name}");
        }
        assert_eq!(cuCtxDestroy_v2(context), 0);
    }

    pub fn waiting_streams_hold_back_all_others() {
        start();
        let values = SharedValues::new();
        let memory = made(|out| cuMemAlloc_v2(out, 64));
        let other = stream();
        for waiting in 1..=8 {
            assert_eq!(cuStreamWaitValue64_v2(stream(), values.at(0), 1, 0), 0);
            settle();
            memset(memory, other);
            if waiting < 8 || !adversary() {
                assert_eq!(cuStreamSynchronize(other), 0);
            }
        }
        settle();
        assert_eq!(cuStreamQuery(other), if adversary() { NOT_READY } else { 0 });
        values.set(0, 1);
        assert_eq!(cuStreamSynchronize(other), 0);
    }

    /// Each stream waits for the value that the one before it writes; the last one to be queued
    /// begins. The variable limits the channels without the adversary, too.
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
        assert_eq!(streams.map(|stream| cuStreamSynchronize(stream)), [0; 33]);
    }
}
