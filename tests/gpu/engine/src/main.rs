//! Suites of the engine with frames in GPU memory, between processes.
//!
//! One program on every driver, simulated or real: it fills and copies, and runs no kernels. A *case* is a process that
//! conducts and never touches CUDA; exporters and readers are *peers*, processes of this same program that do jobs for it
//! and report. Whatever hangs in a peer is killed with the case.
//!
//! Every byte of a frame derives from its sequence number, so a reader that looks at all of them notices a frame that
//! is torn, stale or somebody else's.

#[path = "../../src/isolate.rs"]
#[expect(dead_code, reason = "other variants are for who wants to know what a driver needs")]
mod isolate;
#[path = "../../src/link.rs"]
mod link;
#[path = "../../src/platform.rs"]
mod platform;
#[path = "../../src/random.rs"]
#[expect(dead_code, reason = "patterns are for those who have the CPU write")]
mod random;
#[path = "../../src/runner.rs"]
mod runner;

mod capture;
mod exporting;
mod gpu;
mod hostile;
mod job;
mod machine;
mod measure;
mod peer;
mod reading;
mod rogue;
mod suites;
mod worker;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

const USAGE: &str = "gpu-engine [--list] [--seed N] [--frames N] [SUITE | SUITE/CASE]...";

fn main() -> ExitCode {
    match start(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpu-engine: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Vec<String>) -> Result<ExitCode> {
    // The first argument says which of its parts this process plays; people use the last.
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--peer", socket] => worker::serve(socket).map(|()| ExitCode::SUCCESS),
        ["--isolate", what, socket] => isolate::enter(what, socket),
        ["--isolated", what, socket] => isolate::settle(what, socket),
        ["--case", name, seed] => {
            runner::conduct(name, seed.parse().context("the seed")?);
            Ok(ExitCode::SUCCESS)
        }
        _ => run(arguments),
    }
}

fn run(mut arguments: Vec<String>) -> Result<ExitCode> {
    if let Some(at) = arguments.iter().position(|argument| argument == "--frames") {
        let count = arguments.get(at + 1).context(USAGE)?.clone();
        count.parse::<u64>().context("the number of frames")?;
        arguments.drain(at..at + 2);
        // Cases are processes: what all of them are to know they inherit.
        let again = Command::new(std::env::current_exe()?).args(arguments).env(suites::FRAMES, count).exec();
        return Err(again).context("starting again");
    }
    let Some(asked) = runner::Asked::parse(arguments, USAGE)? else { return Ok(ExitCode::SUCCESS) };
    runner::run(&asked)
}
