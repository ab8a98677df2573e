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
        for (event, stream) in [(event, held[1]), (shared_event(), held[5])] {
            assert_eq!((cuEventRecord(event, stream), cuEventSynchronize(event)), (0, 0));
        }
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

    /// Frees two allocations, and makes two others.
    fn check_addresses(allocate: impl Fn() -> u64, free: impl Fn(u64) -> i32) {
        let (older, stale) = (allocate(), allocate());
        assert_eq!((free(older), free(stale)), (0, 0));
        // Memory of the program does not take the addresses.
        let _other: Vec<_> = (0..4).map(|_| vec![0u8; MIB_2]).collect();
        let (next, second) = (allocate(), allocate());
        if adversary() {
            assert_eq!((next, second), (stale, older));
        }
        assert_eq!((free(next), free(second)), (0, 0));
    }

    pub fn freed_address_is_that_of_next_allocation() {
        start();
        check_addresses(|| made(|out| cuMemAlloc_v2(out, 64)), cuMemFree_v2);
        let allocate_host = || {
            let mut memory = std::ptr::null_mut();
            assert_eq!(cuMemAllocHost_v2(&mut memory, 64), 0);
            memory as u64
        };
        check_addresses(allocate_host, |address| cuMemFreeHost(address as *mut std::ffi::c_void));
        let reserve = || made(|out| cuMemAddressReserve(out, MIB_2, 0, 0, 0));
        check_addresses(reserve, |address| cuMemAddressFree(address, MIB_2));
        let (stream, pool) = (stream(), made(|out| cuMemPoolCreate(out, &pool_properties())));
        check_addresses(
            || made(|out| cuMemAllocFromPoolAsync(out, 64, pool, stream)),
            |address| cuMemFreeAsync(address, stream).max(cuStreamSynchronize(stream)),
        );
    }
}
