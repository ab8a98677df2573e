// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::sys::Timeout;
use crate::sys::{Interest, Interrupt, testing::wait_until};
use std::{
    fs, iter,
    sync::{
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
};

/// Longer than any step takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name of a service that gets no second thread.
pub(super) const ONE_THREAD: &str = "fs-refused";
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

    /// A task whose turns block until the sender is dropped, after lending the baton if asked to.
    fn blocking(service: &Service, lends: bool) -> (Self, Sender<()>) {
        let (release, blocked) = channel::<()>();
        let (begun, has_begun) = channel();
        let block = move |_: &[u8], _: &mut Interests<u8>| {
            if lends {
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

/// Negative control: a turn that blocks without lending the baton stops the others.
#[test]
fn task_that_blocks_delays_no_other_after_lending_baton() {
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

/// A change of threads costs two wake-ups.
#[test]
fn turns_that_might_block_but_do_not_stay_on_one_thread() {
    static SERVICE: Service = Service::new("fs-stay");
    let (reports, turns) = channel();
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let reports = reports.clone();
            Running::start(&SERVICE, move |_, _| {
                before_blocking();
                let _ = reports.send(thread::current().id());
                Timeout::Never
            })
        })
        .collect();
    // Some turns take longer than a loan on a busy machine.
    let fewest = iter::repeat_with(|| {
        let (mut before, mut changes) = (None, 0);
        for turn in 0..200 {
            let thread = turns.recv_timeout(PATIENCE).unwrap();
            changes += u32::from(before.replace(thread).is_some_and(|before| before != thread));
            tasks[turn % 2].handle.wake();
        }
        changes
    });
    let fewest = fewest.take(5).min().unwrap();
    assert!(fewest < 20, "{fewest}");
    tasks.into_iter().for_each(Running::end);
}

/// Without the timer it would notice the loan when it next looks, after half a second.
#[test]
fn sleeping_thread_notices_loans_that_take_too_long() {
    static SERVICE: Service = Service::new("fs-sleeper");
    let (other, turns) = Running::reporting(&SERVICE);
    let (begun, has_begun) = channel();
    let (release, released) = channel::<()>();
    let blocks = Running::start(&SERVICE, move |_, _| {
        before_blocking();
        let _ = begun.send(());
        let _ = released.recv();
        Timeout::Never
    });
    let begin = Instant::now();
    for _ in 0..10 {
        has_begun.recv_timeout(PATIENCE).unwrap();
        // The thread that takes the baton.
        other.handle.wake();
        turns.recv_timeout(PATIENCE).unwrap();
        blocks.handle.wake();
        release.send(()).unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    drop(release);
    [other, blocks].into_iter().for_each(Running::end);
}

/// The taker of a loan may hold the baton when the thread that lent it returns.
#[test]
fn thread_that_returns_leaves_baton_to_its_taker() {
    static SERVICE: Service = Service::new("fs-return");
    let (first, release_first) = Running::blocking(&SERVICE, true);
    let (second, release_second) = Running::blocking(&SERVICE, true);
    // Their turns follow each other without an end.
    let runs = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let spinning: Vec<_> = iter::repeat_with(|| {
        let (runs, most) = (runs.clone(), most.clone());
        Running::start(&SERVICE, move |_, _| {
            most.fetch_max(runs.fetch_add(1, SeqCst) + 1, SeqCst);
            thread::sleep(Duration::from_micros(200));
            runs.fetch_sub(1, SeqCst);
            Timeout::At(Instant::now())
        })
    })
    .take(3)
    .collect();
    wait_until("the taker runs turns", || most.load(SeqCst) > 0);
    drop(release_first);
    thread::sleep(MOMENT);
    drop(release_second);
    thread::sleep(MOMENT);
    assert_eq!(most.load(SeqCst), 1, "two threads hold the baton");
    spinning.into_iter().chain([first, second]).for_each(Running::end);
    wait_until("the threads have ended", || threads("fs-return") == 0);
}

#[test]
fn spare_thread_ends_with_last_other_task_though_the_only_one_lends() {
    static SERVICE: Service = Service::new("fs-spare");
    let (reports, turns) = channel();
    let lends = Running::start(&SERVICE, move |_, _| {
        before_blocking();
        let _ = reports.send(());
        Timeout::after(Some(Duration::from_millis(20)))
    });
    let (other, _turns) = Running::reporting(&SERVICE);
    wait_until("there is a spare thread", || threads("fs-spare") == 2);
    other.end();
    wait_until("the spare thread has ended", || threads("fs-spare") == 1);
    turns.recv_timeout(PATIENCE).unwrap();
    lends.end();
}

#[test]
fn sleeping_threads_end_with_the_last_task() {
    static SERVICE: Service = Service::new("fs-prompt");
    let took = iter::repeat_with(|| {
        let tasks: Vec<_> = (0..2).map(|_| Running::blocking(&SERVICE, true)).collect();
        let begin = Instant::now();
        for (task, release) in tasks {
            drop(release);
            task.end();
        }
        wait_until("the threads have ended", || threads("fs-prompt") == 0);
        begin.elapsed()
    });
    // A thread ends by itself after half a second.
    let shortest = took.take(3).min().unwrap();
    assert!(shortest < Duration::from_millis(250), "{shortest:?}");
}

/// The system grants no second thread when a task ends that owns another one.
#[test]
fn task_without_a_thread_for_others_does_not_wait_for_them() {
    static SERVICE: Service = Service::new(ONE_THREAD);
    struct Owner(Option<Running>, Receiver<()>, Sender<bool>);
    impl Drop for Owner {
        // As the end of an exporter does.
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(Running::end);
            before_blocking();
            let ended = holds_baton()
                || self.1.recv_timeout(Duration::from_secs(5)) == Err(RecvTimeoutError::Disconnected);
            let _ = self.2.send(ended);
        }
    }
    let (owned, turns) = Running::reporting(&SERVICE);
    let (report, ended) = channel();
    let owner = Owner(Some(owned), turns, report);
    let handle = SERVICE.reserve().unwrap();
    let end = move |_: &[u8], _: &mut Interests<u8>| {
        let _owner = &owner;
        Next::End
    };
    handle.start(Script(Box::new(end))).unwrap();
    assert!(ended.recv_timeout(PATIENCE).unwrap(), "no thread serves the other task");
}

/// Tasks start, end, block and wake each other at random: each wake-up is followed by a turn, and a
/// task never has two at once.
#[test]
fn no_wake_up_is_lost() {
    static SERVICE: Service = Service::new("fs-random");
    struct Random {
        task: Running,
        woken: u64,
        seen: Arc<AtomicU64>,
        asked: Arc<AtomicU64>,
    }
    fn next(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed >> 33
    }
    fn start(mut seed: u64) -> Random {
        let (asked, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (ask, see, runs) = (asked.clone(), seen.clone(), AtomicBool::new(false));
        let task = Running::start(&SERVICE, move |_, _| {
            assert!(!runs.swap(true, SeqCst), "two turns of one task at once");
            let now = ask.load(SeqCst);
            if !next(&mut seed).is_multiple_of(3) {
                before_blocking();
            }
            if next(&mut seed).is_multiple_of(4) {
                thread::sleep(Duration::from_micros(next(&mut seed) % 3000));
            }
            see.store(now, SeqCst);
            runs.store(false, SeqCst);
            Timeout::Never
        });
        Random { task, woken: 0, seen, asked }
    }
    let end = Instant::now() + Duration::from_secs(2);
    thread::scope(|scope| {
        for worker in 0..3 {
            scope.spawn(move || {
                let mut seed = worker;
                let mut tasks: Vec<Random> = Vec::new();
                while Instant::now() < end {
                    match next(&mut seed) % 8 {
                        0 if tasks.len() < 4 => tasks.push(start(next(&mut seed))),
                        1 if !tasks.is_empty() => tasks.remove(0).task.end(),
                        2 => drop(SERVICE.reserve().unwrap()),
                        3 => thread::sleep(Duration::from_micros(next(&mut seed) % 2000)),
                        _ => {
                            for random in &mut tasks {
                                random.woken += 1;
                                random.asked.store(random.woken, SeqCst);
                                random.task.handle.wake();
                            }
                        }
                    }
                }
                for random in tasks {
                    wait_until("a turn", || random.seen.load(SeqCst) == random.woken);
                    random.task.end();
                }
            });
        }
    });
    wait_until("the threads have ended", || threads("fs-random") == 0);
}

#[test]
fn only_task_blocks_without_another_thread_until_another_task_starts() {
    static SERVICE: Service = Service::new("fs-only");
    let (blocked, release) = Running::blocking(&SERVICE, true);
    assert_eq!(threads("fs-only"), 1);
    let (other, turns) = Running::reporting(&SERVICE);
    assert_eq!(threads("fs-only"), 2);
    drop(release);
    for task in [blocked, other] {
        task.end();
    }
    assert!(turns.recv_timeout(PATIENCE).is_err());
    wait_until("the threads have ended", || threads("fs-only") == 0);

    // Nor does one that might block in each turn.
    let (reports, turns) = channel();
    let task = Running::start(&SERVICE, move |_, _| {
        before_blocking();
        let _ = reports.send(());
        Timeout::Never
    });
    for _ in 0..20 {
        turns.recv_timeout(PATIENCE).unwrap();
        task.handle.wake();
    }
    assert_eq!(threads("fs-only"), 1);
    task.end();
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
        if !ready.is_empty() {
            fd.clear();
        }
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
