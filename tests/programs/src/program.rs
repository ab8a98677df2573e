// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs: the calls of some processes, as text with one call a line.
//!
//! ```text
//! set SIMCUDA_DELAY_US 100
//! process rust
//!   export memory=vmm fence=auto history=0 slots=8
//!   thread
//!     stream 0 nonblocking
//!     acquire 0
//! ```
//!
//! A call that names an object that does not exist does nothing, so each selection of lines is a
//! program.

use std::fmt;

use anyhow::{Context as _, Result, bail};

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Variables of the environment of all processes.
    pub environment: Vec<(String, String)>,
    pub processes: Vec<Process>,
}

/// The calls of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub language: Language,
    /// Options of the stream that the process exports.
    pub export: Option<String>,
    /// The calls of each thread.
    pub threads: Vec<Vec<String>>,
}

/// The public interface that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    Rust,
    C,
    Python,
}

impl Language {
    pub const ALL: [Language; 3] = [Language::Rust, Language::C, Language::Python];

    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::C => "c",
            Language::Python => "python",
        }
    }

    pub fn find(name: &str) -> Result<Language> {
        let found = Self::ALL.into_iter().find(|language| language.name() == name);
        found.with_context(|| format!("unknown language \"{name}\""))
    }
}

impl Process {
    /// Returns whether a call of this name occurs.
    pub fn has(&self, call: &str) -> bool {
        let is_it = |line: &String| line.split(' ').next() == Some(call);
        self.threads.iter().flatten().any(is_it)
    }
}

impl Program {
    /// Reads a program.
    pub fn parse(text: &str) -> Result<Program> {
        let mut program = Program::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let process = program.processes.last_mut();
            match (words.as_slice(), process) {
                (["set", name, value], _) => {
                    program.environment.push(((*name).to_owned(), (*value).to_owned()));
                }
                (["process", language], _) => program.processes.push(Process {
                    language: Language::find(language)?,
                    export: None,
                    threads: Vec::new(),
                }),
                (["export", options @ ..], Some(process)) => process.export = Some(options.join(" ")),
                (["thread"], Some(process)) => process.threads.push(Vec::new()),
                (_, Some(process)) => {
                    let Some(thread) = process.threads.last_mut() else {
                        bail!("no thread before \"{line}\"")
                    };
                    thread.push(words.join(" "));
                }
                (_, None) => bail!("no process before \"{line}\""),
            }
        }
        Ok(program)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            writeln!(f, "set {name} {value}")?;
        }
        for process in &self.processes {
            writeln!(f, "process {}", process.language.name())?;
            if let Some(options) = &process.export {
                writeln!(f, "  export {options}")?;
            }
            for thread in &process.threads {
                writeln!(f, "  thread")?;
                for call in thread {
                    writeln!(f, "    {call}")?;
                }
            }
        }
        Ok(())
    }
}

/// Columns of a frame, and rows of the smallest one.
pub const WIDTH: u32 = 4096;
pub const SMALLEST: u32 = 4;

/// Returns the value of `name=value` among options.
pub fn option<'a>(options: &'a str, name: &str) -> Option<&'a str> {
    options.split(' ').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}
