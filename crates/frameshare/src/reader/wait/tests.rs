// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of spins, in place of a sleep and before a frame that is due.

use super::*;
use crate::{
    Endpoint, Event, Wait,
    exporter::{self, Exporter, Purpose},
    fence::Written,
};
use std::thread;

/// Returns an exporter, and the connection of a reader to it.
fn connected(interrupt: &Interrupt) -> (tempfile::TempDir, Exporter, Connection) {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
    let exporter = Exporter::bind(&endpoint, exporter::Config::default(), drop).unwrap();
    let connection = super::super::connection::connect(&endpoint, &Config::default(), interrupt).unwrap();
    (folder, exporter, connection)
}

/// Runs a spin of a reader, one after another until one ends with an item or an error, while
/// another thread does something.
fn spin_until(act: impl FnOnce(Exporter, &Interrupt) + Send) -> (Next, Waits) {
    let (config, interrupt) = (Config::default(), Interrupt::new().unwrap());
    let (_folder, exporter, mut connection) = connected(&interrupt);
    let mut waits = Waits::new();
    let item = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            act(exporter, &interrupt);
        });
        let begin = Instant::now();
        loop {
            let now = monotonic_ns();
            let window = Window { begin: now, end: now + 60_000_000_000 };
            let limits = Limits { timeout: Timeout::Never, interrupt: &interrupt };
            let item = waits.spin_within(window, &mut connection, limits);
            if !matches!(item, Ok(None)) {
                return item;
            }
            // On one core there is no spin.
            if begin.elapsed() > Duration::from_secs(50) || crate::sys::allowed_cores() < 2 {
                return waits.next(&mut connection, &config, Timeout::Never, &interrupt);
            }
        }
    });
    (item, waits)
}

#[test]
fn spin_ends_with_interrupt() {
    let (item, _) = spin_until(|exporter, interrupt| {
        interrupt.set();
        drop(exporter);
    });
    assert!(matches!(item, Err(ReadError::Interrupted | ReadError::Stopped(_))), "{item:?}");
}

#[test]
fn spin_ends_with_event() {
    let (item, _) = spin_until(|exporter, _| {
        exporter.send_event(Event { kind: 7, sticky: false, payload: vec![1] }).unwrap();
        thread::sleep(Duration::from_millis(100));
    });
    assert!(matches!(&item, Ok(Some(Item::Event(event))) if event.kind == 7), "{item:?}");
}

#[test]
fn spin_ends_with_the_exporter() {
    let (item, _) = spin_until(|exporter, _| drop(exporter));
    assert!(matches!(item, Err(ReadError::Stopped(_))), "{item:?}");
}

#[test]
fn frame_of_a_spin_is_counted() {
    let (item, waits) = spin_until(|exporter, _| {
        let slot = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(exporter::Frame::new(&slot, 100, Written::Cpu), Wait::Forever).unwrap();
        thread::sleep(Duration::from_millis(100));
    });
    assert!(matches!(item, Ok(Some(Item::Frame(_)))), "{item:?}");
    let spun = waits.spun();
    assert!((spun.frames == 1 && !spun.time.is_zero()) || crate::sys::allowed_cores() < 2, "{spun:?}");
}

/// Returns the time in spins of a wait without a frame, after 16 frames of a steady stream.
fn spun_after_steady_frames(connection: &mut Connection, spin: u32, interrupt: &Interrupt) -> Duration {
    const PERIOD: u64 = 10_000_000;
    let (mut waits, now) = (Waits::new(), monotonic_ns());
    (0..16).rev().for_each(|frame| waits.windows.add_frame(now - frame * PERIOD, now));
    let timeout = Timeout::after(Some(Duration::from_nanos(PERIOD * 3 / 2)));
    let item = waits.next(connection, &Config::default().spin(spin), timeout, interrupt);
    assert!(matches!(item, Ok(None)), "{item:?}");
    waits.spun().time
}

/// Control: a reader without one does not spin then.
#[test]
fn reader_with_a_share_spins_when_a_frame_is_due() {
    let interrupt = Interrupt::new().unwrap();
    let (_folder, _exporter, mut connection) = connected(&interrupt);
    let mut spun = |spin| spun_after_steady_frames(&mut connection, spin, &interrupt);
    assert_eq!(spun(0), Duration::ZERO);
    // On a busy machine, or an emulated one, a sleep ends after the frame is due.
    let (begin, mut late, mut sleeps) = (Instant::now(), 0, 0);
    while spun(5).is_zero() && crate::sys::allowed_cores() > 1 {
        late += u32::from(overshoot() > Duration::from_micros(200));
        sleeps += 1;
        if begin.elapsed() > Duration::from_secs(60) {
            assert!(late > sleeps / 2, "it never spun, while {late} of {sleeps} other sleeps ended late");
            let line = format!("SKIP reader/wait: {late} of {sleeps} sleeps ended too late for a spin\n");
            std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).unwrap();
            return;
        }
    }
}

/// Returns by how much a sleep of 10 ms overshoots.
fn overshoot() -> Duration {
    let (begin, pause) = (Instant::now(), Duration::from_millis(10));
    let _fine = FineTimer::new();
    thread::sleep(pause);
    begin.elapsed().saturating_sub(pause)
}
