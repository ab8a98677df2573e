//! A program of suites: what it has to show, and which of its parts a process plays.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::peer::{die_with_parent, ensure_parent_lives};
use crate::{Link, isolate, runner};

/// One thing to show.
pub struct Case {
    /// What it belongs to.
    pub suite: &'static str,
    /// What it is called there.
    pub name: &'static str,
    /// How long it may take, in seconds.
    pub seconds: u64,
    /// What it cannot do without.
    pub needs: Needs,
    /// Shows it; what it returns is worth telling.
    pub conduct: fn(seed: u64) -> Result<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.suite, self.name)
    }
}

/// What a case cannot do without, beside a GPU.
#[derive(Clone, Copy)]
pub enum Needs {
    /// No more than that.
    Nothing,
    /// Another GPU.
    TwoDevices,
    /// The simulated driver, from which failures can be ordered.
    Simulation,
    /// Leave to make namespaces.
    Namespaces,
}

/// The error of a case that cannot run here.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// What tells one program from the others.
pub struct Program {
    /// Its name, before its errors.
    pub name: &'static str,
    /// What people may ask it for, in one line.
    pub usage: &'static str,
    /// Every case there is, by suite.
    pub suites: &'static [&'static [Case]],
    /// Is a peer, until the other end of the link closes.
    pub peer: fn(&Link) -> Result<()>,
    /// Does what people ask it for.
    pub run: fn(arguments: Vec<String>) -> Result<ExitCode>,
}

impl Program {
    /// What `main` is to do.
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
        // The first argument says which of its parts this process plays; people use the last.
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["--peer", socket] => self.serve(socket),
            ["--isolate", what, socket] => isolate::enter(what, socket),
            ["--isolated", what, socket] => isolate::settle(self, what, socket),
            ["--case", name, seed] => {
                die_with_parent()?;
                ensure_parent_lives(std::io::stdout())?;
                runner::conduct(self, name, seed.parse().context("the seed")?);
                Ok(ExitCode::SUCCESS)
            }
            _ => (self.run)(arguments),
        }
    }

    /// Is a peer of the case that left it a socket of this number.
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

    /// What people ask for on the command line. Nothing is left to be run where the cases were to be listed, which is
    /// done here.
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
                    asked.seed = seed.parse().context("the seed is a number")?;
                }
                name if name.starts_with('-') => bail!("{}", self.usage),
                _ => asked.wanted.push(argument),
            }
        }
        Ok(Some(asked))
    }
}

/// What people ask a program for.
pub struct Asked<'a> {
    pub(crate) program: &'a Program,
    /// Suites and cases; all, if there are none.
    pub(crate) wanted: Vec<String>,
    pub(crate) seed: u64,
}

impl Asked<'_> {
    /// Runs the cases that were asked for.
    pub fn run(&self) -> Result<ExitCode> {
        runner::run(self)
    }
}
