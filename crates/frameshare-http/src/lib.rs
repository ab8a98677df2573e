// SPDX-License-Identifier: MIT OR Apache-2.0

//! HTTP server with limits for clients that are not trusted.
//!
//! A client may send nothing, send endless headers, leave answers unreceived, or open as many
//! connections as the system lets it. [`Server`] bounds each of these; [`Seats`] decides which
//! client gives way when there are too many; [`Hosts`] refuses requests that a browser sends for a
//! web page of another site.

mod connection;
mod hosts;
mod seats;
mod server;

pub use http;
pub use hyper::body::Incoming;

pub use hosts::{ForeignHost, Hosts};
pub use seats::{Seat, Seats};
pub use server::{Client, Server};
