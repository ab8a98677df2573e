// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the demo as a user runs it, with a video of two seconds.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// Time limit of each wait; only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

const FRAMES: usize = 60;

/// Video with audio that changes everywhere from frame to frame, with a size that decoders pad.
static VIDEO: LazyLock<PathBuf> = LazyLock::new(|| {
    let video = Path::new(env!("CARGO_TARGET_TMPDIR")).join("video.mp4");
    let pipeline = format!(
        "videotestsrc num-buffers={FRAMES} pattern=zone-plate kx2=20 ky2=20 kt=7 kxt=3 ! \
         video/x-raw,format=I420,width=338,height=190,framerate=30/1 ! x264enc ! h264parse ! m. \
         audiotestsrc num-buffers=80 ! alawenc ! m. qtmux name=m ! filesink location={}",
        video.display()
    );
    let status = Command::new("gst-launch-1.0").arg("-q").args(pipeline.split_whitespace()).status();
    assert!(status.expect("gst-launch-1.0 runs").success(), "{pipeline}");
    video
});

struct Demo {
    folder: tempfile::TempDir,
    supervisor: Child,
}

impl Demo {
    fn start(video: &Path, loops: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_frameshare-demo"));
        if std::env::var_os("GST_REGISTRY").is_none() {
            command.env("GST_REGISTRY", Path::new(env!("CARGO_TARGET_TMPDIR")).join("registry.bin"));
        }
        let supervisor = command
            .arg(video)
            .args(["--loops", &loops.to_string(), "--output"])
            .arg(folder.path())
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the demo starts");
        Self { folder, supervisor }
    }

    /// Waits until a job is running, and returns its process ID.
    fn job(&self, name: &str) -> u32 {
        let pid = self.supervisor.id();
        wait_for(|| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
                let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                line.split(|byte| *byte == 0).nth(1) == Some(name.as_bytes())
            })
        })
    }

    /// Waits until frames are being recorded.
    fn wait_for_recording(&self) {
        let recording = self.folder.path().join("recording.mkv");
        wait_for(|| fs::metadata(&recording).ok().filter(|file| file.len() > 0));
    }

    /// Waits for the end; returns the exit status and the whole output.
    fn end(mut self) -> (Option<i32>, String) {
        wait_for(|| self.supervisor.try_wait().expect("wait for the supervisor"));
        let Output { status, stdout, stderr } = self.supervisor.wait_with_output().expect("read the output");
        (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
    }
}

fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < deadline, "the condition was not met in time");
        thread::sleep(Duration::from_millis(20));
    }
}

fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs").success());
}

/// Returns the lines of more than 80 columns on a terminal, except those with paths of the machine.
fn too_wide(output: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in output.split(['\n', '\r']) {
        // A control sequence ends with its letter.
        let mut parts = line.split('\x1b');
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            shown += part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or_default();
        }
        let has_path = shown.starts_with("    export ") || shown.starts_with("  recording ");
        if !has_path && shown.chars().count() > 80 {
            lines.push(shown);
        }
    }
    lines
}

#[test]
fn only_lines_beyond_80_columns_are_too_wide() {
    let line = "x".repeat(80);
    assert!(too_wide(&format!("{line}\n\x1b[2J\x1b[38;5;1m{line}\x1b[0m\r\n")).is_empty());
    assert_eq!(too_wide(&format!("a\n\x1b[1m{line}y\n")), [format!("{line}y")]);
}

#[test]
fn output_fits_80_columns() {
    let (status, text) = Demo::start(&VIDEO, 2).end();
    assert_eq!((status, too_wide(&text)), (Some(0), Vec::new()), "{text}");
    assert!(text.contains("s  loop 1 of 2: "), "no progress is shown: {text}");
    let folder = tempfile::tempdir().expect("a folder");
    let (video, output) = (VIDEO.display(), folder.path().display());
    let run = format!(
        "stty cols 80 rows 40 && exec {} {video} --loops 2 --output {output}",
        env!("CARGO_BIN_EXE_frameshare-demo")
    );
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &run, "/dev/null"]).env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::null());
    let shown = terminal.output().expect("script runs");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success() && text.contains("reader     process"), "no table is shown: {text}");
    assert_eq!(too_wide(&text), Vec::<String>::new());
}

#[test]
fn printed_commands_join_the_stream() {
    // The stream does not last until GStreamer has made a list of its plugins.
    let registry = tempfile::NamedTempFile::new().expect("a file");
    let listed =
        Command::new("gst-inspect-1.0").arg("fakesink").env("GST_REGISTRY", registry.path()).output();
    assert!(listed.expect("gst-inspect-1.0 runs").status.success());
    let mut demo = Demo::start(&VIDEO, 8);
    let mut lines = BufReader::new(demo.supervisor.stdout.take().expect("it is piped")).lines();
    let mut commands = Vec::new();
    while !commands.last().is_some_and(|line: &String| line.starts_with("gst-launch-1.0")) {
        let line = lines.next().expect("a further line").expect("a text");
        commands.extend(line.strip_prefix("    ").map(str::to_owned));
    }
    let rest = thread::spawn(move || lines.count());
    let join = |commands: &str| {
        let mut shell = Command::new("sh");
        // No screen is needed.
        let shell = shell.args(["-ec", commands]).env("GST_PLUGIN_FEATURE_RANK", "fakevideosink:MAX");
        shell.env("GST_REGISTRY", registry.path()).output().expect("a shell")
    };
    // Negative control: as on a terminal that cuts lines.
    let cut: Vec<_> = commands.iter().map(|line| line.chars().take(60).collect::<String>()).collect();
    assert!(!join(&cut.join("\n")).status.success(), "{cut:?}");
    let joined = join(&commands.join("\n"));
    assert!(joined.status.success(), "{commands:?}: {joined:?}");
    let text = String::from_utf8_lossy(&joined.stdout);
    assert!(text.contains("Got EOS"), "{text}");
    let (status, text) = demo.end();
    assert_eq!(status, Some(0), "{text}");
    rest.join().expect("no panic");
}

