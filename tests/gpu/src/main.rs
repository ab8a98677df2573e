// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test suites of memory kinds and fences between processes.
//!
//! The program runs on every driver, simulated or real: it fills, copies, calls host functions and
//! needs no kernels. A *case* is a controlling process that never initializes CUDA; *peers*,
//! processes of the same program, do the CUDA work that the case commands over a socket. A hanging
//! peer is killed with its case. The only kernel (see [`kernel`]) is for an operation that needs
//! one: losing a context.

mod command;
mod conformance;
mod kernel;
mod machine;
mod peer;
mod raw;
mod suites;
mod words;

use std::process::ExitCode;

use anyhow::Result;
use frameshare_gpu_harness::{Program, platform};

static PROGRAM: Program = Program {
    name: "gpu-suites",
    usage: "gpu-suites [--list] [--platform] [--seed N] [SUITE | SUITE/CASE]...",
    suites: suites::ALL,
    peer: machine::serve,
    run,
};

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(arguments: Vec<String>) -> Result<ExitCode> {
    if arguments == ["--platform"] {
        println!("{}", platform::line());
        return Ok(ExitCode::SUCCESS);
    }
    PROGRAM.asked(arguments)?.map_or(Ok(ExitCode::SUCCESS), |asked| asked.run())
}
