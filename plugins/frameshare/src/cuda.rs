// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of an element's use of a GPU.

use std::time::Duration;

/// Maximum time that a stopping element waits for the GPU to finish with shared memory, and for
/// readers to drop their imports: a stream that waits without end never finishes, and a paused
/// reader does not respond.
pub(crate) const SETTLED: Duration = Duration::from_millis(200);

/// Waits for the GPU and readers to finish with dropped resources, so that a stopped element leaves
/// no context behind. For elements that had a context: other elements do not wait.
pub(crate) fn settle() {
    frameshare::wait_for_deferred_drops(SETTLED);
}
