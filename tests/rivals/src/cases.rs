//! What is done to each transport. Each case says in words what happened.

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
    pub conduct: fn(&Stage<'_>) -> Result<String>,
}

pub const CASES: &[Case] = &[
    Case { name: "20 readers killed in a row beside 3 others", conduct: readers_killed },
    Case { name: "exporter killed", conduct: exporter_killed },
    Case { name: "reader stopped for 5 s beside another", conduct: reader_stopped },
    Case { name: "reader at 1 frame/s beside another, 5 s", conduct: slow_reader },
    Case { name: "exporter killed and started again", conduct: restarted },
    Case { name: "second exporter at the same path", conduct: second_exporter },
    Case { name: "reader of another user, socket in an open folder", conduct: other_user },
    Case { name: "frames can be written by who has their descriptor", conduct: writable },
];

const RATE: usize = 200;
const CAPS: &str = "video/x-raw,format=NV12,width=320,height=240,framerate=200/1";
/// Nothing takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long readers are stopped or slow.
const WHILE: Duration = Duration::from_secs(5);

/// A folder of its own, and who plays in it.
pub struct Stage<'a> {
    setting: &'a Setting,
    transport: &'a Transport,
    folder: tempfile::TempDir,
}

impl<'a> Stage<'a> {
    pub fn new(setting: &'a Setting, transport: &'a Transport) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("rivals").tempdir_in(&setting.folder)?;
        Ok(Self { setting, transport, folder })
    }

    fn at(&self, element: &str) -> String {
        element.replace("{}", &self.folder.path().join("s").display().to_string())
    }

    /// What was said, the socket's path left out.
    pub fn without_paths(&self, text: &str) -> String {
        text.replace(&self.folder.path().join("s").display().to_string(), "s")
    }

    /// Every frame differs from all others, in the same way each time.
    fn picture(frames: usize) -> String {
        format!("videotestsrc is-live=true pattern=snow num-buffers={frames} ! {CAPS}")
    }

    fn exporter(&self, frames: usize) -> Result<Process> {
        let exporter = Process::start(
            self.setting,
            &[],
            &format!("{} ! {}", Self::picture(frames), self.at(self.transport.sink)),
        )?;
        let until = Instant::now() + PATIENCE;
        while !self.folder.path().join("s").exists() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(exporter)
    }

    fn source(&self, properties: &str, rest: &str) -> String {
        format!("{} {properties}{} ! {rest}", self.at(self.transport.source), self.transport.download())
    }

    fn reader_with(&self, properties: &str, rest: &str) -> Result<Process> {
        Process::start(self.setting, &[], &self.source(properties, rest))
    }

    /// One that gets frames by now.
    fn reader(&self) -> Result<Process> {
        let mut reader = self.reader_with("", "checksumsink")?;
        ensure!(reader.wait_for_frames(20, PATIENCE), "a reader gets nothing");
        Ok(reader)
    }
}

/// An exporter that outlives any case.
const ENDLESS: usize = 100_000;

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn told(end: Option<End>) -> String {
    match end {
        None => format!("still there after {}", seconds(PATIENCE)),
        Some(End { ok: true, after, .. }) => format!("ends after {} as if all were well", seconds(after)),
        Some(End { after, error, .. }) => format!("error after {}: {error}", seconds(after)),
    }
}

fn readers_killed(stage: &Stage<'_>) -> Result<String> {
    const KILLS: usize = 20;
    const FRAMES: usize = RATE * 16;
    let numbers = numbers(stage.setting, FRAMES)?;
    let mut exporter = stage.exporter(FRAMES)?;
    let begin = Instant::now();
    let mut others = [(); 3].map(|()| stage.reader()).into_iter().collect::<Result<Vec<_>>>()?;
    for number in 0..KILLS {
        let mut victim = stage.reader_with("", "fakesink")?;
        thread::sleep(Duration::from_millis(150 + number as u64 * 97 % 300));
        victim.kill()?;
    }
    let end = exporter.end(3 * PATIENCE)?;
    let late = begin.elapsed().saturating_sub(Duration::from_secs((FRAMES / RATE) as u64));
    let mut lost = Vec::new();
    for other in &mut others {
        other.end(PATIENCE)?;
        let seen: Vec<_> = other.frames().iter().map(|(_, sum)| numbers.get(sum).copied()).collect();
        let whole: Vec<usize> = seen.iter().flatten().copied().collect();
        let (first, last) = (whole.first().context("no frame")?, whole.last().context("no frame")?);
        let missing = (last - first + 1).saturating_sub(whole.len());
        lost.push(format!("{missing} lost, {} wrong of {}", seen.len() - whole.len(), seen.len()));
    }
    let end = if end.is_some_and(|end| end.ok) { "exporter ends well" } else { "exporter fails or hangs" };
    Ok(format!("{end}, {} late; {}", seconds(late), lost.join("; ")))
}

