// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stories of frames on their way to readers: offers, backlogs, downloads, kept frames, leases.
