//! Suites of the GStreamer elements with frames in GPU memory, between processes.
//!
//! One program on every driver, simulated or real. As in `gpu-engine`, a *case* is a process that conducts and never
//! touches CUDA; pipelines and readers are *peers*, processes of this same program that do jobs for it and report.
//!
//! What a pipeline should deliver is known from a pipeline that does not share anything: the checksums of its pictures
//! are compared with those that readers took.

#[path = "../../src/isolate.rs"]
#[expect(dead_code, reason = "these suites isolate nobody")]
mod isolate;
#[path = "../../src/link.rs"]
mod link;
#[path = "../../src/platform.rs"]
mod platform;
#[path = "../../src/runner.rs"]
mod runner;

mod decoder;
mod job;
mod machine;
mod peer;
mod picture;
mod playing;
mod reading;
mod receiving;
mod suites;
mod worker;

use std::process::ExitCode;

use anyhow::{Context as _, Result};

const USAGE: &str = "gpu-gstreamer [--list] [--seed N] [SUITE | SUITE/CASE]...";

fn main() -> ExitCode {
    match start(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpu-gstreamer: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Vec<String>) -> Result<ExitCode> {
    // The first argument says which of its parts this process plays; people use the last.
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--peer", socket] => worker::serve(socket).map(|()| ExitCode::SUCCESS),
        ["--case", name, seed] => {
            runner::conduct(name, seed.parse().context("the seed")?);
            Ok(ExitCode::SUCCESS)
        }
        _ => run(arguments),
    }
}

fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(asked) = runner::Asked::parse(arguments, USAGE)? else { return Ok(ExitCode::SUCCESS) };
    // An old GStreamer is no reason to try every case; a missing GPU is for the runner to say.
    gst::init()?;
    if let Err(error @ (gst_cuda::Unavailable::Absent { .. } | gst_cuda::Unavailable::TooOld { .. })) =
        gst_cuda::load()
    {
        println!("SKIP gpu-gstreamer: {error}");
        let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
        return Ok(if required { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    runner::run(&asked)
}
