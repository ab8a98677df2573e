// SPDX-License-Identifier: MIT OR Apache-2.0

//! One thread that reads many streams, each of another process.

use frameshare::{
    Interrupt,
    reader::{Config, Frames, Item, ReadError, ReaderKey, ReaderSet},
};
use frameshare_tests::process::{Process, TestRun};
use rustix::process::{Pid, Signal, kill_process};
use std::{collections::HashMap, time::Duration};

const STREAMS: usize = 32;
/// Frames to take of each stream.
const FRAMES: u32 = 20;

fn export(run: &TestRun, stream: usize) -> Process {
    // The first stream is as fast as its process, the others are cameras.
    let fps = if stream == 0 { 0 } else { 20 };
    let socket = run.socket(&format!("cam{stream}"));
    run.peer(&format!("export --socket {socket} --size 1000 --frames 1000000000 --fps {fps} --readers 0"))
}

/// Takes frames until each reader of `keys` has had this number.
fn take(set: &mut ReaderSet, keys: &[ReaderKey], frames: u32) {
    let interrupt = Interrupt::new().unwrap();
    let mut left: HashMap<ReaderKey, u32> = keys.iter().map(|key| (*key, frames)).collect();
    while !left.is_empty() {
        let next = set.next(Some(Duration::from_secs(60)), &interrupt).unwrap();
        let (key, item) = next.unwrap_or_else(|| panic!("no frame within 60 s, {} readers wait", left.len()));
        if !matches!(item.unwrap(), Item::Frame(_)) {
            continue;
        }
        if let Some(count) = left.get_mut(&key) {
            *count -= 1;
        }
        left.retain(|_, count| *count > 0);
    }
}

/// The sockets of a dead exporter stay open in its forked child, and never hang up.
#[test]
fn set_notices_death_of_exporter_with_forked_child() {
    let run = TestRun::new();
    let socket = run.socket("forked");
    let mut exporter =
        run.peer(&format!("export --socket {socket} --frames 1 --readers 1 --fork yes --end hang"));
    let mut set = ReaderSet::default();
    let key = set.add(Frames::open(&socket, Config::default()).unwrap());
    let child = exporter.wait_for("child")["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).unwrap();
    take(&mut set, &[key], 1);
    exporter.kill();
    let interrupt = Interrupt::new().unwrap();
    let found = loop {
        match set.next(Some(Duration::from_secs(60)), &interrupt).unwrap() {
            Some((_, Ok(_))) => {}
            end => break end,
        }
    };
    kill_process(child, Signal::KILL).expect("the child exists");
    assert!(matches!(found, Some((_, Err(ReadError::Gone { .. })))), "{found:?}");
}

#[test]
fn one_thread_reads_32_streams() {
    let run = TestRun::new();
    let mut set = ReaderSet::default();
    // Opened before their exporters start.
    let keys = Vec::from_iter((0..STREAMS).map(|n| set.open(&run.socket(&format!("cam{n}"))).unwrap()));
    let mut exporters = Vec::from_iter((0..STREAMS).map(|stream| export(&run, stream)));
    take(&mut set, &keys, FRAMES);
    for stream in [0, 7] {
        exporters[stream].kill();
        take(&mut set, &keys[10..], 2);
        exporters[stream] = export(&run, stream);
        take(&mut set, &keys, 2);
        assert_eq!(set.get(keys[stream]).unwrap().stats().reconnects, 1);
    }
}
