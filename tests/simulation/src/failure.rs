// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failures: panics of the code in a run, caught with their message and place.
//!
//! While a run is under way its thread prints no panic: thousands of runs fail while a failure is
//! made smaller. Panics of other threads are printed as always.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    fmt::{self, Display, Formatter},
    panic::{self, AssertUnwindSafe, Location, PanicHookInfo},
    sync::Once,
};

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The message of the panic, or of the world.
    pub what: String,
    /// File, line and column of the panic.
    pub place: String,
}

impl Failure {
    /// Describes a failure that the caller has found.
    #[track_caller]
    pub fn here(what: impl Into<String>) -> Self {
        Self { what: what.into(), place: Location::caller().to_string() }
    }

    /// Returns what failures of one cause have in common: the place, and the first line of the
    /// message without its numbers.
    pub fn kind(&self) -> String {
        let line = self.what.lines().next().unwrap_or_default();
        let mut kind = format!("{}: ", self.place);
        let mut in_number = false;
        for letter in line.chars() {
            if !letter.is_ascii_digit() {
                kind.push(letter);
            } else if !in_number {
                kind.push('#');
            }
            in_number = letter.is_ascii_digit();
        }
        kind
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {})", self.what, self.place)
    }
}

/// Why code did not return.
pub enum Unwound {
    /// `unwind` was called: the task was killed, or the run is over.
    Killed,
    /// The code panicked.
    Failed(Failure),
}

/// Payload of `unwind`.
struct Killed;

/// Unwinds the stack up to `catch`. Not a panic to be reported.
pub fn unwind() -> ! {
    panic::resume_unwind(Box::new(Killed))
}

/// Calls `code` and says why it did not return, if it did not.
pub fn catch<R>(code: impl FnOnce() -> R) -> Result<R, Unwound> {
    panic::catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        if payload.is::<Killed>() {
            return Unwound::Killed;
        }
        let place = PLACE.take().unwrap_or_else(|| "unknown place".into());
        Unwound::Failed(Failure { what: message(&*payload), place })
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).into(),
        (_, Some(text)) => text.clone(),
        _ => "panic with a payload that is no text".into(),
    }
}

thread_local! {
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
    /// The place of the last panic of a silent thread.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps panics of this thread from being printed, until dropped.
pub struct Silence(());

impl Silence {
    /// Begins the silence.
    pub fn begin() -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            let previous = panic::take_hook();
            panic::set_hook(Box::new(move |info| record(info, &*previous)));
        });
        IS_SILENT.set(true);
        Self(())
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        IS_SILENT.set(false);
    }
}

fn record(info: &PanicHookInfo<'_>, print: &dyn Fn(&PanicHookInfo<'_>)) {
    if IS_SILENT.get() {
        PLACE.set(info.location().map(Location::to_string));
    } else {
        print(info);
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;

    #[test]
    fn kinds_ignore_numbers_and_values() {
        let failure = |what: &str| Failure { what: what.into(), place: "a.rs:1:2".into() };
        assert_eq!(failure("frame 12 of 30\nleft: 3").kind(), failure("frame 7 of 4\nleft: 9").kind());
        assert_ne!(failure("frame 12").kind(), failure("slot 12").kind());
    }
}
