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
    program: Child,
}

impl Demo {
    fn start(video: &Path, loops: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_frameshare-demo"));
        command.arg(video).args(["--loops", &loops.to_string(), "--output"]).arg(folder.path());
        command.env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::null());
        let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the demo starts");
        Self { folder, program }
    }

    /// Waits until a job is running, and returns its process ID.
    fn job(&self, name: &str) -> u32 {
        let pid = self.program.id();
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
        wait_for(|| self.program.try_wait().expect("wait for the demo"));
        let Output { status, stdout, stderr } = self.program.wait_with_output().expect("read the output");
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

#[test]
fn terminal_shows_table_and_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let (video, output) = (VIDEO.display(), folder.path().display());
    let program = env!("CARGO_BIN_EXE_frameshare-demo");
    let run = format!("stty cols 80 rows 40 && exec {program} {video} --loops 2 --output {output}");
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &run, "/dev/null"]).env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::null());
    let shown = terminal.output().expect("script runs");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{text}");
    for part in ["reader     process", "  checksum ", "  viewer ", "  recorder ", "\u{2580}"] {
        assert!(text.contains(part), "{part:?} is not shown: {text}");
    }
}

#[test]
fn printed_commands_join_the_stream() {
    // GStreamer scans all files of the plugin's folder, and the stream does not last that long.
    let plugins = tempfile::tempdir().expect("a folder");
    let beside = Path::new(env!("CARGO_BIN_EXE_frameshare-demo")).with_file_name("deps/libgstframeshare.so");
    std::os::unix::fs::symlink(beside, plugins.path().join("libgstframeshare.so")).expect("a link");
    let with_plugins = |command: &mut Command| {
        command.env("GST_REGISTRY", plugins.path().join("registry")).env("GST_PLUGIN_PATH", plugins.path());
        command.output().expect("the command runs")
    };
    assert!(with_plugins(Command::new("gst-inspect-1.0").arg("framesharesrc")).status.success());
    let mut demo = Demo::start(&VIDEO, 8);
    let mut lines = BufReader::new(demo.program.stdout.take().expect("it is piped")).lines();
    let mut commands = Vec::new();
    while !commands.last().is_some_and(|line: &String| line.starts_with("gst-launch-1.0")) {
        let line = lines.next().expect("a further line").expect("a text");
        commands.extend(line.strip_prefix("    ").map(str::to_owned));
    }
    let rest = thread::spawn(move || lines.count());
    let mut shell = Command::new("sh");
    // No screen is needed.
    shell.env("GST_PLUGIN_FEATURE_RANK", "fakevideosink:MAX").args(["-ec", &commands.join("\n")]);
    let joined = with_plugins(&mut shell);
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
    // Paths of the machine may be long.
    let has_path = |line: &&str| line.starts_with("    export ") || line.starts_with("  recording ");
    let too_wide: Vec<_> = text.lines().filter(|line| !has_path(line) && line.chars().count() > 80).collect();
    assert_eq!((status, too_wide), (Some(0), Vec::new()), "{text}");
    let all = 2 * FRAMES;
    let compared = format!("{all} frames read, {all} compared, 0 differ, 0 lost");
    for line in [
        "s  loop 1 of 2: ".to_owned(),
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

#[test]
fn other_readers_continue_without_killed_reader() {
    const LOOPS: u32 = 4;
    let all = LOOPS as usize * FRAMES;
    let cases = [
        ("view", "viewer", &["checksum", "recorder"][..], "frames play back"),
        ("read-checksum", "checksum", &["recorder"], "frames play back"),
        ("record", "recorder", &["checksum"], "recording: it was not played back: its recorder failed"),
    ];
    let kill = |job| {
        let demo = Demo::start(&VIDEO, LOOPS);
        let reader = demo.job(job);
        demo.wait_for_recording();
        send("-KILL", reader);
        demo
    };
    for (demo, (_, title, survivors, recording)) in cases.map(|case| (kill(case.0), case)) {
        let (status, text) = demo.end();
        assert!(status == Some(1) && !text.contains("ok:"), "{status:?}: {text}");
        let right = |name| format!("{name:<10}lossless  {all} frames read, {all} compared, 0 differ, 0 lost");
        let failed = format!("{title} failed (signal: 9 (SIGKILL))");
        for line in survivors.iter().map(right).chain([failed, recording.to_owned()]) {
            assert!(text.contains(&line), "{line:?} is not in\n{text}");
        }
    }
}

#[test]
fn run_fails_if_all_readers_are_killed() {
    let demo = Demo::start(&VIDEO, 10_000);
    let readers = ["read-checksum", "view", "record"].map(|name| demo.job(name));
    demo.wait_for_recording();
    readers.into_iter().for_each(|reader| send("-KILL", reader));
    let (status, text) = demo.end();
    assert_eq!(status, Some(1), "{text}");
    for title in ["checksum", "viewer", "recorder"] {
        assert!(text.contains(&format!("{title} failed (signal: 9 (SIGKILL))")), "{title}: {text}");
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
    assert!(text.contains("exporter failed (signal: 9 (SIGKILL))"), "{text}");
    for reader in ["checksum", "viewer", "recorder"] {
        let ended = format!("{reader} failed (exit status: 1)");
        assert!(text.contains(&ended) && text.contains(&format!("{reader}: ")), "{text}");
    }
}

#[test]
fn interrupt_ends_the_run_without_problems() {
    let demo = Demo::start(&VIDEO, 100);
    demo.wait_for_recording();
    send("-INT", demo.program.id());
    let (status, text) = demo.end();
    assert_eq!(status, Some(130), "{text}");
    assert!(text.contains("ok: the readers received exactly the decoded frames"), "{text}");
}

#[test]
fn killed_demo_leaves_no_processes() {
    let mut demo = Demo::start(&VIDEO, 100);
    let jobs = ["export", "read-checksum", "view", "record"].map(|name| demo.job(name));
    demo.wait_for_recording();
    demo.program.kill().expect("kill the demo");
    demo.program.wait().expect("wait for the demo");
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
    assert!(text.contains("exporter failed"), "{text}");
}
