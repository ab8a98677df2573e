// SPDX-License-Identifier: MIT OR Apache-2.0

//! Split of a frame's cost into kernel, GStreamer and frameshare, by controls.
//!
//! Each way to hand a frame over leaves something out that the next one has: a timer alone; bare
//! wake-ups over a socket; the engine; elements without a transport; `framesharesink` and
//! `framesharesrc`. Exporter and reader are processes of their own, and the figures are the CPU
//! time of all their threads. Differences of the ways are the parts.

use crate::{
    alone::median,
    case::Size,
    pace::{Exported, Pace},
    read,
    slow::spread,
    source::Source,
    stamp::{self, Stamp},
    watch::{Received, Report, Watch},
};
use anyhow::{Context, Result, bail};
use frameshare::{
    Endpoint, Interrupt, Wait,
    exporter::{Config, Exporter, Frame, Purpose},
    fence::Written,
    reader::{self, Item, Reader},
};
use gst::prelude::*;
use serde::de::DeserializeOwned;
use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread,
    time::Duration,
};

const SIZE: Size = Size { width: 1920, height: 1080 };
const WARM: Duration = Duration::from_millis(500);
const MEASURE: Duration = Duration::from_secs(4);

/// The ways: those of the exporter, and of the reader if there is one.
const WAYS: [(&str, Option<&str>); 6] = [
    ("timer", None),
    ("elements", None),
    ("wake", Some("wake")),
    ("wake", Some("elements")),
    ("engine", Some("engine")),
    ("sink", Some("src")),
];

/// CPU time in µs a frame, of each way in [`WAYS`], one figure for each round.
#[derive(Default)]
struct Costs {
    exporter: [Vec<f64>; WAYS.len()],
    reader: [Vec<f64>; WAYS.len()],
}

/// Measures at `rate` frames a second, and prints a table.
pub fn all(rounds: usize, rate: u32) -> Result<()> {
    let folder = env::temp_dir().join(format!("frameshare-split-{}", std::process::id()));
    let mut costs = Costs::default();
    for _ in 0..rounds {
        for (way, (exporter, reader)) in WAYS.iter().enumerate() {
            std::fs::create_dir_all(&folder)?;
            let figures = measure(&folder.join("s.sock"), rate, exporter, *reader);
            std::fs::remove_dir_all(&folder)?;
            let (exported, received) = figures?;
            costs.exporter[way].push(exported.usage.cpu as f64 / exported.frames.max(1) as f64 / 1e3);
            if let Some(received) = received {
                costs.reader[way].push(received.usage.cpu as f64 / received.frames.max(1) as f64 / 1e3);
            }
        }
    }
    print!("{}", report(&costs, rate));
    Ok(())
}

fn report(costs: &Costs, rate: u32) -> String {
    let mut text = format!("\n{SIZE} NV12, {rate} frames/s, host memory: CPU time in µs a frame\n\n");
    text += "| way | exporter | reader |\n| --- | --- | --- |\n";
    for (way, (exporter, reader)) in WAYS.iter().enumerate() {
        let name = reader.map_or_else(|| (*exporter).into(), |reader| format!("{exporter}, {reader}"));
        text += &format!("| {name} | {} | {} |\n", spread(&costs.exporter[way]), spread(&costs.reader[way]));
    }
    let of = |figures: &[Vec<f64>; WAYS.len()]| figures.each_ref().map(|figures| median(figures));
    let [timer, elements, wake, _, engine, sink] = of(&costs.exporter);
    let [_, _, woken, source, engine_read, src] = of(&costs.reader);
    let (base, read_base) = (elements - timer, source - woken);
    let parts = [
        ("kernel: timer, or sleep, and one wake-up", wake, woken),
        ("GStreamer's elements and base classes", base, read_base),
        ("frameshare's engine", engine - wake, engine_read - woken),
        ("frameshare's elements", sink - engine - base, src - engine_read - read_base),
        ("all", sink, src),
    ];
    text += "\n| part | exporter | reader |\n| --- | --- | --- |\n";
    for (name, exporter, reader) in parts {
        text += &format!("| {name} | {exporter:.0} | {reader:.0} |\n");
    }
    text
}

