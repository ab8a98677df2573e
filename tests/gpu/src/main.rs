//! Suites of memory kinds and fences between processes.
//!
//! One program on every driver, simulated or real: it fills, copies and calls host functions, and needs no kernels. A
//! *case* is a process that conducts and never touches CUDA; the CUDA work is done by *peers*, processes of this same
//! program that obey it over a socket. Whatever hangs in a peer is killed with it.
//! The one kernel (see [`kernel`]) is for what only a kernel can do: lose a context.

mod command;
mod kernel;
mod machine;
mod peer;
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
