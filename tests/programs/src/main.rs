// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random programs over all ways into the engine, on the simulated driver.
//!
//! ```text
//! gpu-programs seeds FROM TO          runs the programs of these seeds
//! gpu-programs time SECONDS [SEED]    runs programs for a time, from a seed on
//! gpu-programs print SEED             prints a program
//! gpu-programs run FILE [TIMES]       runs a program
//! gpu-programs keep FILE FOLDER       runs a program once; its trace and all other files stay in FOLDER
//! gpu-programs shrink FILE            leaves out what a failing program does not need
//! ```
//!
//! The simulated driver is found by LD_LIBRARY_PATH.

mod generate;
mod program;
mod run;
mod shrink;
mod worker;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use program::Program;
use run::Runner;

/// Programs that run at once.
const AT_ONCE: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match command(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu-programs: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn command(arguments: &[&str]) -> Result<bool> {
    match arguments {
        ["worker", file, index, folder] => worker::run(Path::new(file), index.parse()?, Path::new(folder)),
        ["seeds", from, to] => seeds(from.parse()?, to.parse()?, None),
        ["time", seconds] => timed(seconds.parse()?, 1),
        ["time", seconds, seed] => timed(seconds.parse()?, seed.parse()?),
        ["print", seed] => {
            print!("{}", generate::program(seed.parse()?, Runner::new()?.languages()));
            Ok(true)
        }
        ["run", file] => repeat(file, 1),
        ["run", file, times] => repeat(file, times.parse()?),
        ["keep", file, folder] => {
            std::fs::create_dir(folder)?;
            let failure = Runner::new()?.run_in(&read(file)?, Path::new(folder))?;
            println!("{failure}");
            Ok(failure.is_empty())
        }
        ["shrink", file] => {
            let runner = Runner::new()?;
            print!("{}", shrink::shrink(&runner, read(file)?));
            Ok(true)
        }
        _ => bail!(
            "usage: gpu-programs seeds FROM TO | time SECONDS [SEED] | print SEED | run FILE [TIMES] | keep FILE FOLDER | shrink FILE"
        ),
    }
}

fn read(file: &str) -> Result<Program> {
    Program::parse(&std::fs::read_to_string(file).with_context(|| file.to_owned())?)
}

fn timed(seconds: u64, seed: u64) -> Result<bool> {
    seeds(seed, u64::MAX, Some(Instant::now() + Duration::from_secs(seconds)))
}

/// Runs the programs of some seeds, until one fails or the time is over.
fn seeds(from: u64, to: u64, until: Option<Instant>) -> Result<bool> {
    let runner = Runner::new()?;
    let (next, failed, count) = (AtomicU64::new(from), AtomicU64::new(u64::MAX), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while until.is_none_or(|until| Instant::now() < until)
                    && failed.load(Ordering::Relaxed) == u64::MAX
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > to {
                        break;
                    }
                    let program = generate::program(seed, runner.languages());
                    match runner.run(&program) {
                        Ok(failure) if failure.is_empty() => _ = count.fetch_add(1, Ordering::Relaxed),
                        Ok(failure) => {
                            eprintln!("seed {seed} fails:\n{failure}");
                            failed.fetch_min(seed, Ordering::Relaxed);
                        }
                        Err(error) => {
                            eprintln!("seed {seed} cannot run: {error:#}");
                            failed.fetch_min(seed, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (count, failed) = (count.into_inner(), failed.into_inner());
    if failed == u64::MAX {
        println!("PASS gpu-programs: {count} programs from seed {from} on");
        return Ok(true);
    }
    println!("FAIL gpu-programs: seed {failed}, after {count} programs that passed");
    let program = generate::program(failed, runner.languages());
    let small = shrink::shrink(&runner, program);
    println!("the smallest program found that fails, which `gpu-programs run FILE` runs:\n\n{small}");
    Ok(false)
}

fn repeat(file: &str, times: u32) -> Result<bool> {
    let (runner, program) = (Runner::new()?, read(file)?);
    if let Some(missing) = program.processes.iter().find(|it| !runner.languages().contains(&it.language)) {
        println!("SKIP gpu-programs/{file}: a process is in {}", missing.language.name());
        return Ok(true);
    }
    let mut failures = 0;
    for _ in 0..times {
        let failure = runner.run(&program)?;
        if !failure.is_empty() {
            failures += 1;
            println!("{failure}");
        }
    }
    println!("{failures} of {times} runs failed");
    Ok(failures == 0)
}
