// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stream captures: CUDA graphs that other code of the process captures stay intact.
//!
//! Two kinds of call invalidate a capture of another thread (measured on an H200, driver 580):
//!
//! - Potentially unsafe calls, such as cuEventQuery and cuMemAlloc, invalidate a capture in global
//!   mode, unless the calling thread is in relaxed mode. Every call of this crate runs in relaxed
//!   mode (`Relaxed`).
//! - cuCtxRecordEvent and cuCtxSynchronize invalidate every capture in their context. Before them,
//!   the driver is asked for captures by blocking streams; it reports no others, and none that
//!   begins right after the answer. [`announce`] covers all. After a call that has invalidated a
//!   capture, repeated attempts in the context pause for a while
//!   ([`Context::check_capture_pause`](crate::context::Context::check_capture_pause)), so that they
//!   do not invalidate one capture after the other.

use crate::capture_mode::{captures, is_capturing};
use crate::stream::Stream;
use crate::{Error, Result};
use frameshare_process::process_number;

/// Announcement of a stream capture; see [`announce`].
#[derive(Debug)]
#[must_use = "dropping it ends the announcement"]
pub struct Announced {
    process: u64,
}

/// Announces a stream capture by any thread of this process to this copy of the crate; a program
/// that loads several announces it to each. Until the returned guard is dropped,
/// [`Event::record_context`](crate::event::Event::record_context) and
/// [`Context::synchronize`](crate::context::Context::synchronize) return [`Error::Capturing`]
/// instead of invalidating the capture. Announcements nest, and may be made and dropped by
/// different threads. Streams created with CU_STREAM_NON_BLOCKING need one, PyTorch's for example.
/// For others it closes the gap between the driver's answer and the record.
///
/// A call of `Context::synchronize` that is under way still invalidates the capture. This crate
/// makes one only with drivers before 555, which lack cuCtxRecordEvent.
pub fn announce() -> Announced {
    captures().announced += 1;
    Announced { process: process_number() }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // A forked child has no announcements of its parent.
        if self.process == process_number() {
            captures().announced -= 1;
        }
    }
}

impl Stream {
    /// Returns an error if the stream is being captured: a record on it, or a wait of it, would
    /// become a part of the graph, to be repeated at each launch.
    ///
    /// # Errors
    /// [`Error::Capturing`], or any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuStreamIsCapturing.
    pub fn check_uncaptured(&self) -> Result<()> {
        let _current = self.context().push()?;
        if is_capturing(self.context().driver(), self.raw())? { Err(Error::Capturing) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_process::testing::in_child;

    #[test]
    fn forked_child_has_no_announcements_of_parent() {
        let mut announced = Some(announce());
        let parent = captures();
        let count = parent.announced;
        // The lock is held at the fork, as by a thread in a context-wide call.
        let child = || {
            announced = None;
            let own = announce();
            let only = captures().announced == 1;
            drop(own);
            only && captures().announced == 0
        };
        assert_eq!(in_child(child), Some(true));
        assert_eq!(parent.announced, count);
        drop(parent);
        drop(announced);
    }
}