/// The number of each frame, by its checksum.
fn numbers(setting: &Setting, frames: usize) -> Result<HashMap<String, usize>> {
    let pipeline = Stage::picture(frames).replace("is-live=true ", "") + " ! checksumsink";
    let mut process = Process::start(setting, &[], &pipeline)?;
    process.end(4 * PATIENCE)?.context("it does not end")?;
    ensure!(process.wait_for_frames(frames, PATIENCE), "{} of {frames} frames", process.frames().len());
    Ok(process.frames().into_iter().enumerate().map(|(number, (_, sum))| (sum, number)).collect())
}

fn exporter_killed(stage: &Stage<'_>) -> Result<String> {
    let mut exporter = stage.exporter(ENDLESS)?;
    let mut reader = stage.reader()?;
    exporter.kill()?;
    Ok(told(reader.end(PATIENCE)?))
}

fn reader_stopped(stage: &Stage<'_>) -> Result<String> {
    let mut exporter = stage.exporter(ENDLESS)?;
    let (mut other, mut stopped) = (stage.reader()?, stage.reader()?);
    let (begin, before) = (Instant::now(), stopped.frames().len());
    stopped.signal(Signal::STOP)?;
    thread::sleep(WHILE);
    let got = other.count(begin, begin + WHILE);
    stopped.signal(Signal::CONT)?;
    let goes_on = stopped.wait_for_frames(before + RATE, Duration::from_secs(3));
    let woken = if goes_on { "goes on".into() } else { told(stopped.end(Duration::from_secs(3))?) };
    let well = if exporter.is_running() && other.is_running() { "" } else { "; the others are gone" };
    Ok(format!(
        "the other gets {got} of {} frames; once woken: {woken}{well}",
        RATE * WHILE.as_secs() as usize
    ))
}

fn slow_reader(stage: &Stage<'_>) -> Result<String> {
    let _exporter = stage.exporter(ENDLESS)?;
    let other = stage.reader()?;
    let _slow = stage.reader_with("", "identity sleep-time=1000000 ! fakesink")?;
    thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    thread::sleep(WHILE);
    let got = other.count(begin, begin + WHILE);
    Ok(format!("the other gets {got} of {} frames", RATE * WHILE.as_secs() as usize))
}

fn restarted(stage: &Stage<'_>) -> Result<String> {
    let mut exporter = stage.exporter(ENDLESS)?;
    let mut reader = stage.reader_with(stage.transport.reconnect, "checksumsink")?;
    ensure!(reader.wait_for_frames(20, PATIENCE), "a reader gets nothing");
    exporter.kill()?;
    let again = Instant::now();
    let mut exporter = stage.exporter(ENDLESS)?;
    let started = match exporter.end(Duration::from_secs(2))? {
        None => "it starts".to_owned(),
        end => format!("it does not start: {}", told(end)),
    };
    let resumed = if reader.count(again, Instant::now()) > RATE / 2 {
        "the reader goes on".to_owned()
    } else {
        format!("the reader: {}", told(reader.end(Duration::from_secs(1))?))
    };
    Ok(format!("{started}; {resumed}"))
}

fn second_exporter(stage: &Stage<'_>) -> Result<String> {
    let mut first = stage.exporter(ENDLESS)?;
    let mut reader = stage.reader()?;
    let mut second = stage.exporter(ENDLESS)?;
    let second = match second.end(Duration::from_secs(2))? {
        None => "the second runs, too".to_owned(),
        end => told(end),
    };
    let goes_on = first.is_running() && reader.is_running();
    let mut newcomer = stage.reader_with("", "checksumsink")?;
    let finds = newcomer.wait_for_frames(20, Duration::from_secs(5));
    Ok(format!(
        "{second}; the first {}, newcomers {}",
        if goes_on { "goes on" } else { "is gone" },
        if finds { "find it" } else { "do not find it" }
    ))
}

fn other_user(stage: &Stage<'_>) -> Result<String> {
    fs::set_permissions(stage.folder.path(), fs::Permissions::from_mode(0o755))?;
    let _exporter = stage.exporter(ENDLESS)?;
    let mode = fs::metadata(stage.folder.path().join("s"))?.permissions().mode() & 0o777;
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let pipeline = stage.source("", "checksumsink");
    let mut reader = Process::start(stage.setting, &nobody, &pipeline)?;
    let reads = reader.wait_for_frames(20, Duration::from_secs(3));
    let outcome = if reads { "it reads".to_owned() } else { told(reader.end(PATIENCE)?) };
    Ok(format!("socket 0{mode:o}; {outcome}"))
}

/// Maps the exporter's memory files to be written, as a reader could that was sent their descriptors.
fn writable(stage: &Stage<'_>) -> Result<String> {
    let exporter = stage.exporter(ENDLESS)?;
    let _reader = stage.reader()?;
    let (mut files, mut mapped) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{}/fd", exporter.pid()))? {
        let path = entry?.path();
        let target = fs::read_link(&path).unwrap_or_default();
        let is_frame = fs::metadata(&path).is_ok_and(|file| file.len() >= 320 * 240 * 3 / 2);
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
    // SAFETY: the kernel chooses the range, which nobody looks at before it is given back.
    unsafe {
        let start = mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, file, 0);
        start.is_ok_and(|start| munmap(start, 4096).is_ok())
    }
}
