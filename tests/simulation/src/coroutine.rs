// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stackful coroutines of one thread, with a pool of stacks.
//!
//! A coroutine runs jobs, one behind the other, so that its stack is used again by later runs: a
//! thread has as many stacks as a run had tasks at once. A job must not unwind, and must return
//! before its coroutine is recycled. Not responsible for which coroutine runs: see `scheduler`.

use generator::{Generator, Gn};
use std::{
    cell::{Cell, RefCell},
    mem, ptr,
};

/// Work of a coroutine.
pub type Job = Box<dyn FnOnce()>;

/// Bytes of a stack. Only pages that were touched take memory.
const STACK: usize = 256 << 10;

/// A coroutine that has a job.
pub struct Coroutine(Generator<'static, (), ()>);

thread_local! {
    /// The job of the coroutine that is resumed next, if it has none.
    static JOB: Cell<Option<Job>> = const { Cell::new(None) };
    static IDLE: RefCell<Idle> = const { RefCell::new(Idle(Vec::new())) };
}

impl Coroutine {
    /// Runs a job until it calls `suspend` or returns.
    pub fn start(job: Job) -> Self {
        let idle = IDLE.with_borrow_mut(|idle| idle.0.pop());
        let mut coroutine = idle.unwrap_or_else(|| {
            let mut generator = Gn::<()>::new_opt(STACK / mem::size_of::<usize>(), work);
            // Any pointer but null makes a generator one that suspends itself from any depth.
            generator.set_local_data(ptr::dangling_mut());
            Self(generator)
        });
        JOB.set(Some(job));
        coroutine.resume();
        coroutine
    }

    /// Runs the job until it suspends itself again, or returns.
    pub fn resume(&mut self) {
        self.0.resume();
    }

    /// Whether the job has overflowed its stack, and cannot be resumed.
    pub fn has_overflowed(&mut self) -> bool {
        // A job does not unwind: the handler of the overflow is the only source of this error.
        self.0.get_panic_data().is_some()
    }

    /// Leaks a stack that has overflowed: its frames cannot be unwound.
    pub fn leak(self) {
        mem::forget(self);
    }

    /// Keeps the stack for a later job. The present job must have returned.
    pub fn recycle(self) {
        IDLE.with_borrow_mut(|idle| idle.0.push(self));
    }
}

/// Returns to the caller of `start` or `resume`, until resumed. Must be called in a coroutine.
pub fn suspend() {
    generator::co_yield_with(());
}

/// Jobs, one for each time the coroutine is resumed while it has none.
fn work() {
    while let Ok(Some(job)) = JOB.try_with(Cell::take) {
        job();
        suspend();
    }
}

/// Coroutines without a job.
struct Idle(Vec<Coroutine>);

impl Drop for Idle {
    fn drop(&mut self) {
        // Without a further job the coroutine returns, and its stack is freed.
        self.0.iter_mut().for_each(Coroutine::resume);
    }
}

#[cfg(test)]
mod tests {
    use super::{Coroutine, suspend};
    use std::{cell::RefCell, rc::Rc, thread};

    #[test]
    fn jobs_share_stacks_and_take_turns() {
        let log = Rc::new(RefCell::new(Vec::new()));
        for round in 0..3 {
            let [mut a, mut b] = ["a", "b"].map(|name| {
                let log = Rc::clone(&log);
                Coroutine::start(Box::new(move || {
                    log.borrow_mut().push((round, name, 0));
                    suspend();
                    log.borrow_mut().push((round, name, 1));
                }))
            });
            b.resume();
            a.resume();
            let expected = [(round, "a", 0), (round, "b", 0), (round, "b", 1), (round, "a", 1)];
            assert_eq!(log.take(), expected);
            a.recycle();
            b.recycle();
        }
    }

    #[test]
    fn thread_frees_its_idle_stacks() {
        for _ in 0..100 {
            let thread = thread::spawn(|| Coroutine::start(Box::new(|| ())).recycle());
            thread.join().expect("the thread's destructors run");
        }
    }
}
