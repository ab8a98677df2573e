// SPDX-License-Identifier: MIT OR Apache-2.0

//! Demo of frameshare: one process decodes a video, three others read its frames in place, and
//! every frame read is compared with the decoded one.
//!
//! The program starts itself once for each job: the supervisor ([`supervisor`]) starts child
//! processes with the [`jobs`], which report on their standard output ([`report`]).

mod jobs;
mod report;
mod supervisor;

use anyhow::Result;
use clap::{Parser, Subcommand};
use frameshare::StreamName;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{path::PathBuf, process::ExitCode};

/// Decode a video in one process, read its frames in three others, and compare every frame.
///
/// One process decodes the video and shares its frames. A lossless reader takes a checksum of every
/// frame, a reader of the latest frames scores the motion between them, and a recorder encodes them
/// into a file. A table shows the progress; at the end, all frames read are compared with the
/// decoded ones, and the exit status is 0 only if there is no problem.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    /// The video: any file that GStreamer can decode and seek in
    #[arg(required = true)]
    video: Option<PathBuf>,
    /// Number of times that the video is decoded
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

/// Jobs of the child processes. The supervisor starts them.
#[derive(Clone, Debug, Subcommand)]
#[command(hide = true)]
enum Job {
    /// Decode the video and share it.
    #[command(hide = true)]
    Export { video: PathBuf, stream: StreamName, loops: u32 },
    /// Read every frame.
    #[command(hide = true)]
    ReadChecksum { stream: StreamName },
    /// Read the latest frames.
    #[command(hide = true)]
    ReadMotion { stream: StreamName },
    /// Encode every frame.
    #[command(hide = true)]
    Record { stream: StreamName, file: PathBuf },
    /// Decode a recording.
    #[command(hide = true)]
    PlayBack { file: PathBuf },
}

fn main() -> ExitCode {
    let Arguments { video, loops, stream, output, job } = Arguments::parse();
    let (result, prefix) = match (job, video) {
        // The supervisor prefixes the output with the job.
        (Some(job), _) => (run(job).map(|()| ExitCode::SUCCESS), ""),
        (None, video) => {
            raise_file_limit();
            let video = video.expect("clap requires a file without a job");
            (supervisor::supervise(supervisor::Plan { video, loops, stream, output }), "frameshare-demo: ")
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("{prefix}{error:#}");
        ExitCode::FAILURE
    })
}

/// Raises the soft limit of open files to the hard limit (setrlimit(2)), also for the child
/// processes. Libraries do not change it: programs that use select(2) rely on it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Cannot fail for a soft limit that the hard limit allows; otherwise the demo runs with fewer
    // files.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn run(job: Job) -> Result<()> {
    gst::init()?;
    match job {
        Job::Export { video, stream, loops } => jobs::export(&video, &stream, loops),
        Job::ReadChecksum { stream } => jobs::read_checksum(&stream),
        Job::ReadMotion { stream } => jobs::read_motion(&stream),
        Job::Record { stream, file } => jobs::record(&stream, &file),
        Job::PlayBack { file } => jobs::play_back(&file),
    }
}
