// SPDX-License-Identifier: MIT OR Apache-2.0

//! The few milliseconds for which a GPU goes on with a dead process's queue.
//!
//! A keeper, a process of its own that shares this one's memory, waits for this one's death and then works off what it
//! finds in the queues: words are written, copies made; what needs the dead process (host functions) or what it waits for
//! in vain stops a queue. Interprocess events are never signalled: measured, they stay pending for ever. Killing the
//! process does not kill the keeper, which is not a thread of it; and until the keeper is done the process is not gone.
//!
//! # Safety
//!
//! The keeper runs on memory whose owner may have been killed at any instruction. It allocates nothing, takes no lock,
//! and reads only the logs below, whose entries are complete before their number says so, and the items they name, which
//! live until the number of completed items has passed them. Its thread-local storage is that of a thread that does
//! nothing else.

use crate::config;
use crate::queue::{Item, Op};
use crate::{memory, sys};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// How many of a stream's items the keeper can see.
const ENTRIES: usize = 1024;

/// How many streams the keeper can see.
const STREAMS: usize = 1024;

/// Number of rounds after the death. Measured: a word went back 83 times.
const ROUNDS: u64 = 80;

struct Entry {
    seq: AtomicU64,
    item: AtomicPtr<Item>,
}

/// Queued and completed items of a stream.
pub struct Log {
    pub enqueued: AtomicU64,
    pub completed: AtomicU64,
    entries: [Entry; ENTRIES],
}

impl Log {
    /// Shows an item to the keeper; it counts once `enqueued` has reached it.
    pub fn note(&self, item: &Arc<Item>) {
        let entry = &self.entries[item.seq as usize % ENTRIES];
        // Of a queue longer than the log the keeper sees a part: an entry may still be in use.
        let oldest = self.completed.load(Ordering::Acquire) + 1;
        let seq = entry.seq.load(Ordering::Relaxed);
        if seq < oldest {
            entry.seq.store(0, Ordering::Release);
            entry.item.store(Arc::as_ptr(item).cast_mut(), Ordering::Release);
            entry.seq.store(item.seq, Ordering::Release);
        }
    }
}

static LOGS: [AtomicPtr<Log>; STREAMS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; STREAMS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Vec<&'static Log>> = Mutex::new(Vec::new());

/// A log for a new stream. Logs are used again and never freed: places in a finished stream stay reached.
pub fn log() -> &'static Log {
    let free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
    free.unwrap_or_else(|| {
        let entry = || Entry { seq: AtomicU64::new(0), item: AtomicPtr::new(std::ptr::null_mut()) };
        let log: &'static Log = Box::leak(Box::new(Log {
            enqueued: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            entries: std::array::from_fn(|_| entry()),
        }));
        if let Some(place) = LOGS.get(COUNT.fetch_add(1, Ordering::Relaxed)) {
            place.store(std::ptr::from_ref(log).cast_mut(), Ordering::Release);
        }
        log
    })
}

/// Takes back the log of a stream that has ended.
pub fn give_back(log: &'static Log) {
    FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(log);
}

/// Starts the keeper, once, unless there is to be no afterlife.
pub fn start() {
    static STARTED: Once = Once::new();
    if config::get().afterlife_us == 0 {
        return;
    }
    STARTED.call_once(|| {
        let (ready, wait) = std::sync::mpsc::channel();
        let spawned = std::thread::Builder::new().name("simcuda-keeper".into()).spawn(move || {
            let started = spawn_keeper();
            let _ = ready.send(());
            if started {
                loop {
                    // The keeper uses this thread's thread-local storage: it must never end.
                    std::thread::park();
                }
            }
        });
        if spawned.is_ok() {
            let _ = wait.recv();
        } else {
            eprintln!("simcuda: no thread for the keeper: queues end with the process");
        }
    });
}

/// The process that the keeper belongs to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Progress of the keeper.
static STATE: AtomicI32 = AtomicI32::new(SPAWNED);
const SPAWNED: i32 = 0;
const MAY_ATTACH: i32 = 1;
const ATTACHED: i32 = 2;
const NOT_ATTACHED: i32 = 3;

/// Runs on the thread that the keeper watches.
fn spawn_keeper() -> bool {
    const STACK: usize = 256 << 10;
    crate::queue::block_signals();
    let Ok(stack) = sys::Mapping::anonymous(STACK) else { return false };
    let top = (stack.start() + stack.len()) & !15;
    // SAFETY: asks for two numbers.
    let (owner, watched) = unsafe { (libc::getpid(), libc::gettid()) };
    OWNER.store(owner, Ordering::Relaxed);
    // Without CLONE_THREAD it outlives us, with CLONE_VM it sees our memory; descriptors are a copy, which it closes.
    // No exit signal: the program's own waits do not see it.
    // SAFETY: the stack is its own and never given back, and `keep` holds to the file's header.
    let keeper =
        unsafe { libc::clone(keep, top as *mut c_void, libc::CLONE_VM, watched as usize as *mut c_void) };
    if keeper < 0 {
        eprintln!("simcuda: no keeper: queues end with the process");
        return false;
    }
    std::mem::forget(stack);
    // SAFETY: lets the keeper attach where only ancestors may; an error leaves it to try without.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, keeper as libc::c_ulong) };
    STATE.store(MAY_ATTACH, Ordering::Release);
    let started = Instant::now();
    // Bounded: a sandbox may have killed it for what it does.
    while STATE.load(Ordering::Acquire) == MAY_ATTACH && started.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    true
}

