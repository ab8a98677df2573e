// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stories of slots and readers from begin to end: acquisition, retirement, disconnections, control
//! messages, statistics.
