// SPDX-License-Identifier: MIT OR Apache-2.0

//! Command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Observes the video streams that processes share.
#[derive(Debug, Parser)]
#[command(name = "frameshare", version, about, max_term_width = 100, after_help = AFTER, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

const AFTER: &str = "\
Examples:
  frameshare list
  frameshare info cam0
  frameshare info cam0 --json
  frameshare watch cam0 -n 10
  frameshare disconnect cam0 3
  frameshare doctor cam0
  frameshare top

A STREAM is a name, or the path of a socket if it contains a slash. Names are searched in
$XDG_RUNTIME_DIR/frameshare (/run/frameshare without that variable), then in the folders of
FRAMESHARE_PATH.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 no such stream or reader, 4 permission denied.";

#[derive(Debug, Args)]
pub struct TopOptions {
    /// Print tables one after another, as without a terminal and with --json
    #[arg(short, long)]
    pub batch: bool,
    /// Number of tables; without it, until Ctrl-C
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Seconds between two tables, at least 0.1
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub delay: Duration,
    /// Sort streams, and the readers of each, by this column: largest first, names from a to z
    #[arg(short, long, value_enum, default_value = "name")]
    pub sort: SortKey,
}

/// A column of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    Name,
    Rate,
    Age,
    Lag,
    Held,
    Lost,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give a number of seconds from 0.1 to 86400".to_owned())
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the streams of this user and of FRAMESHARE_PATH
    #[command(
        after_help = "Examples:\n  frameshare list\n  FRAMESHARE_PATH=/run/cameras frameshare list --json"
    )]
    List,
    /// Show the format, the limits and the readers of a stream, and its last evictions and refusals
    #[command(
        after_help = "Examples:\n  frameshare info cam0\n  frameshare info /srv/frames/cam0.sock --json"
    )]
    Info {
        /// Name of the stream, or path of its socket
        stream: String,
    },
    /// Disconnect a reader; only the exporter's user and root may
    #[command(
        after_help = "Examples:\n  frameshare disconnect cam0 3\n  frameshare disconnect cam0 recorder"
    )]
    Disconnect {
        /// Name of the stream, or path of its socket
        stream: String,
        /// Number of the reader, as `info` shows it, or its name if no other has the same
        reader: String,
    },
    /// Print a line for each frame: number, age, size, flags, frames lost
    #[command(after_help = "Examples:\n  frameshare watch cam0 -n 10\n  frameshare watch cam0 --json")]
    Watch {
        /// Name of the stream, or path of its socket
        stream: String,
        /// Number of frames; without it, until the stream ends or Ctrl-C
        #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Print the rate of the frames each second, at the end a histogram of the time between frames
    #[command(after_help = "Examples:\n  frameshare hz cam0 -n 5\n  frameshare hz cam0 --json")]
    Hz {
        /// Name of the stream, or path of its socket
        stream: String,
        /// Number of seconds; without it, until the stream ends or Ctrl-C
        #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Serve the metrics of all streams to Prometheus, until Ctrl-C
    #[command(after_help = "Examples:\n  frameshare metrics\n  frameshare metrics --listen 127.0.0.1:9463")]
    Metrics {
        /// Address and port. Beyond loopback, any host that reaches it reads the metrics
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9463")]
        listen: SocketAddr,
    },
    /// Show all streams and their readers as a table that is refreshed
    #[command(
        after_help = "Keys: q quits; n, r, a, g, h, l sort by name, rate, age, lag, held and lost; arrows scroll.\n\n\
        Examples:\n  frameshare top\n  frameshare top -s lost\n  frameshare top -b -n 2 -d 0.5\n  frameshare top --json"
    )]
    Top(TopOptions),
    /// Check this machine, and what a reader here would get of a stream and why
    #[command(
        after_help = "Examples:\n  frameshare doctor\n  frameshare doctor cam0\n  frameshare doctor cam0 --json"
    )]
    Doctor {
        /// Name of the stream, or path of its socket
        stream: Option<String>,
    },
    /// Write completions and man pages into a folder
    #[command(hide = true)]
    Generate {
        /// The folder
        folder: PathBuf,
    },
}
