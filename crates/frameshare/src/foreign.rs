// SPDX-License-Identifier: MIT OR Apache-2.0

//! Code of the application that the engine runs: destructors of its data, its notice handler, its
//! logger.
//!
//! A panic of such code is caught where the code runs, so that it ends neither a thread of the
//! engine nor the steps that follow. Within a call of the application, the first panic continues
//! in the caller when the call is done ([`resuming`]). On threads of the engine it is logged.

use std::{
    any::Any,
    cell::Cell,
    fmt, mem,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

type Panic = Box<dyn Any + Send>;

/// Maximum number of panics of destructors of panics, one in another, that are dropped.
const MAX_PANICS: u32 = 16;

/// A call of the application that continues panics of foreign code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The thread is not within one.
    None,
    /// No code has panicked in it.
    Quiet,
    /// Its first panic is kept.
    Panicked,
}

thread_local! {
    /// The innermost call that this thread is within.
    static CALL: Cell<Call> = const { Cell::new(Call::None) };
    /// The first panic of that call, looked at only if there is one: it needs a destructor, which
    /// makes each access dear.
    static CAUGHT: Cell<Option<Panic>> = const { Cell::new(None) };
}

/// The state of the thread outside of a call, which begins with this and ends when this is dropped.
struct Outside(Call);

impl Outside {
    fn new() -> Self {
        Self(CALL.replace(Call::Quiet))
    }
}

impl Drop for Outside {
    #[inline]
    fn drop(&mut self) {
        if CALL.replace(self.0) == Call::Panicked {
            // The call ends with a panic of its own.
            CAUGHT.take().into_iter().for_each(discard);
        }
    }
}

/// A value of the application, whose destructor is foreign code.
pub(crate) struct Foreign<T>(Option<T>);

impl<T> Foreign<T> {
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken by the destructor alone")
    }
}

impl<T> fmt::Debug for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").finish_non_exhaustive()
    }
}

impl<T> Drop for Foreign<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        run(|| drop(value));
    }
}

/// Returns data of the application of which no destructor panics.
pub(crate) fn guarded(data: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    Box::new(Foreign::new(data))
}

/// Runs foreign code. `None` if it panicked.
pub(crate) fn run<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(note).ok()
}

/// Runs a call of the application. A panic of foreign code in it continues after it.
pub(crate) fn resuming<T>(call: impl FnOnce() -> T) -> T {
    if CALL.get() == Call::Panicked {
        return resuming_within(call);
    }
    let outside = Outside::new();
    let value = call();
    if CALL.get() == Call::Panicked {
        end_with_panic(outside);
    }
    value
}

/// The same within a call that has kept a panic already.
#[cold]
fn resuming_within<T>(call: impl FnOnce() -> T) -> T {
    let first = CAUGHT.take();
    CALL.set(Call::Quiet);
    let result = catch_unwind(AssertUnwindSafe(|| resuming(call)));
    CALL.set(Call::Panicked);
    if let Some(further) = CAUGHT.replace(first) {
        discard(further);
    }
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Ends a call in which code has panicked: the panic continues in the caller.
#[cold]
fn end_with_panic(outside: Outside) {
    let panic = CAUGHT.take();
    CALL.set(Call::Quiet);
    drop(outside);
    match panic {
        // The call may be one of a destructor: a second panic would end the process.
        Some(panic) if thread::panicking() => note(panic),
        Some(panic) => resume_unwind(panic),
        None => {}
    }
}

/// Keeps a panic for the caller, or logs it.
fn note(panic: Panic) {
    match CALL.get() {
        Call::None => log_and_discard(panic),
        Call::Quiet => {
            CALL.set(Call::Panicked);
            CAUGHT.set(Some(panic));
        }
        Call::Panicked => discard(panic),
    }
}

fn log_and_discard(panic: Panic) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    let log = || log::error!("code of the application panicked in a thread of the engine: {text}");
    catch_unwind(AssertUnwindSafe(log)).unwrap_or_else(discard);
    discard(panic);
}

/// Drops a panic, whose destructor is foreign code, too. One that panics again and again is leaked.
fn discard(panic: Panic) {
    let mut panic = panic;
    for _ in 0..MAX_PANICS {
        match catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            Ok(()) => return,
            Err(again) => panic = again,
        }
    }
    mem::forget(panic);
}

/// Logs. The logger is foreign code.
macro_rules! report {
    ($level:ident, $($text:tt)*) => {
        $crate::foreign::run(|| log::$level!($($text)*)).unwrap_or_default()
    };
}
pub(crate) use report;

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics when it is dropped, with a panic that panics when it is dropped.
    struct Panics(u32);

    impl Drop for Panics {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Panics(self.0 - 1));
            }
        }
    }

    #[test]
    fn panics_of_destructors_end_nothing() {
        drop([3, 0, 1, 2].map(|panics| guarded(Box::new(Panics(panics)))));
        assert_eq!(run(|| 7), Some(7));
        assert_eq!(run(|| panic!("on purpose")), None::<()>);
    }

    #[test]
    fn first_panic_of_a_call_continues_when_it_is_done() {
        let mut is_done = false;
        let call = || {
            resuming(|| {
                drop(guarded(Box::new(Foreign::new(Panics(1)))));
                // A call within foreign code ends with its own panic.
                let inner = catch_unwind(|| resuming(|| run(|| panic!("inner"))));
                assert_eq!(inner.unwrap_err().downcast_ref(), Some(&"inner"));
                run(|| panic!("later"));
                is_done = true;
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert!(is_done && panic.downcast_ref::<Panics>().is_some_and(|panics| panics.0 == 0));
        assert_eq!(resuming(|| 7), 7, "a later call has no part in it");
    }

    #[test]
    fn call_within_a_call_leaves_the_panic_of_the_outer_one() {
        let outer = || {
            resuming(|| {
                run(|| panic!("outer"));
                // One that succeeds, and one that ends with a panic of its own.
                assert_eq!(resuming(|| 7), 7);
                let own = || {
                    resuming(|| {
                        run(|| panic!("caught"));
                        panic!("own")
                    })
                };
                assert_eq!(catch_unwind(own).unwrap_err().downcast_ref(), Some(&"own"));
            });
        };
        assert_eq!(catch_unwind(outer).unwrap_err().downcast_ref(), Some(&"outer"));
        assert_eq!(resuming(|| 7), 7);
    }
}