extern "C" fn keep(watched: *mut c_void) -> i32 {
    let watched = watched as usize as libc::pid_t;
    // SAFETY: plain system calls on this process's own descriptors, signals and session. The copies of our sockets and
    // pipes must go: a peer would not see us hang up. A session of its own keeps a kill of our process group away.
    let (pidfd, attached) = unsafe {
        libc::setsid();
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // If the dead process left something half done, stop without a word.
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::syscall(libc::SYS_close_range, 0, i32::MAX, 0);
        libc::prctl(libc::PR_SET_NAME, c"simcuda-gpu".as_ptr());
        let owner = OWNER.load(Ordering::Relaxed);
        let pidfd = libc::syscall(libc::SYS_pidfd_open, owner, 0) as i32;
        while STATE.load(Ordering::Acquire) == SPAWNED && libc::getppid() == owner {
            libc::usleep(10);
        }
        // Killed before it had queued anything; its number may be another's by now.
        if libc::getppid() != owner {
            libc::_exit(0);
        }
        let nothing = std::ptr::null_mut::<c_void>();
        (pidfd, libc::ptrace(libc::PTRACE_SEIZE, watched, nothing, nothing) == 0)
    };
    STATE.store(if attached { ATTACHED } else { NOT_ATTACHED }, Ordering::Release);
    if attached {
        wait_for_exit(watched);
        memory::doorway::remove();
        // The thread is not reaped here: it goes with its tracer, after the memory that we share with it and after the
        // files mapped there, with their marks that memory is in use. Only then is the process gone.
        work_off();
    } else if pidfd >= 0 {
        // Another process traces this one, which exits a little before its queue is torn down.
        // SAFETY: one valid pollfd.
        unsafe {
            let mut poll = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
            while libc::poll(&mut poll, 1, -1) < 1 {}
        }
        memory::doorway::remove();
        work_off();
    }
    // SAFETY: ends this process alone, without the other's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Waits until the watched thread has ended, and does not reap it: a process whose thread a tracer has not reaped is not
/// gone yet for its parent or for who holds its pidfd. So it is gone when its queue is, as with a real driver, which
/// tears its queues down while the process dies.
fn wait_for_exit(watched: libc::pid_t) {
    const EVENT_STOP: i32 = 128;
    let nothing = std::ptr::null_mut::<c_void>();
    loop {
        // SAFETY: valid places for the results; the thread is our tracee.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
            if libc::waitid(libc::P_PID, watched as libc::id_t, &mut info, flags) != 0 {
                return;
            }
            if matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
                return;
            }
            // Stopped along with its process, or about to receive a signal: continue it as if it
            // were not traced.
            let mut status = 0;
            if libc::waitpid(watched, &mut status, libc::__WALL | libc::WNOHANG) != watched {
                continue;
            }
            let (event, signal) = (status >> 16, (status >> 8) & 0xff);
            match event {
                EVENT_STOP if signal != libc::SIGTRAP => {
                    libc::ptrace(libc::PTRACE_LISTEN, watched, nothing, nothing)
                }
                EVENT_STOP => libc::ptrace(libc::PTRACE_CONT, watched, nothing, nothing),
                _ => libc::ptrace(libc::PTRACE_CONT, watched, nothing, signal as usize as *mut c_void),
            };
        }
    }
}

/// Works off the queues in a few rounds, spread over the time that is left, a share of what was queued in each.
fn work_off() {
    let queued: u64 = logs().map(|log| pending(log).count() as u64).sum();
    if queued == 0 {
        return;
    }
    let share = queued.div_ceil(ROUNDS);
    let afterlife = Duration::from_micros(config::get().afterlife_us);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        // SAFETY: sleeps.
        unsafe { libc::usleep(afterlife.as_micros() as u32 / (ROUNDS as u32 + 1)) };
        // Items that remain now never run.
        if begin.elapsed() > afterlife {
            return;
        }
        let mut left = share;
        let mut moved = true;
        while moved && left > 0 {
            moved = false;
            for log in logs() {
                while left > 0 && step(log) {
                    left -= 1;
                    moved = true;
                }
            }
        }
    }
}

fn logs() -> impl Iterator<Item = &'static Log> {
    // SAFETY: entries are null or logs that are never freed.
    LOGS.iter().filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
}

fn pending(log: &Log) -> std::ops::RangeInclusive<u64> {
    log.completed.load(Ordering::Acquire) + 1..=log.enqueued.load(Ordering::Acquire)
}

/// Does the next item of a stream, if it can be done.
fn step(log: &Log) -> bool {
    let Some(seq) = pending(log).next() else { return false };
    let entry = &log.entries[seq as usize % ENTRIES];
    if entry.seq.load(Ordering::Acquire) != seq {
        return false;
    }
    // SAFETY: the entry is complete, and its item is not done, so its owner has not let it go.
    let item = unsafe { &*entry.item.load(Ordering::Acquire) };
    if !item.dependencies.iter().all(|point| point.reached()) {
        return false;
    }
    let done = match &item.op {
        Op::Marker | Op::Stamp(_) | Op::Record { .. } => true,
        Op::Work(work) => {
            work.run(0..work.height);
            true
        }
        Op::Words(words) => words.iter().all(|word| word.run_once()),
        Op::Wait { slot, value } => slot.reached(*value),
        Op::Host(_) | Op::Driver(_) => false,
    };
    if done {
        log.completed.store(seq, Ordering::Release);
    }
    done
}
