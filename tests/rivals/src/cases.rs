// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases: the faults that each transport is put through, and a sentence about the result.

use crate::{
    Setting,
    process::{End, Process},
    transport::Transport,
};
use anyhow::{Context as _, Result, ensure};
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    process::Signal,
};
use std::{
    collections::HashMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    thread,
    time::{Duration, Instant},
};

pub struct Case {
    pub name: &'static str,
    pub conduct: fn(&Setup<'_>) -> Result<String>,
}

pub const CASES: &[Case] = &[
    Case { name: "readers killed in a row beside 3 others", conduct: readers_killed },
    Case { name: "exporter killed", conduct: exporter_killed },
    Case { name: "reader stopped for 5 s beside another", conduct: reader_stopped },
    Case { name: "viewer at 1 frame/s beside another reader, 5 s", conduct: slow_reader },
    Case { name: "exporter killed and started again", conduct: restarted },
    Case { name: "second exporter at the same path", conduct: second_exporter },
    Case { name: "reader of another user, socket in an open folder", conduct: other_user },
    Case { name: "frames can be written by who has their descriptor", conduct: writable },
];

/// Distinct frames of the test source, more than any case needs.
const FRAMES: usize = 12_000;
const CAPS: &str = "video/x-raw,format=NV12,width=320,height=240,framerate=200/1";
/// Timeout of operations that can only exceed it by a hang.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time for which readers are stopped or slow.
const WHILE: Duration = Duration::from_secs(5);

/// Folder and processes of one case.
pub struct Setup<'a> {
    setting: &'a Setting,
    transport: &'a Transport,
    folder: tempfile::TempDir,
}

impl<'a> Setup<'a> {
    pub fn new(setting: &'a Setting, transport: &'a Transport) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("rivals").tempdir_in(&setting.folder)?;
        Ok(Self { setting, transport, folder })
    }

    fn at(&self, element: &str) -> String {
        element.replace("{}", &self.folder.path().join("s").display().to_string())
    }

    /// A text without the path of the socket.
    pub fn without_paths(&self, text: &str) -> String {
        text.replace(&self.folder.path().join("s").display().to_string(), "s")
    }

    /// Test source whose frames are all distinct, and the same in each run.
    fn picture(setting: &Setting, on_gpu: bool, is_live: bool) -> String {
        let upload = if on_gpu { " ! cudaupload" } else { "" };
        match &setting.clip {
            Some(clip) => {
                let again = if is_live { " loop=true" } else { " num-buffers=1" };
                format!("multifilesrc location={clip}{again} ! h264parse ! nvh264dec num-output-surfaces=0")
            }
            None if is_live => format!("videotestsrc is-live=true pattern=snow ! {CAPS}{upload}"),
            None => format!("videotestsrc pattern=snow num-buffers={FRAMES} ! {CAPS}{upload}"),
        }
    }

    fn exporter(&self) -> Result<Process> {
        let picture = Self::picture(self.setting, self.transport.on_gpu, true);
        let sink = self.at(self.transport.sink);
        let exporter = Process::exporter(self.setting, &format!("{picture} ! {sink}"))?;
        let until = Instant::now() + PATIENCE;
        while !self.folder.path().join("s").exists() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(exporter)
    }

    /// Frame numbers by checksum. A clip restarts after its last frame.
    fn numbers(&self) -> Result<HashMap<String, usize>> {
        let picture = Self::picture(self.setting, self.transport.on_gpu, false);
        let pipeline = format!("{picture}{} ! checksumsink", self.transport.download());
        let mut process = Process::start(self.setting, &[], &pipeline)?;
        process.end(4 * PATIENCE)?.context("it does not end")?;
        // Output may still be in the pipe.
        thread::sleep(Duration::from_millis(200));
        Ok(process.frames().into_iter().enumerate().map(|(number, (_, sum))| (sum, number)).collect())
    }

    /// Time without a failure after which a process counts as started; the GPU elements take
    /// seconds to load.
    fn start(&self) -> Duration {
        if self.transport.on_gpu { PATIENCE } else { Duration::from_secs(2) }
    }

    fn source(&self, properties: &str, rest: &str) -> String {
        format!("{} {properties}{} ! {rest}", self.at(self.transport.source), self.transport.download())
    }

    fn reader_with(&self, properties: &str, rest: &str) -> Result<Process> {
        Process::start(self.setting, &[], &self.source(properties, rest))
    }

    /// Starts a reader, and waits until it receives frames.
    fn reader(&self) -> Result<Process> {
        let mut reader = self.reader_with("", "checksumsink")?;
        ensure!(reader.wait_for_frames(20, PATIENCE), "a reader gets nothing");
        Ok(reader)
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn describe(end: Option<End>) -> String {
    match end {
        None => format!("still there after {}", seconds(PATIENCE)),
        Some(End { ok: true, after, .. }) => format!("ends after {} as if all were well", seconds(after)),
        Some(End { after, error, .. }) => format!("error after {}: {error}", seconds(after)),
    }
}

fn readers_killed(setup: &Setup<'_>) -> Result<String> {
    let numbers = setup.numbers()?;
    let mut exporter = setup.exporter()?;
    let mut others = [(); 3].map(|()| setup.reader()).into_iter().collect::<Result<Vec<_>>>()?;
    // From before the connection until frames are read; the GPU elements take a second to load.
    let (first, over) = if setup.transport.on_gpu { (1000, 1500) } else { (150, 300) };
    let mut incidents = Vec::new();
    for number in 0..setup.setting.kills {
        incidents.push((Instant::now(), "start"));
        let mut victim = setup.reader_with("", "fakesink")?;
        thread::sleep(Duration::from_millis(first + number as u64 * 97 % over));
        incidents.push((Instant::now(), "kill"));
        victim.kill()?;
    }
    exporter.signal(Signal::INT)?;
    let end = exporter.end(PATIENCE)?;
    let mut lost = Vec::new();
    let mut pause = (Duration::ZERO, Instant::now());
    for other in &mut others {
        other.end(PATIENCE)?;
        let frames = other.frames();
        let pauses = frames.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[0].0));
        pause = pauses.fold(pause, Ord::max);
        let known: Vec<usize> = frames.iter().filter_map(|(_, sum)| numbers.get(sum).copied()).collect();
        let between = |pair: &[usize]| (pair[1] + numbers.len() - pair[0] - 1) % numbers.len();
        let missing: usize = known.windows(2).map(between).sum();
        lost.push(format!("{missing} lost, {} wrong of {}", frames.len() - known.len(), frames.len()));
    }
    let end =
        if end.is_some_and(|end| end.ok) { "the exporter ends well" } else { "the exporter fails or hangs" };
    let kills = setup.setting.kills;
    Ok(format!(
        "{kills} kills; {end}; {}; longest pause {}",
        lost.join("; "),
        describe_pause(pause, &incidents)
    ))
}

