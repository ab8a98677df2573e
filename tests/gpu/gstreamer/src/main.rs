//! Suites of the GStreamer elements with frames in GPU memory, between processes.
//!
//! One program on every driver, simulated or real. As in `gpu-engine`, a *case* is a process that conducts and never
//! touches CUDA; pipelines and readers are *peers*, processes of this same program that do jobs for it and report.
//!
//! What a pipeline should deliver is known from a pipeline that does not share anything: the checksums of its pictures
//! are compared with those that readers took.

mod apart;
mod decoder;
mod job;
mod peer;
mod picture;
mod playing;
mod reading;
mod receiving;
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
    // An old GStreamer is no reason to try every case; a missing GPU is for the runner to say.
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
