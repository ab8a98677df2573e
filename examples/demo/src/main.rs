// SPDX-License-Identifier: MIT OR Apache-2.0

//! Demo of frameshare: one process decodes a video, three others read its frames in place, and
//! every frame read is compared with the decoded one.
//!
//! The program starts itself once for each of these processes, which report on their standard
//! output ([`report`]):
//!
//! - the exporter ([`exporter`]), a pipeline with `framesharesink`
//! - a reader that uses the engine, without GStreamer ([`readers::read_checksum`])
//! - two readers that are pipelines with `framesharesrc` ([`readers::view`],
//!   [`readers::record`])
//!
//! The first process ([`run`]) waits for them, observes the stream for its [`table`], and compares
//! the frames that they report ([`summary`]).

mod checksum;
mod exporter;
mod log;
mod pipeline;
mod readers;
mod report;
mod run;
mod summary;
mod table;

use anyhow::{Context, Result, anyhow};
use clap::{Parser, Subcommand};
use frameshare::StreamName;
use log::{EXPORTER, RECORDER};
use report::Report;
use run::Run;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Decode a video in one process, read its frames in three others, and compare every frame.
///
/// One process decodes the video and shares its frames. A lossless reader takes a checksum of every
/// frame, a viewer shows the latest frames, and a recorder encodes all of them into a file. A table
/// shows the progress; at the end, all frames read are compared with the decoded ones, and the exit
/// status is 0 only if there is no problem.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    /// The video: any file that GStreamer can decode
    #[arg(required = true)]
    video: Option<PathBuf>,
    /// Number of times that the video is decoded. Some containers, such as MPEG-TS, allow 1 only
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    loops: u32,
    /// The stream's name, which other readers use to join
    #[arg(long, value_name = "NAME", default_value = "demo")]
    stream: StreamName,
    /// Folder of the recording
    #[arg(long, value_name = "FOLDER", default_value = ".demo")]
    output: PathBuf,
    #[command(subcommand)]
    job: Option<Job>,
}

/// Jobs of the child processes.
#[derive(Subcommand)]
#[command(hide = true)]
enum Job {
    Export { video: PathBuf, stream: StreamName, loops: u32 },
    ReadChecksum { stream: StreamName },
    View { stream: StreamName },
    Record { stream: StreamName, file: PathBuf },
}

fn main() -> ExitCode {
    let Arguments { video, loops, stream, output, job } = Arguments::parse();
    let Some(job) = job else {
        let video = video.expect("clap requires a file without a job");
        return demo(&video, loops, &stream, &output).unwrap_or_else(|error| {
            eprintln!("frameshare-demo: {error:#}");
            ExitCode::FAILURE
        });
    };
    match run_job(job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::send(&Report::Message(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run_job(job: Job) -> Result<()> {
    gst::init()?;
    // Programs in other languages find the installed plugin; one in Rust may contain it.
    gstframeshare::plugin_register_static()?;
    match job {
        Job::Export { video, stream, loops } => exporter::export(&video, &stream, loops),
        Job::ReadChecksum { stream } => readers::read_checksum(&stream),
        Job::View { stream } => readers::view(&stream),
        Job::Record { stream, file } => readers::record(&stream, &file),
    }
}

fn demo(video: &Path, loops: u32, stream: &StreamName, output: &Path) -> Result<ExitCode> {
    let video = video.canonicalize().with_context(|| format!("cannot open {}", video.display()))?;
    fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
    let recording = output.join("recording.mkv");
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    println!(
        "One process decodes {}, three others read its frames.",
        video.file_name().unwrap_or_default().display()
    );
    println!("To join as another reader, in another terminal:\n");
    for name in ["XDG_RUNTIME_DIR", "GST_PLUGIN_PATH"] {
        if let Ok(value) = env::var(name) {
            println!("    export {name}='{}'", value.replace('\'', r"'\''"));
        }
    }
    println!("    gst-launch-1.0 framesharesrc stream={stream} ! videoconvert ! autovideosink\n");

    let mut run = Run::new(stream, loops, interrupted.clone())?;
    let (name, times) = (stream.as_str().as_ref(), loops.to_string());
    run.start(EXPORTER, &["export".as_ref(), video.as_ref(), name, times.as_ref()])?;
    run.start(0, &["read-checksum".as_ref(), name])?;
    run.start(1, &["view".as_ref(), name])?;
    run.start(RECORDER, &["record".as_ref(), name, recording.as_ref()])?;
    let log = run.wait();
    let is_interrupted = || interrupted.load(Relaxed);
    if log.is_err() && is_interrupted() {
        return Ok(ExitCode::from(130)); // as shells expect of an interrupted program
    }
    let log = log?;
    let played_back = match log.readers[RECORDER].failure {
        None => readers::play_back(&recording, &interrupted),
        Some(_) => Err(anyhow!("its recorder failed")),
    };
    let is_good = summary::print(&log, &recording, Some(played_back).filter(|_| !is_interrupted()));
    Ok(ExitCode::from(if is_interrupted() { 130 } else { u8::from(!is_good) }))
}
