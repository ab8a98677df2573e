// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command `simulate`.

use frameshare_simulation::{
    command,
    stream::Stream,
    toy::{Bug, Ring},
};
use std::process::ExitCode;

fn main() -> ExitCode {
    command::main(&[
        &Stream,
        &Ring::correct(),
        &Ring::with(Bug::PublishesTooEarly),
        &Ring::with(Bug::ForgetsClosing),
        &Ring::correct().enumerated(3, true),
    ])
}