/// A process of one role.
struct Role {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Role {
    fn start(side: &str, way: &str, socket: &Path) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["split", &format!("{side} {way} {}", socket.display())]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(process.stdout.take().context("its output is piped")?);
        Ok(Self { process, output })
    }

    /// Lets the role begin.
    fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.process.stdin.as_mut().context("its input is piped")?, "go")?)
    }

    /// Returns the figures that the role prints.
    fn figures<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("a role said {line:?}"))
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn measure(
    socket: &Path,
    rate: u32,
    exporter: &str,
    reader: Option<&str>,
) -> Result<(Exported, Option<Received>)> {
    let mut exporting = Role::start("export", &format!("{exporter} {rate}"), socket)?;
    while reader.is_some() && !socket.exists() {
        thread::sleep(Duration::from_millis(2));
    }
    let mut reading = reader.map(|way| Role::start("read", way, socket)).transpose()?;
    // The reader has joined when it has a frame.
    reading.as_mut().map(Role::figures::<String>).transpose()?;
    exporting.go()?;
    let figures = (exporting.figures()?, reading.as_mut().map(Role::figures).transpose()?);
    // It would complain about the end of its reader.
    drop(exporting);
    Ok(figures)
}

/// Plays the role that `plan` describes: side, way, the exporter's rate, and socket.
pub fn play(plan: &str) -> Result<()> {
    gst::init()?;
    gstframeshare::plugin_register_static()?;
    let no_role = || format!("{plan:?} is no role");
    let (side, rest) = plan.split_once(' ').with_context(no_role)?;
    let (way, rest) = rest.split_once(' ').with_context(no_role)?;
    match side {
        "export" => {
            let (rate, socket) = rest.split_once(' ').with_context(no_role)?;
            export(way, rate.parse().with_context(no_role)?, socket)
        }
        "read" => read(way, rest),
        _ => bail!(no_role()),
    }
}

/// Exports until it is killed, and prints the figures of the measured time.
fn export(way: &str, rate: u32, socket: &str) -> Result<()> {
    let go = Arc::new(AtomicBool::new(false));
    let (done, exported) = mpsc::channel();
    let report = move |exported| _ = done.send(exported);
    let pace = Pace::new(go.clone(), rate, WARM, MEASURE, report);
    let pipeline = match way {
        "elements" => Some(pipeline("fakesink", None, pace)?),
        "sink" => Some(pipeline("framesharesink", Some(socket), pace)?),
        _ => {
            let (way, socket) = (way.to_owned(), socket.to_owned());
            thread::spawn(move || {
                if let Err(error) = send(&way, &socket, pace) {
                    eprintln!("frameshare-bench: {error:#}");
                }
            });
            None
        }
    };
    io::stdin().lock().read_line(&mut String::new())?;
    go.store(true, std::sync::atomic::Ordering::Relaxed);
    crate::say(&exported.recv()?)?;
    // Slow frames go on, so that the reader gets the end.
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(pipeline);
    Ok(())
}

/// Starts a pipeline of the bench's source and this sink.
fn pipeline(sink: &str, socket: Option<&str>, pace: Pace) -> Result<gst::Pipeline> {
    let source = Source::new(&SIZE.info()?, 16, pace)?;
    let sink = gst::ElementFactory::make(sink).property("sync", false).property("async", false);
    let sink = sink.property("enable-last-sample", false).build()?;
    if let Some(socket) = socket {
        sink.set_property("socket-path", socket);
    }
    let pipeline = gst::Pipeline::new();
    pipeline.add_many([source.upcast_ref(), &sink])?;
    source.link(&sink)?;
    pipeline.set_state(gst::State::Playing)?;
    Ok(pipeline)
}

