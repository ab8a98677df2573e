// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test suites of the GStreamer elements with frames in GPU memory, between processes.
//!
//! The program runs on every driver, simulated or real. As in `gpu-engine`, a *case* is a
//! controlling process that never initializes CUDA. Pipelines and readers run in *peers*: processes
//! of the same program that execute the commands of the case and report.
//!
//! The expected frames come from a pipeline without frameshare: the checksums of its frames are
//! compared with those that readers got.

mod apart;
mod decoder;
mod job;
mod peer;
mod picture;
mod playing;
mod reading;
mod receiving;
mod reconfigured;
mod suites;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use frameshare_gpu_harness::Program;

static PROGRAM: Program = Program {
    name: "gpu-gstreamer",
    usage: "gpu-gstreamer [--list] [--seed N] [SUITE | SUITE/CASE]...",
    suites: suites::ALL,
    peer: worker::serve,
    run,
};

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(asked) = PROGRAM.asked(arguments)? else { return Ok(ExitCode::SUCCESS) };
    // An old GStreamer skips the whole program; a missing GPU is reported by the runner.
    gst::init()?;
    if let Err(error @ (gst_cuda::Unavailable::Absent { .. } | gst_cuda::Unavailable::TooOld { .. })) =
        gst_cuda::load()
    {
        println!("SKIP gpu-gstreamer: {error}");
        let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
        return Ok(if required { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    asked.run()
}
