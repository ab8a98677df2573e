// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams: queues with a thread each.
//!
//! 1. An item runs after all earlier items of its stream and after its dependencies, which are
//!    fixed when it is queued.
//! 2. `Log::completed` only grows. It reaches an item's number when the item's effects are in
//!    memory.
//! 3. An item may be held although it could run, until a thread of this process waits for it.
//! 4. After an error of the context, items are skipped, so that no wait for them blocks forever.

mod channels;
pub mod handles;
mod pace;
pub mod post_mortem;

use crate::api::{ILLEGAL_ADDRESS, UNKNOWN};
use crate::context_state::{ContextState, poll};
use crate::event_page::Slot;
use crate::memop::MemOp;
use crate::memory::access::{self, Access, Ranges};
use crate::memory::place::Range;
use crate::work::{Part, Source, Work};
use crate::{config, memory, order};
use channels::Channel;
use pace::{Hold, Pace};
use post_mortem::Log;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Order between a stream and the context's NULL stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The NULL stream: ordered before and after all work in blocking streams.
    Null,
    Blocking,
    NonBlocking,
}

/// A function of the caller that a stream runs.
#[derive(Clone, Copy, Debug)]
pub enum HostFunction {
    Plain { call: extern "C" fn(*mut c_void), data: usize },
    Callback { call: extern "C" fn(usize, i32, *mut c_void), stream: usize, data: usize },
}

/// Operation of an item.
pub enum Op {
    /// No operation; the item exists for its dependencies.
    Marker,
    Work(Work),
    /// A kernel that accesses memory and changes no byte.
    Kernel(Vec<Access>),
    /// The begin of an allocation in a pool.
    Allocate(Range),
    MemOps(Vec<MemOp>),
    Host(HostFunction),
    /// Records the time of a local event.
    Stamp(Arc<OnceLock<Instant>>),
    /// Signals an interprocess event, after the previous record of the event is complete.
    Record {
        slot: Slot,
        value: u64,
    },
    /// Waits for an interprocess event.
    Wait {
        slot: Slot,
        value: u64,
    },
    /// Runs a function of the driver, such as a stream-ordered free.
    Driver(Box<dyn Fn() + Send + Sync>),
}

impl Op {
    /// Returns the operation's name in traces, and the memory that it accesses.
    pub fn accesses(&self) -> (&'static str, Vec<Access>) {
        match self {
            Op::Marker => ("marker", Vec::new()),
            Op::Work(work) => {
                let name = if matches!(work.from, Source::Pattern { .. }) { "memset" } else { "copy" };
                let reads = work.read().map(|range| Access { range, write: false });
                let writes = work.written().map(|range| Access { range, write: true });
                (name, reads.into_iter().chain(writes).collect())
            }
            Op::Kernel(accesses) => ("kernel", accesses.clone()),
            Op::Allocate(_) => ("allocation", Vec::new()),
            Op::MemOps(_) => ("values", Vec::new()),
            Op::Host(_) => ("host-function", Vec::new()),
            Op::Stamp(_) => ("event", Vec::new()),
            Op::Record { .. } => ("interprocess-event", Vec::new()),
            Op::Wait { .. } => ("wait", Vec::new()),
            Op::Driver(_) => ("driver", Vec::new()),
        }
    }
}

/// A position in a stream, reached when all items up to it are complete.
#[derive(Clone)]
pub struct Point {
    pub stream: Arc<Stream>,
    pub seq: u64,
}

impl Point {
    pub fn reached(&self) -> bool {
        self.stream.log.completed.load(Ordering::Acquire) >= self.seq
    }

    fn item(&self) -> order::Item {
        order::Item { stream: self.stream.index, seq: self.seq }
    }

    /// Returns whether the point is reached, to a thread of the program.
    pub fn observe(&self) -> bool {
        let reached = self.reached();
        if reached {
            order::synced(self.item());
        }
        reached
    }

    /// Blocks a thread of the program until the point is reached or `cancel` returns true. Ends all
    /// holds before the point.
    pub fn wait(&self, cancel: impl Fn() -> bool) {
        self.demand();
        self.wait_in_order(cancel);
        self.observe();
    }

