// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command `simulate`.

use frameshare_simulation::{
    command,
    small::{Size, Small},
    stream::Stream,
    toy::{Bug, Ring},
};
use std::process::ExitCode;

/// The size of small worlds whose enumeration takes some minutes.
const LARGE: Size = Size { readers: 1, deviations: 2 };

fn main() -> ExitCode {
    command::main(&[
        &Stream,
        &Ring::correct(),
        &Ring::with(Bug::PublishesTooEarly),
        &Ring::with(Bug::ForgetsClosing),
        &Ring::correct().enumerated(3, true),
        &Small::backlog(LARGE),
        &Small::retirement(LARGE),
        &Small::trimming(LARGE),
    ])
}
