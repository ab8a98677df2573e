// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test program: its suites, and the selection of a process's role.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::peer::{die_with_parent, ensure_parent_lives};
use crate::{Link, isolate, runner};

/// A test case.
pub struct Case {
    /// Suite of the case.
    pub suite: &'static str,
    /// Name within the suite.
    pub name: &'static str,
    /// Time limit in seconds.
    pub seconds: u64,
    /// Requirements.
    pub needs: Needs,
    /// Runs the case; returns a detail text for the report.
    pub conduct: fn(seed: u64) -> Result<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.suite, self.name)
    }
}

/// Requirements of a case in addition to a GPU.
#[derive(Clone, Copy)]
pub enum Needs {
    /// Not even a GPU.
    NoGpu,
    /// None.
    Nothing,
    /// A second GPU.
    TwoDevices,
    /// The simulated driver, which can inject failures.
    Simulation,
    /// Permission to create namespaces.
    Namespaces,
}

/// Error of a case that cannot run on this machine.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

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
            ["--isolated", what, socket] => isolate::settle(self, what, socket),
            ["--case", name, seed] => {
                die_with_parent()?;
                ensure_parent_lives(std::io::stdout())?;
                runner::conduct(self, name, seed.parse().context("invalid seed")?);
                Ok(ExitCode::SUCCESS)
            }
            _ => (self.run)(arguments),
        }
    }

    /// Serves as a peer of the case that passed it a socket of this number.
    pub(crate) fn serve(&self, socket: &str) -> Result<ExitCode> {
        let link = Link::inherited(socket)?;
        die_with_parent()?;
        ensure_parent_lives(&link)?;
        (self.peer)(&link)?;
        Ok(ExitCode::SUCCESS)
    }

    pub(crate) fn cases(&self) -> impl Iterator<Item = &'static Case> {
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
    pub(crate) program: &'a Program,
    /// Selected suites and cases; all if empty.
    pub(crate) wanted: Vec<String>,
    pub(crate) seed: u64,
}

impl Asked<'_> {
    /// Runs the selected cases.
    pub fn run(&self) -> Result<ExitCode> {
        runner::run(self)
    }
}
