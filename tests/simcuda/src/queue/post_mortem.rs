// SPDX-License-Identifier: MIT OR Apache-2.0

//! Post-mortem execution: queued work runs on for some milliseconds after its process died.
//!
//! A helper process shares the address space of its owner. It waits until the owner is dead and
//! then executes the items that are left in the queues: it writes memory values and makes copies. A
//! queue stops at a host function, which needs the dead process, and at a wait that is not
//! satisfied. Interprocess events are never signaled: measured, they stay pending. The helper is
//! not a thread of the owner, so a signal that kills the owner does not kill the helper. The owner
//! does not count as exited until the helper is done.
//!
//! # Safety
//!
//! The helper runs on memory whose owner may have been killed at any instruction. It allocates
//! nothing, takes no lock, and reads only the logs below and the items that they name. A log entry
//! is complete before its sequence number is stored; an item lives until the number of completed
//! items has passed it. The helper uses the thread-local storage of a thread that does nothing
//! else.

use super::{Item, Op};
use crate::config;
use crate::{memory, order, sys};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// Maximum number of items per stream that the helper can see.
const ENTRIES: usize = 1024;

/// Maximum number of streams that the helper can see.
const STREAMS: usize = 1024;

/// Number of rounds in which the queues are executed after the death. Measured: a memory value was
/// overwritten with an older one 83 times.
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
    /// Publishes an item to the helper. The item counts once `enqueued` has reached its number.
    pub fn publish(&self, item: &Arc<Item>) {
        let entry = &self.entries[item.seq as usize % ENTRIES];
        // The helper sees only a part of a queue that is longer than the log: the entry may still
        // be in use.
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

/// Returns a log for a new stream. Logs are reused and never freed: a point in a finished stream
/// stays reached.
pub fn log() -> &'static Log {
    let free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
    free.unwrap_or_else(|| {
        let entry = || Entry { seq: AtomicU64::new(0), item: AtomicPtr::new(std::ptr::null_mut()) };
        let log: &'static Log = Box::leak(Box::new(Log {
            enqueued: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            entries: std::array::from_fn(|_| entry()),
        }));
        if let Some(slot) = LOGS.get(COUNT.fetch_add(1, Ordering::Relaxed)) {
            slot.store(std::ptr::from_ref(log).cast_mut(), Ordering::Release);
        }
        log
    })
}

/// Makes the log of a finished stream available for reuse.
pub fn release_log(log: &'static Log) {
    FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(log);
}

/// Starts the helper process, once, unless `SIMCUDA_AFTERLIFE_US` is 0.
pub fn start() {
    static STARTED: Once = Once::new();
    if config::get().post_mortem_us == 0 {
        return;
    }
    STARTED.call_once(|| {
        let (ready, wait) = std::sync::mpsc::channel();
        let spawned = std::thread::Builder::new().name("simcuda-helper".into()).spawn(move || {
            let started = spawn_helper();
            if started {
                order::leave_last_lines_to_helper();
            }
            let _ = ready.send(());
            if started {
                loop {
                    // This thread must never end: the helper uses its thread-local storage.
                    std::thread::park();
                }
            }
        });
        if spawned.is_ok() {
            let _ = wait.recv();
        } else {
            eprintln!("simcuda: cannot start the helper's thread: queues end with the process");
        }
    });
}

/// The process that owns the helper.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// State of the helper's start: the values below.
static STATE: AtomicI32 = AtomicI32::new(SPAWNED);
const SPAWNED: i32 = 0;
const MAY_ATTACH: i32 = 1;
const ATTACHED: i32 = 2;
const NOT_ATTACHED: i32 = 3;

/// Starts the helper from the thread that it traces. Returns whether it was started.
fn spawn_helper() -> bool {
    const STACK: usize = 256 << 10;
    super::block_signals();
    let Ok(stack) = sys::Mapping::anonymous(STACK) else { return false };
    let top = (stack.start() + stack.len()) & !15;
    // SAFETY: returns two numbers.
    let (owner, watched) = unsafe { (libc::getpid(), libc::gettid()) };
    OWNER.store(owner, Ordering::Relaxed);
    // Without CLONE_THREAD the helper outlives this process, with CLONE_VM it shares the memory.
    // Its descriptors are a copy, which it closes. It has no exit signal: waits of the program do
    // not see it.
    // SAFETY: the stack belongs to the helper and is never freed, and `run_helper` follows the
    // rules in the module header.
    let helper = unsafe {
        libc::clone(run_helper, top as *mut c_void, libc::CLONE_VM, watched as usize as *mut c_void)
    };
    if helper < 0 {
        eprintln!("simcuda: cannot start the helper process: queues end with the process");
        return false;
    }
    std::mem::forget(stack);
    // SAFETY: permits the helper to attach where only ancestors may; after an error the helper
    // tries without permission.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, helper as libc::c_ulong) };
    STATE.store(MAY_ATTACH, Ordering::Release);
    let started = Instant::now();
    // Bounded: a sandbox may have killed the helper for one of its system calls.
    while STATE.load(Ordering::Acquire) == MAY_ATTACH && started.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    true
}

