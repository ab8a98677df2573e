// SPDX-License-Identifier: MIT OR Apache-2.0

//! Duration of a process's stop and exit.

use std::time::{Duration, Instant};

/// Time in which a pipeline or an engine object stops, and in which its process exits after that,
/// whatever its peers do: docs/failure-semantics.md. Longer times are printed.
const PROMISED: Duration = Duration::from_secs(1);
/// Maximum of both, which a busy machine does not reach, and a hang does.
const LIMIT: Duration = Duration::from_secs(5);
/// Lines that gst-launch-1.0 and the test peer print before and after stopping.
const BEGIN: [&str; 2] = ["Setting pipeline to NULL", r#""event":"stopping""#];
const DONE: [&str; 2] = ["Freeing pipeline", r#""event":"stopped""#];

/// Times at which a process reported the begin and the end of its stop, and at which it exited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stop {
    begin: Option<Instant>,
    done: Option<Instant>,
    exited: Option<Instant>,
}

impl Stop {
    /// Takes a line of output.
    pub(super) fn note(&mut self, line: &str, at: Instant) {
        let contains = |texts: [&str; 2]| texts.iter().any(|text| line.contains(text));
        if contains(BEGIN) {
            self.begin = Some(at);
        } else if contains(DONE) {
            self.done = Some(at);
        }
    }

    /// Returns whether the process has reported the end of its stop.
    pub(super) fn is_done(&self) -> bool {
        self.done.is_some()
    }

    /// Takes the time of the exit.
    pub(super) fn exited(&mut self, at: Instant) {
        self.exited = Some(at);
    }

    /// Panics if the process, which has exited, took too long.
    pub(super) fn check(self, what: &str) {
        let (Some(begin), Some(exited)) = (self.begin, self.exited) else { return };
        let done = self.done.unwrap_or(exited);
        let (stop, exit) = (done.duration_since(begin), exited.saturating_duration_since(done));
        if stop > PROMISED || exit > PROMISED {
            eprintln!("{what}: {stop:?} to stop, {exit:?} to exit after that; {PROMISED:?} are promised");
        }
        assert!(stop <= LIMIT, "{what}: it took {stop:?} to stop");
        assert!(exit <= LIMIT, "{what}: it took {exit:?} to exit after it had stopped");
    }

    /// Panics if the stop, which is done, took too long. The process may be unable to exit.
    pub(super) fn check_without_exit(self, what: &str) {
        Self { exited: self.done, ..self }.check(what);
    }
}
