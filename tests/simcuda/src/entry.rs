// SPDX-License-Identifier: MIT OR Apache-2.0

//! Entry and exit of all exported functions.
//!
//! The entry counts the call, returns an injected error if `SIMCUDA_FAIL` requests one, and turns a
//! panic into an error code, so that no panic unwinds into the caller.

use crate::api::{Answer, Code, NOT_PERMITTED, UNKNOWN};
use crate::{capture, config, faults, queue, teardown};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of an exported function between the common entry and exit steps.
pub fn enter(name: &'static str, inside: impl FnOnce() -> Answer) -> i32 {
    let _active_call = teardown::ActiveCall::new();
    let answer = catch_unwind(AssertUnwindSafe(|| {
        teardown::check(name)?;
        if queue::is_in_host_function() && !name.starts_with("cuGetError") {
            return Err(NOT_PERMITTED);
        }
        faults::check(name)?;
        capture::check_call(name)?;
        inside()
    }));
    let code = match answer {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(_) => UNKNOWN.0,
    };
    if config::get().trace {
        eprintln!("simcuda[{}]: {name} = {code}", std::process::id());
    }
    code
}

/// Exports functions with CUDA's names and calling convention. Each body returns an `Answer`.
#[macro_export]
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            // SAFETY: the name is CUDA's, and this library replaces the one that defines it.
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $ty),*) -> i32 {
                $crate::entry::enter(stringify!($name), || -> $crate::api::Answer { $body })
            }
        )*
    };
}
