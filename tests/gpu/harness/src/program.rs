// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test program: its suites, and the selection of a process's role.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::peer::{die_with_parent, ensure_parent_lives};
use crate::{Case, Link, isolate, runner};

/// Definition of a test program.
pub struct Program {
    /// Name of the program, used as a prefix of its errors.
    pub name: &'static str,
    /// Usage line.
    pub usage: &'static str,
    /// All cases, by suite.
    pub suites: &'static [&'static [Case]],
    /// Serves as a peer until the other end of the link closes.
    pub peer: fn(&Link) -> Result<()>,
    /// Runs the program with the user's arguments.
    pub run: fn(arguments: Vec<String>) -> Result<ExitCode>,
}

impl Program {
    /// Implements `main`.
    pub fn main(&self) -> ExitCode {
        match self.start(std::env::args().skip(1).collect()) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("{}: {error:#}", self.name);
                ExitCode::FAILURE
            }
        }
    }

    fn start(&self, arguments: Vec<String>) -> Result<ExitCode> {
        // The first argument selects the role of this process; the last arm is the user's.
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["--peer", socket] => self.serve(socket),
            ["--isolate", what, socket] => isolate::enter(what, socket),
            ["--isolated", what, socket] => match isolate::settle(what, socket)? {
                Some(code) => Ok(code),
                None => self.serve(socket),
            },
            ["--case", name, seed] => {
                die_with_parent()?;
                ensure_parent_lives(std::io::stdout())?;
                runner::conduct(self.cases(), name, seed.parse().context("invalid seed")?);
                Ok(ExitCode::SUCCESS)
            }
            _ => (self.run)(arguments),
        }
    }

    /// Serves as a peer of the case that passed it a socket of this number.
    fn serve(&self, socket: &str) -> Result<ExitCode> {
        let link = Link::inherited(socket)?;
        die_with_parent()?;
        ensure_parent_lives(&link)?;
        (self.peer)(&link)?;
        Ok(ExitCode::SUCCESS)
    }

    fn cases(&self) -> impl Iterator<Item = &'static Case> {
        self.suites.iter().copied().flatten()
    }

    /// Parses the command line. With `--list`, prints the cases and returns `None`.
    ///
    /// # Errors
    /// Fails on invalid arguments, with the usage.
    pub fn asked(&self, arguments: Vec<String>) -> Result<Option<Asked<'_>>> {
        let mut asked = Asked { program: self, wanted: Vec::new(), seed: 1 };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => {
                    self.cases().for_each(|case| println!("{case}"));
                    return Ok(None);
                }
                "--seed" => {
                    let seed = arguments.next().context(self.usage)?;
                    asked.seed = seed.parse().context("invalid seed: expected a number")?;
                }
                name if name.starts_with('-') => bail!("{}", self.usage),
                _ => asked.wanted.push(argument),
            }
        }
        Ok(Some(asked))
    }
}

/// Parsed command line.
pub struct Asked<'a> {
    program: &'a Program,
    /// Selected suites and cases; all if empty.
    wanted: Vec<String>,
    seed: u64,
}

impl Asked<'_> {
    /// Runs the selected cases.
    pub fn run(&self) -> Result<ExitCode> {
        runner::run(self.program.cases(), &self.wanted, self.seed)
    }
}
