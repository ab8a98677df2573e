// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery modes: in place, or as a copy for a reason.

/// Delivery mode of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    InPlace,
    /// The frame would have used the last credit.
    CopiedForCredit,
    /// Downstream does not support the frame's layout.
    CopiedForLayout,
}
