// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decisions of an exporter.
