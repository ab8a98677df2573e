// SPDX-License-Identifier: MIT OR Apache-2.0

//! Command line of `simulate`, for any list of worlds.

use crate::{
    choices::Choices,
    end::End,
    enumeration::{Enumeration, enumerate},
    failure::Failure,
    outcomes::Counts,
    recording,
    run::{Report, Run, World},
    runner::{Plan, explore},
    shrink::shrink,
};
use clap::{Parser, Subcommand};
use std::{
    fs,
    hash::{BuildHasher, RandomState},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    thread,
    time::{Duration, Instant},
};

/// Runs a world under many seeds, on one thread each, under virtual time.
///
/// Exit status: 0 if no run failed; 1 if one failed; 2 for a wrong command line or a file that
/// cannot be read or written; 3 if no run failed, but an outcome that is required was not reached,
/// or not all runs were tried.
#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Options {
    /// World; the default is the first that `simulate worlds` prints
    #[arg(long, global = true)]
    world: Option<String>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Runs seeds for some seconds
    Seconds {
        /// Seconds
        seconds: f64,
        #[command(flatten)]
        search: Search,
    },
    /// Runs seeds for some hours; each outcome must be reached
    Hours {
        /// Hours
        hours: f64,
        #[command(flatten)]
        search: Search,
    },
    /// Tries all runs of a small world, cutting those that reach a state seen before
    Enumerate {
        /// Seconds after which to stop
        seconds: f64,
        /// Fail if an outcome was not reached
        #[arg(long)]
        require_all: bool,
        /// Folder for the recording of a failure
        #[arg(long, default_value = ".")]
        output: PathBuf,
    },
    /// Runs one seed and prints its trace
    Seed {
        /// Seed
        seed: u64,
    },
    /// Runs a recorded list of choices and prints its trace
    Replay {
        /// File that a failed search has written
        file: PathBuf,
    },
    /// Prints the names of the worlds
    Worlds,
}

#[derive(Debug, clap::Args)]
struct Search {
    /// First seed; a random one by default
    #[arg(long)]
    seed: Option<u64>,
    /// Threads; as many as there are cores by default
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Fail if an outcome was not reached
    #[arg(long)]
    require_all: bool,
    /// Seconds to spend on making a failure smaller
    #[arg(long, default_value_t = 30.0)]
    shrink: f64,
    /// Folder for the recording of a failure
    #[arg(long, default_value = ".")]
    output: PathBuf,
}

/// Exit statuses besides 0 and 1.
const UNUSABLE: u8 = 2;
const UNREACHED: u8 = 3;

/// Real time after which a run hangs: the bound on steps ends all runs but those of a task that
/// makes no steps.
const HANG: Duration = Duration::from_secs(120);

/// Seconds between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs the command of this process.
pub fn main(worlds: &[&dyn World]) -> ExitCode {
    let options = Options::parse();
    match execute(worlds, &options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("simulate: {error}");
            UNUSABLE.into()
        }
    }
}

