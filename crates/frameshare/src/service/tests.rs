// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::sys::{Interest, Interrupt, testing::wait_until};
use std::{
    fs,
    sync::mpsc::{Receiver, Sender, channel},
};

/// Longer than any step takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a turn that nothing holds up.
const MOMENT: Duration = Duration::from_millis(200);

type Body = Box<dyn FnMut(&[u8], &mut Interests<u8>) -> Next + Send>;

/// A task whose turns are a function.
struct Script(Body);

impl Task for Script {
    type Key = u8;

    fn turn(&mut self, ready: &[u8], interests: &mut Interests<u8>) -> Next {
        (self.0)(ready, interests)
    }
}

/// A task of this function, which ends at `end`.
struct Running {
    handle: Handle,
    end: Interrupt,
}

impl Running {
    fn start(
        service: &Service,
        mut body: impl FnMut(&[u8], &mut Interests<u8>) -> Timeout + Send + 'static,
    ) -> Self {
        let (handle, end) = (service.reserve().unwrap(), Interrupt::new().unwrap());
        let is_over = end.clone();
        let turn = move |ready: &[u8], interests: &mut Interests<u8>| match is_over.is_set() {
            true => Next::End,
            false => Next::At(body(ready, interests)),
        };
        handle.start(Script(Box::new(turn))).unwrap();
        Self { handle, end }
    }

    /// A task that reports each turn.
    fn reporting(service: &Service) -> (Self, Receiver<()>) {
        let (reports, turns) = channel();
        let report = move |_: &[u8], _: &mut Interests<u8>| {
            let _ = reports.send(());
            Timeout::Never
        };
        let running = Self::start(service, report);
        turns.recv_timeout(PATIENCE).unwrap();
        (running, turns)
    }

    /// A task whose turns block until the sender is dropped, after passing the baton if asked to.
    fn blocking(service: &Service, passes: bool) -> (Self, Sender<()>) {
        let (release, blocked) = channel::<()>();
        let (begun, has_begun) = channel();
        let block = move |_: &[u8], _: &mut Interests<u8>| {
            if passes {
                before_blocking();
                before_blocking();
            }
            let _ = begun.send(());
            let _ = blocked.recv();
            Timeout::Never
        };
        let running = Self::start(service, block);
        has_begun.recv_timeout(PATIENCE).unwrap();
        (running, release)
    }

    fn end(self) {
        self.end.set();
        self.handle.wake();
    }
}

/// Number of threads of this name in this process.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim() == name))
        .count()
}

