// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test suites of the engine with frames in GPU memory, between processes.
//!
//! The program runs on every driver, simulated or real: it fills and copies memory; one case runs
//! kernels. A *case* is a controlling process that never initializes CUDA. Exporters and readers
//! are *peers*: processes of the same program that execute the commands of the case and report. A
//! hanging peer is killed together with its case.
//!
//! Every byte of a frame derives from its sequence number, so a reader that checks all bytes
//! detects torn, stale and misplaced frames.

mod capture;
mod crowd;
mod exporting;
mod gpu;
mod graphs;
mod hostile;
mod job;
mod measure;
mod peer;
mod reading;
mod rogue;
mod suites;
mod worker;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use frameshare_gpu_harness::Program;

static PROGRAM: Program = Program {
    name: "gpu-engine",
    usage: "gpu-engine [--list] [--seed N] [--frames N] [SUITE | SUITE/CASE]...",
    suites: suites::ALL,
    peer: worker::serve,
    run,
};

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(mut arguments: Vec<String>) -> Result<ExitCode> {
    if let Some(at) = arguments.iter().position(|argument| argument == "--frames") {
        let count = arguments.get(at + 1).context(PROGRAM.usage)?.clone();
        count.parse::<u64>().context("invalid number of frames after --frames")?;
        arguments.drain(at..at + 2);
        // Each case is a process of its own and inherits this setting.
        let again = Command::new(std::env::current_exe()?).args(arguments).env(suites::FRAMES, count).exec();
        return Err(again).context("restarting with the number of frames in the environment");
    }
    PROGRAM.asked(arguments)?.map_or(Ok(ExitCode::SUCCESS), |asked| asked.run())
}
