//! An exporter of frames in GPU memory, in a process of its own: the test program itself, started again.
//!
//! # Safety
//! Hands addresses of slots to a stream; they belong to the exporter, which keeps them until the stream got there.
#![allow(unsafe_code)]

use super::{PATIENCE, size_of_plane};
use frameshare::{
    Endpoint, FenceKind, Format, Interrupt, MemoryKind, Plane,
    cuda::{context::Context, device::Device, memory::legacy, stream::Stream},
    exporter::{self, Frame, PublishError, Purpose, Slot},
    fence::Written,
    memory::Address,
};
use gst_video::VideoInfo;
use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// In the environment of such a process: where, in what memory, with which fence.
const TASK: &str = "FRAMESHARE_TEST_EXPORTER";
/// What its answers begin with, among what the test harness prints.
const ANSWER: &str = "@ ";
/// Bytes from one row to the next are a multiple of this.
const PITCH: i32 = 512;

/// The byte that fills a frame. Fresh memory is zero and this is not; its period is a prime, so that slots that are used in
/// turn never hold the same byte by chance.
pub fn byte_of(sequence: u64) -> u8 {
    1 + (sequence % 251) as u8
}

/// Such a process, which is killed when it is dropped.
pub struct Exporter {
    child: Child,
    commands: ChildStdin,
    answers: mpsc::Receiver<String>,
    folder: tempfile::TempDir,
}

impl Exporter {
    /// Starts one. Lines of NV12 follow; see [`serve`] for what it can be told.
    pub fn start(memory: &str, fence: &str) -> Self {
        Self::seeing("", memory, fence)
    }

    /// The same, for which certain GPUs are visible; all of them where none is named. No driver call fails there.
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
                // The harness does not end its line before the first answer.
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

    /// Begins what a line says.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// Waits until it is done.
    pub fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("the exporter answers")
    }

    /// Has it do what a line says.
    pub fn tell(&mut self, command: &str) -> String {
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

/// The process; as a test among others it is none.
#[test]
fn process() {
    let Ok(task) = std::env::var(TASK) else { return };
    gst::init().unwrap();
    let words: Vec<_> = task.split(' ').collect();
    let [path, memory, fence] = words[..] else { panic!("{task}") };
    let on_gpu = !["host", "late"].contains(&memory);
    let context = on_gpu.then(|| Context::primary(&Device::get(0).unwrap()).unwrap());
    let config = exporter::Config {
        max_slots: 20,
        reader_timeout: PATIENCE,
        memory: (memory != "late").then(|| memory.parse::<MemoryKind>().unwrap()),
        fence: (fence != "auto").then(|| fence.parse::<FenceKind>().unwrap()),
        gpu: context.clone(),
        ..exporter::Config::default()
    };
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
    // As if killed: nothing is to wait for readers that hold frames.
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
            // All planes with one pitch, one behind the other, as GStreamer has them in CUDA memory.
            ["format", format, width, height] => {
                let pitch = |info: &VideoInfo, _| (info.stride()[0] + PITCH - 1) / PITCH * PITCH;
                self.format(format, width, height, pitch);
            }
            // As in system memory: half the pitch for planes of half the width.
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
            // Frames to come are in memory like a decoder's, which is shared in place where every reader can open it.
            ["surfaces", count] => {
                let context = self.writer.as_ref().unwrap().context();
                let surface = |_| legacy::Allocation::new(context, 1 << 21).unwrap();
                self.surfaces = (0..count.parse::<usize>().unwrap()).map(surface).collect();
            }
            // Begins to use a GPU, where the exporter was started for `late`.
            ["gpu"] => {
                let context = Context::primary(&Device::get(0).unwrap()).unwrap();
                self.exporter.use_gpu(&context).unwrap();
                self.writer = Some(Stream::new(&context).unwrap());
                let format = self.format.clone();
                self.work(&format);
            }
            // Frames to come are in host memory, or in the GPU's again.
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
            "video/x-raw(memory:CUDAMemory), format=(string){format}, width=(int){width}, height=(int){height}, \
             framerate=(fraction)25/1"
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

    /// Publishes a frame; the GPU gets to it so many µs late, and writes one half after the other.
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
        let slot = self.exporter.acquire(size, Purpose::Copy).unwrap();
        self.publish_in(&slot, late_us).unwrap();
        self.next += 1;
    }

    fn publish_in(&self, slot: &Slot, late_us: u64) -> Result<u64, PublishError> {
        let (size, planes) = self.shape.as_ref().unwrap();
        let byte = byte_of(self.next);
        let written = match (slot.address(), &self.writer) {
            (Address::Device(start), Some(writer)) => {
                if late_us > 0 {
                    writer.call(move || thread::sleep(Duration::from_micros(late_us))).unwrap();
                }
                let half = size / 2;
                // SAFETY: the slot is that big, and acquired until it is published; see the head of the file.
                unsafe {
                    writer.fill(start, byte, half as usize).unwrap();
                    writer.fill(start + half, byte, (size - half) as usize).unwrap();
                }
                Written::On(writer)
            }
            _ => {
                crate::src::lease::paint(slot, byte);
                Written::Cpu
            }
        };
        let frame = Frame { planes, ..Frame::new(slot, *size, written) };
        self.exporter.publish(frame, &Interrupt::new().unwrap())
    }
}