    /// Like [`Self::wait`], for a stream: the holds stay.
    fn wait_in_order(&self, cancel: impl Fn() -> bool) {
        self.stream.wait_until(|_| self.reached() || cancel());
    }

    /// Ends the holds of all items up to the point, and of the items on which they depend.
    pub fn demand(&self) {
        let mut demanded = vec![self.clone()];
        while let Some(point) = demanded.pop() {
            demanded.extend(point.stream.demand(point.seq));
        }
    }

    /// With the adversary, waits for an item that runs at once: a GPU can be faster than the call
    /// that queued its work. Called without locks on streams.
    pub fn run_ahead(&self) {
        if !config::get().adversary || self.seq == 0 {
            return;
        }
        let begin = Instant::now();
        let item = self.stream.lock().items.back().filter(|item| item.seq == self.seq).cloned();
        if item.is_some_and(|item| item.runs_at_once() && self.stream.is_front(self.seq)) {
            self.stream.wait_until(|_| self.reached() || begin.elapsed() > RUN_AHEAD);
        }
    }
}

/// An entry of a queue.
pub struct Item {
    pub seq: u64,
    pub dependencies: Vec<Point>,
    pub op: Op,
    /// Memory that the item accesses, which is not freed before the item is complete.
    ranges: Vec<(usize, usize)>,
    hold: Hold,
}

/// Longest time for which a call waits for an item that runs at once. Its thread may be delayed.
const RUN_AHEAD: Duration = Duration::from_millis(1);

/// Capacity of a stream's queue, above which calls block. Measured on an H200 with driver 580: 170
/// to 200 items, a third of them host functions. That fits a capacity of 1,024 of which a host
/// function takes 16.
const CAPACITY: usize = 1024;
const HOST_FUNCTION_COST: usize = 16;

impl Item {
    fn cost(&self) -> usize {
        if matches!(self.op, Op::Host(_)) { HOST_FUNCTION_COST } else { 1 }
    }

    /// Returns whether the item runs at once if it is the next one of its stream, and cannot block.
    fn runs_at_once(&self) -> bool {
        let may_block = match &self.op {
            Op::MemOps(ops) => ops.iter().any(|op| op.until.is_some()),
            Op::Host(_) | Op::Wait { .. } | Op::Record { .. } => true,
            Op::Marker | Op::Work(_) | Op::Kernel(_) | Op::Allocate(_) | Op::Stamp(_) | Op::Driver(_) => {
                false
            }
        };
        !may_block && self.hold.is_none() && self.dependencies.iter().all(Point::reached)
    }
}

struct Queue {
    items: VecDeque<Arc<Item>>,
    /// Capacity in use.
    used: usize,
    running: bool,
    closed: bool,
    pace: Pace,
    /// Number of the last item for which a thread of this process waits.
    demanded: u64,
}

/// A stream.
pub struct Stream {
    pub handle: usize,
    pub kind: Kind,
    pub flags: u32,
    pub priority: i32,
    /// Handle of its context.
    pub context: usize,
    pub state: Arc<ContextState>,
    pub log: &'static Log,
    /// Number of the stream in this process.
    pub index: u64,
    queue: Mutex<Queue>,
    /// Signaled after an item is queued or demanded, and when the stream is closed.
    work: Condvar,
    /// Signaled after an item is completed.
    done: Condvar,
}

static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

