//! Suites of the engine with frames in GPU memory, between processes.
//!
//! One program on every driver, simulated or real: it fills and copies, and runs no kernels. A *case* is a process that
//! conducts and never touches CUDA; exporters and readers are *peers*, processes of this same program that do jobs for it
//! and report. Whatever hangs in a peer is killed with the case.
//!
//! Every byte of a frame derives from its sequence number, so a reader that looks at all of them notices a frame that
//! is torn, stale or somebody else's.

mod capture;
mod exporting;
mod gpu;
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
        count.parse::<u64>().context("the number of frames")?;
        arguments.drain(at..at + 2);
        // Cases are processes: what all of them are to know they inherit.
        let again = Command::new(std::env::current_exe()?).args(arguments).env(suites::FRAMES, count).exec();
        return Err(again).context("starting again");
    }
    PROGRAM.asked(arguments)?.map_or(Ok(ExitCode::SUCCESS), |asked| asked.run())
}
