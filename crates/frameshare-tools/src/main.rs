// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command `frameshare`: observes the streams that processes share.

mod cli;
mod disconnect;
mod doctor;
mod error;
mod frames;
mod generate;
mod hz;
mod info;
mod list;
mod metrics;
mod output;
mod pixels;
mod play;
mod publish;
mod publisher;
mod record;
mod recording;
mod signals;
mod snapshot;
mod stream;
mod top;
mod view;
mod watch;

use clap::Parser;
use cli::{Arguments, Command};
use error::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::ExitCode;

fn run(arguments: Arguments) -> Result<(), Error> {
    let json = arguments.json;
    match arguments.command {
        Command::List => list::list(json),
        Command::Info { stream } => info::info(&stream, json),
        Command::Disconnect { stream, reader } => disconnect::disconnect(&stream, &reader, json),
        Command::Watch { stream, count } => watch::watch(&stream, count, json),
        Command::Hz { stream, count } => hz::hz(&stream, count, json),
        Command::Snapshot { stream, file, timeout } => snapshot::snapshot(&stream, &file, timeout, json),
        Command::View { stream, columns, timeout } => view::view(&stream, columns, timeout, json),
        Command::Record(options) => record::record(&options, json),
        Command::Play(options) => play::play(&options, json),
        Command::Publish(options) => publish::publish(&options, json),
        Command::Metrics { listen, hosts } => metrics::metrics(listen, &hosts, json),
        Command::Top(options) => top::top(&options, json),
        Command::Doctor { stream } => doctor::doctor(stream.as_deref(), json),
        Command::Generate { folder } => generate::generate(&folder),
    }
}

/// Raises the soft limit of open files to the hard limit: each stream that is observed is one.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Cannot fail for a soft limit that the hard limit allows.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn main() -> ExitCode {
    raise_file_limit();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_end() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("frameshare: {}", output::escape(&error.to_string()));
            error.exit_code()
        }
    }
}