#[test]
fn tasks_share_one_thread_which_ends_with_the_last() {
    static SERVICE: Service = Service::new("fs-one");
    let running: Vec<_> = (0..20).map(|_| Running::reporting(&SERVICE)).collect();
    for (task, turns) in &running {
        task.handle.wake();
        turns.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!(threads("fs-one"), 1);
    for (task, turns) in running {
        task.end();
        // The task was dropped.
        assert!(turns.recv_timeout(PATIENCE).is_err());
    }
    wait_until("the thread has ended", || threads("fs-one") == 0);
    // It starts again with the next task.
    let (task, _turns) = Running::reporting(&SERVICE);
    assert_eq!(threads("fs-one"), 1);
    task.end();
}

/// Negative control: a turn that blocks without passing the baton stops the others.
#[test]
fn task_that_blocks_delays_no_other_after_passing_baton() {
    static SERVICE: Service = Service::new("fs-block");
    let (other, turns) = Running::reporting(&SERVICE);
    let (rude, release) = Running::blocking(&SERVICE, false);
    other.handle.wake();
    assert!(turns.recv_timeout(MOMENT).is_err(), "nothing was blocked");
    drop(release);
    turns.recv_timeout(PATIENCE).unwrap();
    rude.end();

    let blocked: Vec<_> = (0..10).map(|_| Running::blocking(&SERVICE, true)).collect();
    for _ in 0..10 {
        other.handle.wake();
        turns.recv_timeout(PATIENCE).unwrap();
    }
    assert!(threads("fs-block") > blocked.len());
    for (task, release) in blocked {
        drop(release);
        task.end();
    }
    wait_until("one thread is left", || threads("fs-block") == 1);
    other.handle.wake();
    turns.recv_timeout(PATIENCE).unwrap();
    other.end();
}

#[test]
fn wake_up_during_blocked_turn_causes_another_one() {
    static SERVICE: Service = Service::new("fs-again");
    let (release, blocked) = channel::<()>();
    let (reports, turns) = channel();
    let task = Running::start(&SERVICE, move |_, _| {
        before_blocking();
        reports.send(()).unwrap();
        let _ = blocked.recv();
        Timeout::Never
    });
    turns.recv_timeout(PATIENCE).unwrap();
    task.handle.wake();
    assert!(turns.recv_timeout(MOMENT).is_err(), "two turns of one task at once");
    release.send(()).unwrap();
    turns.recv_timeout(PATIENCE).unwrap();
    drop(release);
    task.end();
}

#[test]
fn turns_follow_events_and_deadlines() {
    static SERVICE: Service = Service::new("fs-events");
    let (reports, turns) = channel();
    let event = Interrupt::new().unwrap();
    let fd = Arc::new(event.clone());
    let task = Running::start(&SERVICE, move |ready, interests| {
        interests.want(1, fd.clone(), Interest::Input);
        fd.clear();
        reports.send(ready.to_vec()).unwrap();
        // The first turn is followed by one after a pause.
        if ready.is_empty() { Timeout::after(Some(Duration::from_millis(20))) } else { Timeout::Never }
    });
    for _ in 0..3 {
        assert_eq!(turns.recv_timeout(PATIENCE).unwrap(), []);
    }
    event.set();
    while turns.recv_timeout(PATIENCE).unwrap() != [1] {}
    assert!(turns.recv_timeout(MOMENT).is_err());
    event.set();
    assert_eq!(turns.recv_timeout(PATIENCE).unwrap(), [1]);
    task.handle.wake_after(Duration::from_secs(3600));
    assert!(turns.recv_timeout(MOMENT).is_err());
    task.handle.wake_after(Duration::from_millis(1));
    assert_eq!(turns.recv_timeout(PATIENCE).unwrap(), []);
    task.end();
}

#[test]
fn panicking_task_ends_alone() {
    static SERVICE: Service = Service::new("fs-panic");
    let (other, turns) = Running::reporting(&SERVICE);
    let (owned, dropped) = channel::<()>();
    let task = Running::start(&SERVICE, move |_, _| {
        let _owned = &owned;
        panic!("on purpose")
    });
    assert!(dropped.recv_timeout(PATIENCE).is_err());
    assert!(dropped.try_recv().is_err());
    task.handle.wake();
    other.handle.wake();
    turns.recv_timeout(PATIENCE).unwrap();
    other.end();
}

/// The user data of a frame may own the exporter of another stream, which waits for its end.
#[test]
fn task_may_wait_for_end_of_another() {
    static SERVICE: Service = Service::new("fs-nested");
    let (other, turns) = Running::reporting(&SERVICE);
    let (done, is_done) = channel();
    let mut other = Some((other, turns));
    let task = Running::start(&SERVICE, move |_, _| {
        if let Some((other, turns)) = other.take() {
            before_blocking();
            other.end();
            done.send(turns.recv_timeout(PATIENCE)).unwrap();
        }
        Timeout::Never
    });
    assert!(is_done.recv_timeout(PATIENCE).unwrap().is_err(), "the other task has ended");
    assert!(!task.handle.runs_here());
    task.end();
}

#[test]
fn cancelled_reservation_ends_threads_of_others() {
    static SERVICE: Service = Service::new("fs-cancel");
    let (task, turns) = Running::reporting(&SERVICE);
    let reserved = SERVICE.reserve().unwrap();
    reserved.wake();
    task.end();
    assert!(turns.recv_timeout(PATIENCE).is_err());
    drop(reserved);
    wait_until("the thread has ended", || threads("fs-cancel") == 0);
}
