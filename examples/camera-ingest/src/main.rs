// SPDX-License-Identifier: MIT OR Apache-2.0

//! Camera ingest: each camera is received once and decoded once. Recording, motion detection, a
//! model and a live wall read the same frames, each in processes of its own.
//!
//! The supervisor ([`supervisor`]) starts this program once for each group of cameras and role
//! ([`roles`]); each role also runs alone. Roles report to the supervisor ([`report`]), which keeps
//! the state of the site ([`state`]) for the wall's page ([`wall`]).

mod clock;
mod config;
mod report;
mod results;
mod roles;
mod run;
mod state;
mod supervisor;
mod wall;

use clap::{Args, Parser, Subcommand};
use config::{Camera, Config, Passwords};
use roles::Role;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};
use supervisor::plan;

/// Receive, decode, record, analyze and show many cameras, each part in processes of its own.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start and supervise all roles of all cameras
    Run(Run),
    /// Print the plan of a configuration: processes, streams, who reads what
    Check { file: PathBuf },
    /// Print the JSON schema of the configuration, for editors
    Schema,
    /// Run one process of the plan, such as decode-cam0: for service managers
    Process(OneProcess),
    /// Receive cameras and share their encoded streams
    Capture(Part),
    /// Decode cameras while other processes read their frames
    Decode(Part),
    /// Copy encoded streams into segments
    Record(Part),
    /// Score the motion in zones
    Motion(Part),
    /// Run a model on frames
    Model(Part),
    /// Serve the page with all cameras
    Wall(Part),
}

#[derive(Args)]
struct Run {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "camera-ingest.toml")]
    config: PathBuf,
    /// Let the page kill processes, to show that nothing happens to the others
    #[arg(long)]
    demo: bool,
}

#[derive(Args)]
struct OneProcess {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "camera-ingest.toml")]
    config: PathBuf,
    /// Name of the process, as `check` lists it
    name: String,
}

/// One role in this process.
#[derive(Args)]
struct Part {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "camera-ingest.toml")]
    config: PathBuf,
    /// Names of cameras; all if there is none
    cameras: Vec<String>,
}

fn main() -> ExitCode {
    raise_file_limit();
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("camera-ingest: {}", config::redact(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Raises the soft limit of open files to the hard limit, for this process and its children: each
/// slot of a stream is a file.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Cannot fail for a soft limit that the hard limit allows.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn run(command: Command) -> anyhow::Result<()> {
    let (role, part) = match command {
        Command::Run(run) => return supervisor::supervise(&run.config, run.demo),
        Command::Check { file } => return check(&file),
        Command::Process(process) => return run_process(process),
        Command::Schema => return config::print_schema(),
        Command::Capture(part) => (Role::Capture, part),
        Command::Decode(part) => (Role::Decode, part),
        Command::Record(part) => (Role::Record, part),
        Command::Motion(part) => (Role::Motion, part),
        Command::Model(part) => (Role::Model, part),
        Command::Wall(part) => (Role::Wall, part),
    };
    run::run_role(role, part)
}

impl Part {
    /// Reads the configuration and the cameras.
    fn load(&self, role: Role) -> anyhow::Result<(Config, Vec<Camera>)> {
        let config = Config::load(&self.config, role.passwords())?;
        let cameras = config.select(&self.cameras)?;
        Ok((config, cameras))
    }
}

/// Prints the plan of a configuration.
fn check(file: &Path) -> anyhow::Result<()> {
    let config = Config::load(file, Passwords::Read)?;
    print!("{}", config::redact(&plan::Overview(&config).to_string()));
    Ok(())
}

fn run_process(OneProcess { config, name }: OneProcess) -> anyhow::Result<()> {
    // Names of processes depend on no password.
    let processes = plan::processes(&Config::load(&config, Passwords::Skip)?, &[]);
    let Some(process) = processes.iter().find(|process| process.name == name) else {
        let known: Vec<_> = processes.iter().map(|process| process.name.as_str()).collect();
        anyhow::bail!("no process '{name}' in the plan, which has {}", known.join(", "));
    };
    run::run_role(process.role, Part { config, cameras: process.names() })
}
