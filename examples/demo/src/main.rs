//! frameshare's demo: one process decodes a film, three others read its frames in place, and every frame that they
//! saw is compared with what the decoder made.
//!
//! The program starts itself once for each part that it plays: the [`director`] starts the [`roles`], which tell it
//! over their standard output what they see ([`report`]).

mod director;
mod report;
mod roles;

use anyhow::Result;
use clap::{Parser, Subcommand};
use frameshare::StreamName;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{path::PathBuf, process::ExitCode};

/// Play a film in one process, read its frames in three others, and compare every frame.
///
/// One process decodes the film and shares its frames. A lossless reader takes a checksum of every frame, a reader of
/// the latest frames scores the motion between them, and a recorder encodes them into a file. A table shows how they
/// are doing; at the end all frames that were read are compared with those that were decoded, and the exit status is 0
/// only if everything is as it should be.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    /// The film: any file with video that GStreamer can decode and seek in
    #[arg(required = true)]
    film: Option<PathBuf>,
    /// How many times to play it
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    plays: u32,
    /// The stream's name, under which others can join
    #[arg(long, value_name = "NAME", default_value = "demo")]
    stream: StreamName,
    /// Where the recording goes
    #[arg(long, value_name = "FOLDER", default_value = ".demo")]
    output: PathBuf,
    #[command(subcommand)]
    role: Option<Role>,
}

/// The parts of the play, each in a process of its own. The director starts them.
#[derive(Clone, Debug, Subcommand)]
#[command(hide = true)]
enum Role {
    /// Decode the film and share it.
    #[command(hide = true)]
    Export { film: PathBuf, stream: StreamName, plays: u32 },
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
    let Arguments { film, plays, stream, output, role } = Arguments::parse();
    let (result, prefix) = match (role, film) {
        // The director says whose words these are.
        (Some(role), _) => (play(role).map(|()| ExitCode::SUCCESS), ""),
        (None, film) => {
            raise_file_limit();
            let film = film.expect("clap insists on a film where there is no role");
            (director::direct(director::Play { film, plays, stream, output }), "frameshare-demo: ")
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("{prefix}{error:#}");
        ExitCode::FAILURE
    })
}

/// Raises the soft limit of open files to the hard one (setrlimit(2)), also for the processes that this one starts. Libraries
/// leave it alone: programs that use select(2) rely on it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Never fails for a soft limit that the hard one allows; if it did, the demo would run with fewer files.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn play(role: Role) -> Result<()> {
    gst::init()?;
    match role {
        Role::Export { film, stream, plays } => roles::export(&film, &stream, plays),
        Role::ReadChecksum { stream } => roles::read_checksum(&stream),
        Role::ReadMotion { stream } => roles::read_motion(&stream),
        Role::Record { stream, file } => roles::record(&stream, &file),
        Role::PlayBack { file } => roles::play_back(&file),
    }
}