fn all() -> Vec<Arc<Stream>> {
    let mut all = ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.retain(|stream| stream.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Blocks until no queued item accesses the range.
pub fn wait_until_unused(start: usize, len: usize) {
    for stream in all() {
        let last = {
            let queue = stream.lock();
            let touches =
                |item: &&Arc<Item>| item.ranges.iter().any(|&(at, n)| at < start + len && start < at + n);
            queue.items.iter().rev().find(touches).map(|item| item.seq)
        };
        if let Some(seq) = last {
            Point { stream, seq }.wait(|| false);
        }
    }
}

impl Stream {
    pub fn new(
        handle: usize,
        kind: Kind,
        flags: u32,
        priority: i32,
        context: usize,
        state: Arc<ContextState>,
    ) -> Arc<Stream> {
        static INDEX: AtomicU64 = AtomicU64::new(0);
        let index = INDEX.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Stream {
            handle,
            kind,
            flags,
            priority,
            context,
            state,
            log: post_mortem::log(),
            index,
            queue: Mutex::new(Queue {
                items: VecDeque::new(),
                used: 0,
                running: false,
                closed: false,
                pace: Pace::new(index),
                demanded: 0,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(Arc::downgrade(&stream));
        stream
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the current end of the stream's queue.
    pub fn end(self: &Arc<Self>) -> Point {
        Point { stream: self.clone(), seq: self.log.enqueued.load(Ordering::Acquire) }
    }

    pub fn is_idle(self: &Arc<Self>) -> bool {
        self.end().reached()
    }

    /// Blocks until the queue has capacity for one more item. Must not be called with the lock on
    /// the context's streams held.
    pub fn wait_for_capacity(self: &Arc<Self>) {
        if self.lock().used >= CAPACITY {
            self.end().demand();
        }
        self.wait_until(|queue| queue.used < CAPACITY || self.state.is_unusable());
    }

    /// Blocks until `condition` returns true, checking it after each completed item.
    fn wait_until(&self, condition: impl Fn(&Queue) -> bool) {
        let mut queue = self.lock();
        while !condition(&queue) {
            // The time limit covers conditions that change without a completed item.
            queue = match self.done.wait_timeout(queue, Duration::from_millis(20)) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Ends the holds of the items up to `seq`, and returns the points on which they depend.
    fn demand(&self, seq: u64) -> Vec<Point> {
        let mut queue = self.lock();
        let before = queue.demanded;
        if before >= seq {
            return Vec::new();
        }
        queue.demanded = seq;
        self.work.notify_one();
        let demanded = queue.items.iter().filter(|item| (before + 1..=seq).contains(&item.seq));
        demanded.flat_map(|item| item.dependencies.clone()).collect()
    }

    fn is_front(&self, seq: u64) -> bool {
        self.lock().items.front().is_some_and(|item| item.seq == seq)
    }

    /// Queues an item. The caller holds the lock on the context's streams.
    pub fn push(
        self: &Arc<Self>,
        op: Op,
        mut dependencies: Vec<Point>,
        ranges: Vec<(usize, usize)>,
    ) -> Point {
        let mut queue = self.lock();
        let seq = self.log.enqueued.load(Ordering::Relaxed) + 1;
        order::enqueued(order::Item { stream: self.index, seq }, dependencies.iter().map(Point::item));
        dependencies.retain(|point| !point.reached());
        let hold = queue.pace.choose();
        let item = Arc::new(Item { seq, dependencies, op, ranges, hold });
        self.log.publish(&item);
        queue.used += item.cost();
        queue.items.push_back(item);
        self.log.enqueued.store(seq, Ordering::Release);
        if !queue.running {
            queue.running = true;
            let stream = self.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("simcuda-s{}", self.index))
                .spawn(move || stream.run_items());
            if let Err(error) = spawned {
                // As with a failed GPU, the context is lost, and no call waits for it.
                eprintln!("simcuda: cannot start a thread for a stream: {error}");
                self.state.poison(UNKNOWN.0);
                self.log.completed.store(seq, Ordering::Release);
                queue.items.clear();
                queue.used = 0;
                queue.running = false;
            }
        }
        drop(queue);
        self.work.notify_one();
        Point { stream: self.clone(), seq }
    }

    /// Lets the thread end once the queue is empty. No item may be queued afterwards.
    pub fn close(&self) {
        let mut queue = self.lock();
        if !std::mem::replace(&mut queue.closed, true) && !queue.running {
            post_mortem::release_log(self.log);
        }
        drop(queue);
        self.work.notify_one();
    }

    fn run_items(self: Arc<Self>) {
        block_signals();
        loop {
            let item = {
                let mut queue = self.lock();
                loop {
                    if let Some(item) = queue.items.front() {
                        break item.clone();
                    }
                    if queue.closed {
                        queue.running = false;
                        drop(queue);
                        post_mortem::release_log(self.log);
                        return;
                    }
                    queue = self.work.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
            };
            for point in &item.dependencies {
                point.wait_in_order(|| self.state.is_unusable());
            }
            self.hold(&item, item.hold.before);
            if !self.state.is_unusable() {
                self.run(&item);
            }
            let mut queue = self.lock();
            self.log.completed.store(item.seq, Ordering::Release);
            queue.items.pop_front();
            queue.used -= item.cost();
            drop(queue);
            self.done.notify_all();
        }
    }

    /// Holds an item until its time is over or a thread waits for it.
    fn hold(&self, item: &Item, time: Duration) {
        let end = Instant::now() + time;
        let mut queue = self.lock();
        while queue.demanded < item.seq && !self.state.is_unusable() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = match self.work.wait_timeout(queue, left) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Waits for a hardware channel. Returns `None` if the context fails before.
    fn channel(&self) -> Option<Channel> {
        channels::take(self.state.device, || self.state.is_unusable())
    }

    fn run(&self, item: &Item) {
        let _running = order::is_on().then(|| self.trace(item));
        if let Op::Work(work) = &item.op {
            return self.run_work(item, work);
        }
        let Some(_channel) = self.channel() else { return };
        match &item.op {
            Op::Marker | Op::Work(_) => {}
            Op::Kernel(accesses) => {
                let permitted = |access: &Access| {
                    memory::allowed(self.state.device, access.range.0, access.range.1, access.write)
                };
                if !accesses.iter().all(permitted) {
                    self.state.poison(ILLEGAL_ADDRESS.0);
                }
            }
            Op::Allocate(range) => access::allocated(*range),
            Op::MemOps(ops) => {
                if ops.iter().any(|op| !op.run(&self.state, || self.state.is_unusable()))
                    && !self.state.is_unusable()
                {
                    self.state.poison(ILLEGAL_ADDRESS.0);
                }
            }
            Op::Host(function) => in_host_function(|| match *function {
                HostFunction::Plain { call, data } => call(data as *mut c_void),
                HostFunction::Callback { call, stream, data } => call(stream, 0, data as *mut c_void),
            }),
            Op::Stamp(time) => {
                let _ = time.set(Instant::now());
            }
            Op::Record { slot, value } => {
                // Never completes if an earlier record of the event never does. So a dead process's
                // record blocks the next one.
                if poll(|| slot.reached(value - 1), || self.state.is_unusable()) {
                    order::signals(slot.name(), *value);
                    slot.signal(*value);
                }
            }
            Op::Wait { slot, value } => {
                if poll(|| slot.reached(*value), || self.state.is_unusable()) {
                    order::waited(slot.name(), *value);
                }
            }
            Op::Driver(act) => act(),
        }
    }

    /// Traces that an item runs. Memory to which the device has no access is not accessed: the item
    /// fails.
    fn trace(&self, item: &Item) -> order::Running {
        let (name, mut accesses) = item.op.accesses();
        let device = self.state.device;
        if !accesses.iter().all(|one| memory::allowed(device, one.range.0, one.range.1, one.write)) {
            accesses.clear();
        }
        order::runs(order::Item { stream: self.index, seq: item.seq }, name, Ranges(&accesses))
    }

    fn run_work(&self, item: &Item, work: &Work) {
        let parts: &[Part] =
            if item.hold.middle.is_some() { &[Part::FirstHalf, Part::SecondHalf] } else { &[Part::All] };
        for &part in parts {
            if part == Part::SecondHalf {
                self.hold(item, item.hold.middle.unwrap_or_default());
            }
            let Some(_channel) = self.channel() else { return };
            if !memory::with_access(self.state.device, work, || work.run(part)) {
                self.state.poison(ILLEGAL_ADDRESS.0);
                return;
            }
        }
    }
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function of the caller. CUDA calls that it makes are refused.
fn in_host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    order::in_host_function(run);
    IN_HOST_FUNCTION.set(false);
}

/// Returns whether this thread runs a host function of the caller.
pub fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// Blocks all signals on this thread. Signals belong to the program's own threads.
pub fn block_signals() {
    // SAFETY: a valid set, filled before it is used; only this thread's mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}
