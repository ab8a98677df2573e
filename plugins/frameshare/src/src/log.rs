// SPDX-License-Identifier: MIT OR Apache-2.0

//! Debug category of the source.

use std::sync::LazyLock;

/// Debug category of `framesharesrc`.
pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "framesharesrc",
        gst::DebugColorFlags::empty(),
        Some("Reader of frames shared between processes"),
    )
});
