// SPDX-License-Identifier: MIT OR Apache-2.0

//! One decoder whose frames are shared, beside a decoder in each reading process: CPU time, memory
//! and number of decoders for 1, 4 and 8 readers of the same H.264 video.

use crate::usage::Usage;
use anyhow::{Context, Result, bail};
use frameshare_cuda::{context::Context as Gpu, device::Device};
use gst::prelude::*;
use serde::{Deserialize, Serialize};
use std::{
    env,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

mod table;

/// Frames per second of the video.
const RATE: u32 = 30;

/// Parsed options.
struct Options {
    clip: String,
    on_gpu: bool,
    readers: Vec<usize>,
    rounds: usize,
    seconds: f64,
    raw: Option<String>,
}

/// Job of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Job {
    /// Decodes and shares.
    Share,
    /// Reads shared frames.
    Read,
    /// Decodes, and reads the frames itself.
    Decode,
}

/// Plan of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    job: Job,
    clip: String,
    on_gpu: bool,
    socket: String,
}

/// Measurements of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    job: Job,
    frames: u64,
    /// CPU time in ns.
    cpu: u64,
    /// Proportional set size in bytes at the end of the measurement.
    pss: u64,
}

/// Result of one run: all processes of one way to have the frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Outcome {
    round: usize,
    readers: usize,
    shares: bool,
    on_gpu: bool,
    seconds: f64,
    /// GPU memory that the processes use, in bytes.
    gpu_memory: Option<u64>,
    processes: Vec<Figures>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let clip = arguments.next().context("--sharing which clip?")?;
    let mut options =
        Options { clip, on_gpu: false, readers: vec![1, 4, 8], rounds: 3, seconds: 3.0, raw: None };
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{option} what?"));
        match option.as_str() {
            "--gpu" => options.on_gpu = true,
            "--readers" => options.readers = crate::options::list(&value()?)?,
            "--rounds" => options.rounds = value()?.parse()?,
            "--seconds" => options.seconds = value()?.parse()?,
            "--raw" => options.raw = Some(value()?),
            _ => bail!("{option} is no option of --sharing"),
        }
    }
    Ok(options)
}

