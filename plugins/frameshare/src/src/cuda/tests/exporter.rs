// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test exporter of frames in GPU memory, in a child process that runs the test program.
//!
//! # Safety
//! Passes addresses of slots to a stream; the slots belong to the exporter, which keeps them until
//! the stream has completed.
#![allow(unsafe_code)]

use super::{PATIENCE, size_of_plane};
use frameshare::{
    Endpoint, FenceKind, Format, MemoryKind, Plane, Sequence, Wait,
    exporter::{self, Frame, PublishError, Purpose, Slot},
    fence::Written,
    memory::Address,
};
use frameshare_cuda::{context::Context, device::Device, memory::legacy, stream::Stream};
use gst_video::VideoInfo;
use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Environment variable of the child process: socket path, memory kind and fence kind.
const TASK: &str = "FRAMESHARE_TEST_EXPORTER";
/// Prefix of an answer, which distinguishes it from output of the test harness.
const ANSWER: &str = "@ ";
/// Row pitches are multiples of this.
const PITCH: i32 = 512;

/// Returns the fill byte of a frame. It is never zero, unlike fresh memory; its period is a prime,
/// so that slots in rotation never hold the same byte by chance.
pub fn byte_of(sequence: u64) -> u8 {
    1 + (sequence % 251) as u8
}

/// Handle of the child process; it is killed on drop.
pub struct Exporter {
    child: Child,
    commands: ChildStdin,
    answers: mpsc::Receiver<String>,
    folder: tempfile::TempDir,
}

impl Exporter {
    /// Starts a child process that exports NV12; see [`Serving::work`] for its commands.
    pub fn start(memory: &str, fence: &str) -> Self {
        Self::seeing("", memory, fence)
    }