/// Sends without GStreamer.
fn send(way: &str, socket: &str, mut pace: Pace) -> Result<()> {
    match way {
        "timer" => loop {
            pace.stamp();
        },
        "wake" => {
            let (mut stream, _) = UnixListener::bind(socket)?.accept()?;
            loop {
                stream.write_all(&pace.stamp().encode())?;
            }
        }
        "engine" => {
            let exporter = Exporter::bind(&Endpoint::at(socket)?, Config::default(), |_| ())?;
            let size = SIZE.info()?.size() as u64;
            loop {
                let slot = exporter.acquire(size, Purpose::Copy, Wait::No)?;
                let metadata = &pace.stamp().encode();
                let frame = Frame { metadata, ..Frame::new(&slot, size, Written::Cpu) };
                exporter.publish(frame, Wait::Forever)?;
            }
        }
        _ => bail!("{way} is no way to export"),
    }
}

/// Reads until it is killed, and prints the figures of the measured time.
fn read(way: &str, socket: &str) -> Result<()> {
    let (watch, reports) = Watch::new(true);
    let (way, socket) = (way.to_owned(), socket.to_owned());
    thread::spawn(move || {
        if let Err(error) = receive(&way, &socket, watch) {
            eprintln!("frameshare-bench: {error:#}");
        }
    });
    for report in reports {
        match report {
            Report::Joined => crate::say(&"joined")?,
            Report::Received(received) => crate::say(&received)?,
        }
    }
    Ok(())
}

fn receive(way: &str, socket: &str, mut watch: Watch) -> Result<()> {
    match way {
        "wake" => {
            let mut stream = UnixStream::connect(socket)?;
            let mut bytes = [0; stamp::SIZE];
            // The exporter ends first.
            while stream.read_exact(&mut bytes).is_ok() {
                watch.see(Stamp::decode(&bytes), &bytes);
            }
            Ok(())
        }
        "engine" => {
            let interrupt = Interrupt::new()?;
            let mut reader = Reader::connect(&Endpoint::at(socket)?, reader::Config::default(), &interrupt)?;
            loop {
                if let Some(Item::Frame(frame)) = reader.next(None, &interrupt)? {
                    watch.see(Stamp::decode(frame.metadata()), &[]);
                }
            }
        }
        "elements" => {
            let stream = UnixStream::connect(socket)?;
            // Reads one stamp into each buffer, as the control above.
            let source = gst::ElementFactory::make("fdsrc").property("fd", stream.as_raw_fd());
            sink(&source.property("blocksize", stamp::SIZE as u32).build()?, watch)
        }
        "src" => {
            let source = gst::ElementFactory::make("framesharesrc").property("socket-path", socket);
            sink(&source.build()?, watch)
        }
        _ => bail!("{way} is no way to read"),
    }
}

/// Runs a pipeline of this source and fakesink.
fn sink(source: &gst::Element, watch: Watch) -> Result<()> {
    let pipeline = read::watched(source, watch)?;
    loop {
        crate::check_bus(&pipeline)?;
        thread::sleep(Duration::from_secs(3600));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let exporter = [1.0, 4.0, 10.0, 10.0, 15.0, 25.0].map(|figure| vec![figure]);
        let reader = [0.0, 0.0, 20.0, 26.0, 30.0, 50.0].map(|figure| vec![figure]);
        let text = report(&Costs { exporter, reader }, 60);
        let part = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).expect("the part is in the table");
            line.split(" | ").skip(1).map(|cell| cell.trim_end_matches(" |").parse().unwrap()).collect()
        };
        let names = ["kernel", "base classes", "frameshare's engine", "frameshare's elements"];
        let parts: Vec<Vec<i32>> = names.map(part).into();
        assert_eq!(parts, [[10, 20], [3, 6], [5, 10], [7, 14]]);
        assert_eq!(part("| all"), [25, 50]);
    }
}