fn execute(worlds: &[&dyn World], options: &Options) -> Result<ExitCode, String> {
    let world = match &options.world {
        None => *worlds.first().ok_or("there are no worlds")?,
        Some(name) => {
            let world = worlds.iter().find(|world| world.name() == name);
            *world.ok_or_else(|| format!("unknown world {name:?}: see `simulate worlds`"))?
        }
    };
    match &options.action {
        Action::Seconds { seconds, search } => run_search(world, duration(*seconds)?, search, false),
        Action::Hours { hours, search } => {
            let code = run_search(world, duration(hours * 3_600.0)?, search, true)?;
            // For the records of long runs.
            println!("{} simulate/{}", if code == ExitCode::SUCCESS { "PASS" } else { "FAIL" }, world.name());
            Ok(code)
        }
        Action::Enumerate { seconds, require_all, output } => {
            run_enumeration(world, duration(*seconds)?, *require_all, output)
        }
        Action::Seed { seed } => Ok(show(&world.run(Run::traced(Choices::seeded(*seed))))),
        Action::Replay { file } => {
            let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
            let list = recording::from_text(&text)?;
            Ok(show(&world.run(Run::traced(Choices::listed(list)))))
        }
        Action::Worlds => {
            worlds.iter().for_each(|world| println!("{}", world.name()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn duration(seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("invalid time: {error}"))
}

fn run_search(
    world: &dyn World,
    limit: Duration,
    search: &Search,
    is_long: bool,
) -> Result<ExitCode, String> {
    let shrinking = duration(search.shrink)?;
    let seed = search.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
    let threads = search.threads.or_else(|| thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get);
    println!("world {}, seeds from {seed}, {threads} threads", world.name());
    let plan = Plan { seed, threads, limit, progress: PROGRESS };
    let (summary, found) = explore(world, &plan, |summary| {
        println!("{summary}");
        if let Some((seed, _)) = summary.slowest.filter(|(_, time)| *time >= HANG) {
            // Its thread cannot be stopped.
            println!("seed {seed} hangs: a task makes no steps");
            process::exit(1);
        }
    });
    println!("{summary}");
    match found {
        Some(found) => {
            let failure = found.report.failure().expect("a run that was found has failed");
            let name = found.seed.to_string();
            println!("seed {name} failed; its whole run: simulate --world {} seed {name}", world.name());
            report_failure(world, failure, found.report.choices.list(), shrinking, &search.output, &name)
        }
        None => Ok(report_outcomes(&summary.outcomes, is_long || search.require_all)),
    }
}

fn report_outcomes(outcomes: &Counts, are_required: bool) -> ExitCode {
    print!("{outcomes}");
    match outcomes.check_all_reached() {
        Err(missing) if are_required => {
            println!("never reached: {}", missing.join(", "));
            UNREACHED.into()
        }
        _ => ExitCode::SUCCESS,
    }
}

fn run_enumeration(
    world: &dyn World,
    limit: Duration,
    require_all: bool,
    output: &Path,
) -> Result<ExitCode, String> {
    let begun = Instant::now();
    let found = enumerate(world, Enumeration::cutting_seen_states(), limit);
    let (name, seconds) = (world.name(), begun.elapsed().as_secs_f64());
    println!(
        "world {name}, {seconds:.0} s: {} runs, {} states, {} steps",
        found.runs, found.states, found.steps
    );
    if let Some((failure, list)) = found.failure {
        return report_failure(world, &failure, list, limit, output, "enumerated");
    }
    if found.is_complete {
        println!("complete: no run fails");
        return Ok(report_outcomes(&found.outcomes, require_all));
    }
    println!("incomplete: the time is over");
    Ok(UNREACHED.into())
}

/// Makes a failure smaller, records it, and prints it with the command that repeats it.
fn report_failure(
    world: &dyn World,
    failure: &Failure,
    list: Vec<u32>,
    shrinking: Duration,
    folder: &Path,
    name: &str,
) -> Result<ExitCode, String> {
    println!("failed: {failure}");
    let before = list.len();
    let shrunk = shrink(world, list, &failure.kind(), shrinking);
    println!("shrunk from {before} to {} choices in {} runs", shrunk.choices.len(), shrunk.runs);
    let file = folder.join(format!("{}-{name}.choices", world.name()));
    let comment = format!("simulate --world {} replay FILE ({name})\n{failure}", world.name());
    fs::write(&file, recording::to_text(&comment, &shrunk.choices))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    let code = show(&world.run(Run::traced(Choices::listed(shrunk.choices))));
    println!("repeat with: simulate --world {} replay {}", world.name(), file.display());
    Ok(code)
}

/// Prints a traced run.
fn show(report: &Report) -> ExitCode {
    report.trace.iter().for_each(|line| println!("{line}"));
    println!("{} steps, {} of virtual time", report.steps, report.time);
    match &report.end {
        End::Failed(failure) => {
            println!("failed: {failure}");
            ExitCode::FAILURE
        }
        End::Done => ExitCode::SUCCESS,
        End::TooLong => {
            println!("too long: the bound on steps was reached");
            ExitCode::SUCCESS
        }
        End::Cut => ExitCode::SUCCESS,
        End::Stuck(waiting) => {
            println!("stuck:");
            waiting.iter().for_each(|line| println!("  {line}"));
            ExitCode::SUCCESS
        }
    }
}