    /// Starts a child process that sees only these GPUs; all GPUs if the list is empty. No driver
    /// call fails in it.
    pub fn seeing(devices: &str, memory: &str, fence: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let task = format!("{} {memory} {fence}", folder.path().join("s").display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        if !devices.is_empty() {
            command.env("CUDA_VISIBLE_DEVICES", devices);
        }
        let mut child = command
            .args(["--exact", "src::cuda::tests::exporter::process", "--nocapture"])
            .env_remove("SIMCUDA_FAIL")
            .env(TASK, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The harness prints an unfinished line before the first answer.
                let Some((_, answer)) = line.split_once(ANSWER) else { continue };
                if sender.send(answer.to_owned()).is_err() {
                    break;
                }
            }
        });
        let exporter = Self { child, commands, answers, folder };
        exporter.answer();
        exporter
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Sends a command without waiting for its end.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// Waits for the answer of a command.
    pub fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("an answer of the exporter")
    }

    /// Sends a command and waits until it is done.
    pub fn execute(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Main function of the child process; in a normal test run it does nothing.
#[test]
fn process() {
    let Ok(task) = std::env::var(TASK) else { return };
    gst::init().unwrap();
    let words: Vec<_> = task.split(' ').collect();
    let [path, memory, fence] = words[..] else { panic!("{task}") };
    let on_gpu = !["host", "late"].contains(&memory);
    let context = on_gpu.then(|| Context::primary(&Device::get(0).unwrap()).unwrap());
    let config = exporter::Config::default()
        .max_slots(20)
        .reader_timeout(PATIENCE)
        .memory((memory != "late").then(|| memory.parse::<MemoryKind>().unwrap()))
        .fence((fence != "auto").then(|| fence.parse::<FenceKind>().unwrap()))
        .gpu(context.clone());
    let exporter = exporter::Exporter::bind(&Endpoint::at(path).unwrap(), config, |_| {}).unwrap();
    let writer = context.map(|context| Stream::new(&context).unwrap());
    let mut serving =
        Serving { exporter, writer, shape: None, next: 1, format: String::new(), surfaces: Vec::new() };
    serving.work("format NV12 320 240");
    println!("{ANSWER}ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        serving.work(&line);
        println!("{ANSWER}done");
    }
    // Exit as if killed: do not wait for readers that hold frames.
    std::process::exit(0);
}

struct Serving {
    exporter: exporter::Exporter,
    writer: Option<Stream>,
    shape: Option<(u64, Vec<Plane>)>,
    next: u64,
    /// The last command that set the format.
    format: String,
    surfaces: Vec<legacy::Allocation>,
}

impl Serving {
    fn work(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        if words[0].starts_with("format") {
            self.format = line.to_owned();
        }
        match words[..] {
            // Consecutive planes with one pitch, as in GStreamer's CUDA memory.
            ["format", format, width, height] => {
                let pitch = |info: &VideoInfo, _| (info.stride()[0] + PITCH - 1) / PITCH * PITCH;
                self.format(format, width, height, pitch);
            }
            // Half the pitch for planes of half the width, as in system memory.
            ["format-system", format, width, height] => {
                self.format(format, width, height, |info, plane| info.stride()[plane] * 2);
            }
            ["readers", count] => {
                let count: usize = count.parse().unwrap();
                while self.exporter.reader_count() != count {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            ["publish", count, late_us] => {
                for _ in 0..count.parse::<u64>().unwrap() {
                    self.publish(late_us.parse().unwrap());
                }
            }
            // Later frames are in decoder-like memory, which is shared in place if every reader can
            // open it.
            ["surfaces", count] => {
                let context = self.writer.as_ref().unwrap().context();
                let surface = |_| legacy::Allocation::new(context, 1 << 21).unwrap();
                self.surfaces = (0..count.parse::<usize>().unwrap()).map(surface).collect();
            }
            // Starts to use a GPU; for an exporter started with `late`.
            ["gpu"] => {
                let context = Context::primary(&Device::get(0).unwrap()).unwrap();
                self.exporter.use_gpu(&context).unwrap();
                self.writer = Some(Stream::new(&context).unwrap());
                let format = self.format.clone();
                self.work(&format);
            }
            // Later frames are in host memory, or in GPU memory again.
            ["host", yes] => {
                self.exporter.use_host_memory(yes == "yes");
                let format = self.format.clone();
                self.work(&format);
            }
            ["eos"] => self.exporter.end_of_stream(),
            _ => panic!("{line:?}"),
        }
    }

    fn format(&mut self, format: &str, width: &str, height: &str, pitch: impl Fn(&VideoInfo, usize) -> i32) {
        let caps = format!(
            "video/x-raw(memory:CUDAMemory), format=(string){format}, width=(int){width}, \
             height=(int){height}, framerate=(fraction)25/1"
        );
        let info = VideoInfo::from_caps(&caps.parse::<gst::Caps>().unwrap()).unwrap();
        let mut size = 0;
        let mut planes = Vec::new();
        for plane in 0..info.n_planes() as usize {
            let stride = pitch(&info, plane);
            planes.push(Plane { offset: size, stride });
            size += stride as u64 * size_of_plane(&info, plane).0 as u64;
        }
        self.shape = Some((size, planes));
        self.exporter.set_format(Format { caps, video: None });
    }

    /// Publishes a frame; the GPU starts `late_us` µs late and writes one half after the other.
    fn publish(&mut self, late_us: u64) {
        if !self.surfaces.is_empty() && self.exporter.can_adopt().is_ok() {
            let surface = &self.surfaces[self.next as usize % self.surfaces.len()];
            let (slot, _) = self.exporter.adopt(surface.ptr(), Box::new(())).unwrap();
            match self.publish_in(&slot, late_us) {
                Ok(_) => return self.next += 1,
                Err(PublishError::NotForAll(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let size = self.shape.as_ref().unwrap().0;
        let slot = self.exporter.acquire(size, Purpose::Copy, Wait::No).unwrap();
        self.publish_in(&slot, late_us).unwrap();
        self.next += 1;
    }

    fn publish_in(&self, slot: &Slot, late_us: u64) -> Result<Sequence, PublishError> {
        let (size, planes) = self.shape.as_ref().unwrap();
        let byte = byte_of(self.next);
        let written = match (slot.address(), &self.writer) {
            (Address::Device(start), Some(writer)) => {
                if late_us > 0 {
                    writer.call(move || thread::sleep(Duration::from_micros(late_us))).unwrap();
                }
                let half = size / 2;
                // SAFETY: the slot has that size and is acquired until it is published; see the
                // module header.
                unsafe {
                    writer.fill(start, byte, half as usize).unwrap();
                    writer.fill(start + half, byte, (size - half) as usize).unwrap();
                }
                Written::On(writer)
            }
            _ => {
                crate::ffi::frame_bytes::paint(slot, byte);
                Written::Cpu
            }
        };
        let frame = Frame { planes, ..Frame::new(slot, *size, written) };
        self.exporter.publish(frame, Wait::Forever)
    }
}
