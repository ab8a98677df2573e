// SPDX-License-Identifier: MIT OR Apache-2.0

//! libframeshare: the C interface of the engine.
//!
//! `include/frameshare.h` documents each function and struct for its users. The declarations there
//! and here are compared by `tests/header/main.rs`.
//!
//! # Rules of the border
//!
//! 1. No panic leaves a function: each runs in `border::guard` or `border::quietly`.
//! 2. A pointer from C is checked for NULL and alignment before it is used.
//! 3. Structs from C begin with their size, and consist of types without invalid values
//!    (`structs`).
//! 4. An object is freed by the function that takes it, once. Frames stay valid after their reader
//!    or exporter.
//!
//! # Modules
//!
//! - `border`: panics, statuses, error messages, pointers from C
//! - `structs`: structs that grow in later versions
//! - `failure`: errors of the engine as statuses
//! - `video`: formats and planes
//! - `cuda`: contexts and streams of the caller
//! - `reader`, `frame`: reading
//! - `exporter`: publishing
//! - `observer`: snapshots of a stream
//! - `streams`: the list of streams
//! - `log`: messages of the engine

mod border;
mod cuda;
mod exporter;
mod failure;
mod frame;
mod log;
mod observer;
mod reader;
mod streams;
mod structs;
mod video;

#[cfg(test)]
mod tests;