/// Measures all cases, and prints a table.
pub fn all(arguments: impl Iterator<Item = String>) -> Result<()> {
    let options = parse(arguments)?;
    let mut raw = options.raw.as_ref().map(File::create).transpose()?;
    let folder = env::temp_dir().join(format!("frameshare-sharing-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let mut outcomes = Vec::new();
    for round in 1..=options.rounds {
        for &readers in &options.readers {
            // Both ways alternate, so that other load on the machine affects both.
            for shares in [true, false] {
                let outcome = once(&options, &folder, round, readers, shares)?;
                if let Some(raw) = &mut raw {
                    writeln!(raw, "{}", serde_json::to_string(&outcome)?)?;
                }
                outcomes.push(outcome);
            }
        }
    }
    fs::remove_dir_all(&folder)?;
    print!("{}", table::markdown(&outcomes, &options.readers));
    Ok(())
}

fn once(options: &Options, folder: &Path, round: usize, readers: usize, shares: bool) -> Result<Outcome> {
    let socket = folder.join(format!("{round}-{readers}.sock"));
    let plan = |job| Plan {
        job,
        clip: options.clip.clone(),
        on_gpu: options.on_gpu,
        socket: socket.to_string_lossy().into_owned(),
    };
    let before = options.on_gpu.then(gpu_memory).transpose()?;
    let mut processes = Vec::new();
    if shares {
        let exporter = Process::start(&plan(Job::Share))?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !socket.exists() {
            if Instant::now() > deadline {
                bail!("the exporter has no socket after 20 s");
            }
            thread::sleep(Duration::from_millis(5));
        }
        processes.push(exporter);
    }
    let job = if shares { Job::Read } else { Job::Decode };
    for _ in 0..readers {
        processes.push(Process::start(&plan(job))?);
    }
    for process in &mut processes {
        process.receive::<String>()?;
    }
    thread::sleep(Duration::from_secs_f64(options.seconds.min(1.0)));
    processes.iter_mut().try_for_each(|process| process.execute("begin"))?;
    thread::sleep(Duration::from_secs_f64(options.seconds));
    let after = options.on_gpu.then(gpu_memory).transpose()?;
    processes.iter_mut().try_for_each(|process| process.execute("end"))?;
    let figures = processes.iter_mut().map(Process::receive).collect::<Result<_>>()?;
    drop(processes);
    Ok(Outcome {
        round,
        readers,
        shares,
        on_gpu: options.on_gpu,
        seconds: options.seconds,
        gpu_memory: after.zip(before).map(|(after, before)| after.saturating_sub(before)),
        processes: figures,
    })
}

/// Returns the used memory of the first GPU, without a context in this process.
fn gpu_memory() -> Result<u64> {
    let mut command = Command::new(env::current_exe()?);
    let out = command.arg("gpu-memory").output()?.stdout;
    serde_json::from_slice(&out).context("the GPU's memory is not known")
}

/// Prints the used memory of the first GPU.
pub fn print_gpu_memory() -> Result<()> {
    let (free, total) = Gpu::primary(&Device::get(0)?)?.memory_left()?;
    crate::say(&(total - free))
}

/// A process of a run, killed when dropped.
struct Process {
    child: Child,
    commands: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(plan: &Plan) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["sharing", &serde_json::to_string(plan)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().context("its input is piped")?;
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { child, commands, lines })
    }

    fn execute(&mut self, command: &str) -> Result<()> {
        Ok(writeln!(self.commands, "{command}")?)
    }

    fn receive<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("a process said {line:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a process of a plan: prints "joined" at its first frame, counts from "begin", and prints
/// its measurements at "end".
pub fn play(plan: &str) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("no plan of a process")?;
    let frames = Arc::new(AtomicU64::new(0));
    let (joined, first) = mpsc::channel();
    let pipeline = launch(&plan, frames.clone(), joined)?;
    while first.recv_timeout(Duration::from_millis(100)).is_err() {
        crate::check_bus(&pipeline)?;
    }
    crate::say(&"joined")?;
    let mut commands = io::stdin().lock().lines();
    commands.next().context("stdin closed before the measurement")??;
    let (before, count) = (Usage::now(), frames.load(Ordering::Relaxed));
    commands.next().context("stdin closed in the measurement")??;
    let cpu = Usage::now().since(before).cpu;
    crate::check_bus(&pipeline)?;
    let frames = frames.load(Ordering::Relaxed) - count;
    crate::say(&Figures { job: plan.job, frames, cpu, pss: pss()? })?;
    let _ = commands.next();
    Ok(())
}

fn launch(plan: &Plan, frames: Arc<AtomicU64>, joined: mpsc::Sender<()>) -> Result<gst::Pipeline> {
    let decoder = match plan.on_gpu {
        // With 0 the decoder pushes its own surfaces, which are shared in place.
        true => "h264parse ! nvh264dec num-output-surfaces=0",
        false => "decodebin",
    };
    let decode = format!(
        "multifilesrc location={} loop=true caps=video/x-h264,stream-format=byte-stream ! {decoder}",
        plan.clip
    );
    let memory = if plan.on_gpu { "video/x-raw(memory:CUDAMemory)" } else { "video/x-raw" };
    let options = "name=sink sync=false async=false enable-last-sample=false";
    let text = match plan.job {
        Job::Share => format!("{decode} ! framesharesink socket-path={} {options}", plan.socket),
        Job::Decode => format!("{decode} ! {memory} ! fakesink {options}"),
        Job::Read => format!(
            "framesharesrc socket-path={} policy=lossless ! {memory} ! fakesink {options}",
            plan.socket
        ),
    };
    let pipeline = gst::parse::launch(&text)?.downcast::<gst::Pipeline>().ok().context("not a pipeline")?;
    let pad = pipeline.by_name("sink").and_then(|sink| sink.static_pad("sink")).context("no sink")?;
    let decodes = plan.job != Job::Read;
    let reads = plan.job != Job::Share && !plan.on_gpu;
    let next = Mutex::new(Instant::now());
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        // The decoder waits here, as for a camera.
        if decodes && let Ok(mut next) = next.lock() {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            *next = (*next + Duration::from_secs(1) / RATE).max(Instant::now());
        }
        if reads && let Some(frame) = info.buffer().and_then(|buffer| buffer.map_readable().ok()) {
            let row = frame.iter().take(1280).map(|byte| u64::from(*byte)).sum::<u64>();
            std::hint::black_box(row);
        }
        if frames.fetch_add(1, Ordering::Relaxed) == 0 {
            let _ = joined.send(());
        }
        gst::PadProbeReturn::Ok
    });
    pipeline.set_state(gst::State::Playing)?;
    Ok(pipeline)
}

/// Returns the proportional set size of this process: shared pages count in parts.
fn pss() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup").context("no sizes of this process")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes << 10)
}
