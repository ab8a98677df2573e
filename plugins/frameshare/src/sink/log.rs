// SPDX-License-Identifier: MIT OR Apache-2.0

//! Debug category of the sink.

use std::sync::LazyLock;

/// Debug category of `framesharesink`.
pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        super::ELEMENT,
        gst::DebugColorFlags::empty(),
        Some("Shares frames with other processes"),
    )
});