#[test]
fn every_frame_of_every_loop_is_compared() {
    let (status, text) = Demo::start(&VIDEO, 2).end();
    assert_eq!(status, Some(0), "{text}");
    let all = 2 * FRAMES;
    let compared = format!("{all} frames read, {all} compared, 0 differ, 0 lost");
    for line in [
        format!(
            "{all} frames published, {FRAMES} different images,\nall decoded straight into shared memory"
        ),
        format!("checksum  lossless  {compared}\n            all read in place"),
        format!("recorder  lossless  {compared}"),
        format!("{all} frames play back"),
        "ok: the readers received exactly the decoded frames".to_owned(),
    ] {
        assert!(text.contains(&line), "{line:?} is not in\n{text}");
    }
}

/// Kills a reader during the run, checks that the survivors are right, and returns the whole
/// output.
fn without(job: &str, title: &str, survivors: &[&str]) -> String {
    const LOOPS: u32 = 4;
    let demo = Demo::start(&VIDEO, LOOPS);
    let reader = demo.job(job);
    demo.wait_for_recording();
    send("-KILL", reader);
    let (status, text) = demo.end();
    assert_eq!(status, Some(1), "{text}");
    assert!(!text.contains("ok:"), "{text}");
    let all = LOOPS as usize * FRAMES;
    let right = |name| format!("{name:<10}lossless  {all} frames read, {all} compared, 0 differ, 0 lost");
    let failed = format!("the {title} failed (signal: 9 (SIGKILL)); the others continue");
    for line in survivors.iter().map(right).chain([failed]) {
        assert!(text.contains(&line), "{line:?} is not in\n{text}");
    }
    text
}

#[test]
fn other_readers_continue_without_latest_reader() {
    let text = without("read-motion", "motion reader", &["checksum", "recorder"]);
    assert!(text.contains("frames play back"), "{text}");
}

#[test]
fn other_readers_continue_without_lossless_reader() {
    let text = without("read-checksum", "checksum reader", &["recorder"]);
    assert!(text.contains("frames play back"), "{text}");
}

#[test]
fn killed_recorder_leaves_no_playback() {
    let text = without("record", "recorder", &["checksum"]);
    assert!(text.contains("recording: it was not played back"), "{text}");
}

#[test]
fn run_fails_if_all_readers_are_killed() {
    let demo = Demo::start(&VIDEO, 10_000);
    let readers = ["read-checksum", "read-motion", "record"].map(|name| demo.job(name));
    demo.wait_for_recording();
    readers.into_iter().for_each(|reader| send("-KILL", reader));
    let (status, text) = demo.end();
    assert_eq!(status, Some(1), "{text}");
    for title in ["checksum reader", "motion reader", "recorder"] {
        assert!(text.contains(&format!("the {title} failed (signal: 9 (SIGKILL))")), "{title}: {text}");
    }
}

#[test]
fn killed_exporter_is_a_failure() {
    let demo = Demo::start(&VIDEO, 100);
    let exporter = demo.job("export");
    demo.wait_for_recording();
    send("-KILL", exporter);
    let (status, text) = demo.end();
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("the exporter failed (signal: 9 (SIGKILL))"), "{text}");
}

#[test]
fn interrupt_ends_the_run_without_problems() {
    let demo = Demo::start(&VIDEO, 100);
    demo.wait_for_recording();
    send("-INT", demo.supervisor.id());
    let (status, text) = demo.end();
    assert_eq!(status, Some(130), "{text}");
    assert!(text.contains("ok: the readers received exactly the decoded frames"), "{text}");
}

#[test]
fn killed_supervisor_leaves_no_processes() {
    let mut demo = Demo::start(&VIDEO, 100);
    let jobs = ["export", "read-checksum", "read-motion", "record"].map(|name| demo.job(name));
    demo.wait_for_recording();
    demo.supervisor.kill().expect("kill the supervisor");
    demo.supervisor.wait().expect("wait for the supervisor");
    for job in jobs {
        // A process that has exited and is not reaped yet has no command line.
        let line = format!("/proc/{job}/cmdline");
        wait_for(|| fs::read(&line).map_or(true, |line| line.is_empty()).then_some(()));
    }
}

#[test]
fn missing_file_or_non_video_is_an_error() {
    let (status, text) = Demo::start(Path::new("no/such/video"), 1).end();
    assert_eq!(status, Some(1));
    assert!(text.contains("cannot open no/such/video"), "{text}");
    let (status, text) = Demo::start(Path::new(env!("CARGO_MANIFEST_PATH")), 1).end();
    assert_eq!(status, Some(1));
    assert!(text.contains("the exporter failed"), "{text}");
}
