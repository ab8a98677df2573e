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
  frameshare snapshot cam0 cam0.png
  frameshare record cam0 cam0.rec
  frameshare publish test

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

#[derive(Debug, Args)]
pub struct RecordOptions {
    /// Name of the stream, or path of its socket
    pub stream: String,
    /// The file
    pub file: PathBuf,
    /// Number of frames; without it, until the stream ends or Ctrl-C
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Time to record, in seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Lose no frame: a slow disk holds the stream back
    #[arg(long)]
    pub lossless: bool,
    /// Replace the file if it exists
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct PlayOptions {
    /// The recording
    pub file: PathBuf,
    /// Name of the new stream, or path of its socket
    pub stream: String,
    /// Publish as fast as lossless readers take the frames, not at the times of the recording
    #[arg(long)]
    pub fast: bool,
    /// Start again at the end, until Ctrl-C
    #[arg(short = 'l', long = "loop")]
    pub repeat: bool,
    /// Wait for so many readers first
    #[arg(short, long, default_value = "0")]
    pub readers: usize,
}

#[derive(Debug, Args)]
pub struct PublishOptions {
    /// Name of the new stream, or path of its socket
    pub stream: String,
    /// A video file; without it, a test pattern. Needs gst-launch-1.0 and the plugin of frameshare
    #[arg(conflicts_with_all = ["format", "size", "rate", "count", "readers"])]
    pub file: Option<PathBuf>,
    /// Pixel format of the pattern
    #[arg(long, default_value = "NV12")]
    pub format: String,
    /// Size of the pattern in pixels
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value = "640x480", value_parser = size)]
    pub size: (u32, u32),
    /// Frames of the pattern per second, such as 25 or 30000/1001
    #[arg(long, default_value = "30", value_parser = rate)]
    pub rate: (u32, u32),
    /// Number of frames; without it, until Ctrl-C
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Wait for so many readers first
    #[arg(short, long, default_value = "0")]
    pub readers: usize,
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let size =
        text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    size.filter(|(width, height)| (1..=32768).contains(width) && (1..=32768).contains(height))
        .ok_or_else(|| "give width and height from 1 to 32768, such as 640x480".to_owned())
}

fn rate(text: &str) -> Result<(u32, u32), String> {
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    let rate = numerator.parse().ok().zip(denominator.parse().ok());
    rate.filter(|(numerator, denominator)| *numerator > 0 && *denominator > 0)
        .ok_or_else(|| "give frames per second, such as 25 or 30000/1001".to_owned())
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
    Copies,
    Wakeups,
    Cpu,
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
    /// Write an image of the newest frame into a PNG file
    #[command(
        after_help = "Examples:\n  frameshare snapshot cam0 cam0.png\n  frameshare snapshot cam0 - | display"
    )]
    Snapshot {
        /// Name of the stream, or path of its socket
        stream: String,
        /// The file, replaced if it exists; - for stdout
        file: PathBuf,
        /// Maximum time to wait for a frame, in seconds
        #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
        timeout: Duration,
    },
    /// Show the newest frame in the terminal: an image if it can show one, blocks otherwise
    #[command(after_help = "Examples:\n  frameshare view cam0\n  frameshare view cam0 --columns 40")]
    View {
        /// Name of the stream, or path of its socket
        stream: String,
        /// Width in characters; without it, as large as the terminal
        #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=1000))]
        columns: Option<u16>,
        /// Maximum time to wait for a frame, in seconds
        #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
        timeout: Duration,
    },
    /// Record the frames of a stream with their times and metadata
    #[command(
        after_help = "Examples:\n  frameshare record cam0 cam0.rec\n  frameshare record cam0 cam0.rec -n 100 --lossless"
    )]
    Record(RecordOptions),
    /// Publish a recording as a stream, at the times of the recording
    #[command(
        after_help = "Examples:\n  frameshare play cam0.rec cam0\n  frameshare play cam0.rec test --loop\n  \
        frameshare play cam0.rec test --fast --readers 1"
    )]
    Play(PlayOptions),
    /// Publish a test pattern, or a video file, as a stream
    #[command(
        after_help = "Examples:\n  frameshare publish test\n  frameshare publish test --format I420 --size 1280x720 --rate 25\n  \
        frameshare publish cam0 video.mp4"
    )]
    Publish(PublishOptions),
    /// Serve the metrics of all streams to Prometheus, until Ctrl-C
    #[command(after_help = "Examples:\n  frameshare metrics\n  frameshare metrics --listen 127.0.0.1:9463")]
    Metrics {
        /// Address and port. Beyond loopback, any host that reaches it reads the metrics
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9463")]
        listen: SocketAddr,
        /// Name of this machine by which Prometheus asks: other names than localhost and the host
        /// name are refused. Can be given several times
        #[arg(long = "host", value_name = "NAME")]
        hosts: Vec<String>,
    },
    /// Show all streams and their readers as a table that is refreshed
    #[command(
        after_help = "Keys: q quits; n, r, a, g, h, l, c, w, p sort by name, rate, age, lag, held, lost, copies,\n\
        wake-ups and CPU; arrows scroll.\n\n\
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
