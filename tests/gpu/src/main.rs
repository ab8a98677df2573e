//! Suites of memory kinds and fences between processes.
//!
//! One program on every driver, simulated or real: it fills, copies and calls host functions, and needs no kernels. A
//! *case* is a process that conducts and never touches CUDA; the CUDA work is done by *peers*, processes of this same
//! program that obey it over a socket. Whatever hangs in a peer is killed with it.
//! The one kernel (see [`kernel`]) is for what only a kernel can do: lose a context.

mod command;
mod isolate;
mod kernel;
mod link;
mod machine;
mod peer;
mod platform;
mod random;
mod runner;
mod suites;
mod words;

use std::process::ExitCode;

use anyhow::{Context as _, Result};

const USAGE: &str = "gpu-suites [--list] [--platform] [--seed N] [SUITE | SUITE/CASE]...";

fn main() -> ExitCode {
    match start(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpu-suites: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Vec<String>) -> Result<ExitCode> {
    // The first argument says which of its parts this process plays; people use the last.
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--peer", socket] => machine::serve(socket).map(|()| ExitCode::SUCCESS),
        ["--isolate", what, socket] => isolate::enter(what, socket),
        ["--isolated", what, socket] => isolate::settle(what, socket),
        ["--platform"] => {
            println!("{}", platform::line());
            Ok(ExitCode::SUCCESS)
        }
        ["--case", name, seed] => {
            runner::conduct(name, seed.parse().context("the seed")?);
            Ok(ExitCode::SUCCESS)
        }
        _ => run(arguments),
    }
}

fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(asked) = runner::Asked::parse(arguments, USAGE)? else { return Ok(ExitCode::SUCCESS) };
    runner::run(&asked)
}
