// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exported functions of objects that lower files import, apart from those objects.

mod device;
mod memop;
mod order;