/// Describes a pause: its length, and the time from the last incident before it to its end.
fn describe_pause((length, begin): (Duration, Instant), incidents: &[(Instant, &str)]) -> String {
    let end = begin + length;
    let before = incidents.iter().rev().find(|(time, _)| *time <= end);
    let since =
        before.map(|(time, what)| format!(", until {:.0} ms after a {what}", milliseconds(end - *time)));
    format!("{:.0} ms{}", milliseconds(length), since.unwrap_or_default())
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn exporter_killed(setup: &Setup<'_>) -> Result<String> {
    let mut exporter = setup.exporter()?;
    let mut reader = setup.reader()?;
    exporter.kill()?;
    Ok(describe(reader.end(PATIENCE)?))
}

/// Frame rate of another reader before and during an incident.
fn beside(other: &Process, happens: impl FnOnce() -> Result<()>) -> Result<String> {
    const BEFORE: Duration = Duration::from_secs(1);
    thread::sleep(BEFORE);
    let begin = Instant::now();
    let before = other.rate(begin - BEFORE, begin);
    happens()?;
    thread::sleep(WHILE);
    let during = other.rate(begin, Instant::now());
    Ok(format!("the other gets {during:.0} frames/s, {before:.0} before"))
}

fn reader_stopped(setup: &Setup<'_>) -> Result<String> {
    let mut exporter = setup.exporter()?;
    let (mut other, mut stopped) = (setup.reader()?, setup.reader()?);
    let rates = beside(&other, || stopped.signal(Signal::STOP))?;
    let before = stopped.frames().len();
    stopped.signal(Signal::CONT)?;
    let goes_on = stopped.wait_for_frames(before + 200, Duration::from_secs(3));
    let woken = if goes_on { "goes on".into() } else { describe(stopped.end(Duration::from_secs(3))?) };
    let well = if exporter.is_running() && other.is_running() { "" } else { "; the others have exited" };
    Ok(format!("{rates}; once woken: {woken}{well}"))
}

fn slow_reader(setup: &Setup<'_>) -> Result<String> {
    let _exporter = setup.exporter()?;
    let other = setup.reader()?;
    let mut slow = None;
    beside(&other, || {
        // Of two values of a property the last one counts.
        let viewer = if setup.transport.source.contains("policy=lossless") { "policy=latest" } else { "" };
        slow = Some(setup.reader_with(viewer, "identity sleep-time=1000000 ! fakesink")?);
        // Time to start.
        thread::sleep(Duration::from_secs(1));
        Ok(())
    })
}

fn restarted(setup: &Setup<'_>) -> Result<String> {
    let mut exporter = setup.exporter()?;
    let mut reader = setup.reader_with(setup.transport.reconnect, "checksumsink")?;
    ensure!(reader.wait_for_frames(20, PATIENCE), "a reader gets nothing");
    exporter.kill()?;
    let before = reader.frames().len();
    let mut exporter = setup.exporter()?;
    let started = match exporter.end(setup.start())? {
        None => "it starts".to_owned(),
        end => format!("it does not start: {}", describe(end)),
    };
    let resumed = if reader.wait_for_frames(before + 20, Duration::from_secs(2)) {
        "the reader goes on".to_owned()
    } else {
        format!("the reader: {}", describe(reader.end(Duration::from_secs(1))?))
    };
    Ok(format!("{started}; {resumed}"))
}

fn second_exporter(setup: &Setup<'_>) -> Result<String> {
    let mut first = setup.exporter()?;
    let mut reader = setup.reader()?;
    let mut second = setup.exporter()?;
    let second = match second.end(setup.start())? {
        None => "the second runs, too".to_owned(),
        end => describe(end),
    };
    let goes_on = first.is_running() && reader.is_running();
    let mut joining = setup.reader_with("", "checksumsink")?;
    let finds = joining.wait_for_frames(20, PATIENCE);
    Ok(format!(
        "{second}; the first {}, joining readers {}",
        if goes_on { "goes on" } else { "has exited" },
        if finds { "find it" } else { "do not find it" }
    ))
}

fn other_user(setup: &Setup<'_>) -> Result<String> {
    fs::set_permissions(setup.folder.path(), fs::Permissions::from_mode(0o755))?;
    let _exporter = setup.exporter()?;
    let mode = fs::metadata(setup.folder.path().join("s"))?.permissions().mode() & 0o777;
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let pipeline = setup.source("", "checksumsink");
    let mut reader = Process::start(setup.setting, &nobody, &pipeline)?;
    let reads = reader.wait_for_frames(20, Duration::from_secs(3));
    let outcome = if reads { "it reads".to_owned() } else { describe(reader.end(PATIENCE)?) };
    Ok(format!("socket 0{mode:o}; {outcome}"))
}

/// Tries to map the exporter's memory files writable, as a reader that received their descriptors
/// could.
fn writable(setup: &Setup<'_>) -> Result<String> {
    if setup.transport.on_gpu {
        return Ok("not tried: imported GPU memory is always writable".into());
    }
    let exporter = setup.exporter()?;
    let _reader = setup.reader()?;
    let (mut files, mut mapped) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{}/fd", exporter.pid()))? {
        let path = entry?.path();
        let target = fs::read_link(&path).unwrap_or_default();
        let is_frame = fs::metadata(&path).is_ok_and(|file| file.len() >= 320 * 240);
        if !is_frame || !target.to_string_lossy().contains("memfd:") {
            continue;
        }
        files += 1;
        let opened = fs::OpenOptions::new().read(true).write(true).open(&path);
        mapped += u32::from(opened.is_ok_and(|file| can_be_mapped(&file)));
    }
    Ok(match (files, mapped) {
        (0, _) => "no memory files".into(),
        (files, 0) => format!("no, none of {files}"),
        (files, mapped) => format!("yes, {mapped} of {files}"),
    })
}

#[expect(unsafe_code, reason = "only the kernel says whether a file can be mapped")]
fn can_be_mapped(file: &fs::File) -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the range, which is not accessed before munmap.
    unsafe {
        let start = mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, file, 0);
        start.is_ok_and(|start| munmap(start, 4096).is_ok())
    }
}