extern "C" fn run_helper(watched: *mut c_void) -> i32 {
    let watched = watched as usize as libc::pid_t;
    // SAFETY: plain system calls on this process's own descriptors, signals and session. The copies
    // of the owner's sockets and pipes must be closed: otherwise its peers would see no hang-up. A
    // session of its own keeps the helper out of a kill of the owner's process group.
    let (pidfd, attached) = unsafe {
        libc::setsid();
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // End silently if the dead process left a half-written state.
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::syscall(libc::SYS_close_range, 0, i32::MAX, 0);
        libc::prctl(libc::PR_SET_NAME, c"simcuda-gpu".as_ptr());
        let owner = OWNER.load(Ordering::Relaxed);
        let pidfd = libc::syscall(libc::SYS_pidfd_open, owner, 0) as i32;
        while STATE.load(Ordering::Acquire) == SPAWNED && libc::getppid() == owner {
            libc::usleep(10);
        }
        // The owner was killed before it queued any work; its pid may already be reused.
        if libc::getppid() != owner {
            libc::_exit(0);
        }
        let nothing = std::ptr::null_mut::<c_void>();
        (pidfd, libc::ptrace(libc::PTRACE_SEIZE, watched, nothing, nothing) == 0)
    };
    STATE.store(if attached { ATTACHED } else { NOT_ATTACHED }, Ordering::Release);
    if attached {
        wait_for_exit(watched);
        memory::ipc_server::remove();
        order::write_last_line(order::LastLine::Dying);
        // The traced thread is not reaped here: it is released when its tracer exits, after the
        // shared memory and after the files mapped there, with their in-use marks. Only then does
        // the owner count as exited.
        run_queues();
    } else if pidfd >= 0 {
        // Another process traces the owner, which therefore exits shortly before its queues end.
        // SAFETY: one valid pollfd.
        unsafe {
            let mut poll = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
            while libc::poll(&mut poll, 1, -1) < 1 {}
        }
        memory::ipc_server::remove();
        order::write_last_line(order::LastLine::Dying);
        run_queues();
    }
    order::write_last_line(order::LastLine::Ended);
    // SAFETY: ends this process alone, without the owner's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Waits until the traced thread has ended, without reaping it. For its parent and for a holder of
/// its pidfd, a process has not exited while a tracer has not reaped one of its threads. So the
/// process exits together with its queues, as with the real driver, which tears its queues down
/// while the process dies.
fn wait_for_exit(watched: libc::pid_t) {
    const EVENT_STOP: i32 = 128;
    let nothing = std::ptr::null_mut::<c_void>();
    loop {
        // SAFETY: valid places for the results; the thread is a tracee of this process.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
            if libc::waitid(libc::P_PID, watched as libc::id_t, &mut info, flags) != 0 {
                return;
            }
            if matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
                return;
            }
            // The thread stopped along with its process, or a signal is about to be delivered:
            // continue it as if it were not traced.
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

/// Executes the queues in [`ROUNDS`] rounds, spread over the configured time, an equal share of the
/// queued items in each.
fn run_queues() {
    let queued: u64 = logs().map(|log| pending(log).count() as u64).sum();
    if queued == 0 {
        return;
    }
    let share = queued.div_ceil(ROUNDS);
    let limit = Duration::from_micros(config::get().post_mortem_us);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        // SAFETY: sleeps.
        unsafe { libc::usleep(limit.as_micros() as u32 / (ROUNDS as u32 + 1)) };
        // Items that are left at this time never run.
        if begin.elapsed() > limit {
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
    LOGS.iter().filter_map(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() })
}

fn pending(log: &Log) -> std::ops::RangeInclusive<u64> {
    log.completed.load(Ordering::Acquire) + 1..=log.enqueued.load(Ordering::Acquire)
}

/// Executes the next item of a stream, if that is possible. Returns whether it was executed.
fn step(log: &Log) -> bool {
    let Some(seq) = pending(log).next() else { return false };
    let entry = &log.entries[seq as usize % ENTRIES];
    if entry.seq.load(Ordering::Acquire) != seq {
        return false;
    }
    // SAFETY: the entry is complete, and its item is not completed, so its owner has not freed it.
    let item = unsafe { &*entry.item.load(Ordering::Acquire) };
    if !item.dependencies.iter().all(|point| point.reached()) {
        return false;
    }
    let done = match &item.op {
        Op::Marker | Op::Stamp(_) | Op::Record { .. } | Op::Kernel(_) | Op::Allocate(_) => true,
        Op::Work(work) => {
            work.run(0..work.height);
            true
        }
        Op::MemOps(ops) => ops.iter().all(|op| op.run_once()),
        Op::Wait { slot, value } => slot.reached(*value),
        Op::Host(_) | Op::Driver(_) => false,
    };
    if done {
        log.completed.store(seq, Ordering::Release);
    }
    done
}
