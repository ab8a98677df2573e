//! The demo as a user runs it, with a film of two seconds.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const FRAMES: usize = 60;

/// A film in which everything changes from frame to frame, with sound, and of a size that decoders pad.
static FILM: LazyLock<PathBuf> = LazyLock::new(|| {
    let film = Path::new(env!("CARGO_TARGET_TMPDIR")).join("film.mp4");
    let pipeline = format!(
        "videotestsrc num-buffers={FRAMES} pattern=zone-plate kx2=20 ky2=20 kt=7 kxt=3 ! \
         video/x-raw,format=I420,width=338,height=190,framerate=30/1 ! x264enc ! h264parse ! m. \
         audiotestsrc num-buffers=80 ! alawenc ! m. qtmux name=m ! filesink location={}",
        film.display()
    );
    let status = Command::new("gst-launch-1.0").arg("-q").args(pipeline.split_whitespace()).status();
    assert!(status.expect("gst-launch-1.0 runs").success(), "{pipeline}");
    film
});

struct Demo {
    folder: tempfile::TempDir,
    director: Child,
}

impl Demo {
    fn start(film: &Path, plays: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_frameshare-demo"));
        if std::env::var_os("GST_REGISTRY").is_none() {
            command.env("GST_REGISTRY", Path::new(env!("CARGO_TARGET_TMPDIR")).join("registry.bin"));
        }
        let director = command
            .arg(film)
            .args(["--plays", &plays.to_string(), "--output"])
            .arg(folder.path())
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the demo starts");
        Self { folder, director }
    }

    /// Waits until a role is at work, and returns its process.
    fn role(&self, name: &str) -> u32 {
        let pid = self.director.id();
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

    /// Waits for the end; the exit status, and everything that was written.
    fn end(mut self) -> (Option<i32>, String) {
        wait_for(|| self.director.try_wait().expect("it can be waited for"));
        let Output { status, stdout, stderr } = self.director.wait_with_output().expect("it can be read");
        (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
    }
}

fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < deadline, "what is waited for does not come");
        thread::sleep(Duration::from_millis(20));
    }
}

fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs").success());
}

#[test]
fn every_frame_of_every_play_is_compared() {
    let (status, text) = Demo::start(&FILM, 2).end();
    assert_eq!(status, Some(0), "{text}");
    let all = 2 * FRAMES;
    let compared = format!("{all} frames read, {all} compared, 0 differ, 0 lost");
    for line in [
        format!(
            "{all} frames published, {FRAMES} different pictures, all decoded straight into shared memory"
        ),
        format!("checksum  lossless  {compared}, all read in place"),
        format!("recorder  lossless  {compared}"),
        format!("{all} frames play back"),
        "ok: what the readers saw is what the decoder made".to_owned(),
    ] {
        assert!(text.contains(&line), "{line:?} is not in\n{text}");
    }
}

/// A reader is killed while it reads: everything that the demo writes is returned when the survivors are right.
fn without(role: &str, title: &str, survivors: &[&str]) -> String {
    const PLAYS: u32 = 4;
    let demo = Demo::start(&FILM, PLAYS);
    let reader = demo.role(role);
    demo.wait_for_recording();
    send("-KILL", reader);
    let (status, text) = demo.end();
    assert_eq!(status, Some(1), "{text}");
    assert!(!text.contains("ok:"), "{text}");
    let all = PLAYS as usize * FRAMES;
    let right = |name| format!("{name:<10}lossless  {all} frames read, {all} compared, 0 differ, 0 lost");
    let failed = format!("the {title} failed (signal: 9 (SIGKILL)); the others go on");
    for line in survivors.iter().map(right).chain([failed]) {
        assert!(text.contains(&line), "{line:?} is not in\n{text}");
    }
    text
}

#[test]
fn the_others_go_on_without_a_reader_that_may_lose_frames() {
    let text = without("read-motion", "motion reader", &["checksum", "recorder"]);
    assert!(text.contains("frames play back"), "{text}");
}

#[test]
fn the_others_go_on_without_a_lossless_reader() {
    let text = without("read-checksum", "checksum reader", &["recorder"]);
    assert!(text.contains("frames play back"), "{text}");
}

#[test]
fn without_the_recorder_there_is_nothing_to_play_back() {
    let text = without("record", "recorder", &["checksum"]);
    assert!(text.contains("recording: it was not played back"), "{text}");
}

#[test]
fn without_any_reader_the_film_ends() {
    let demo = Demo::start(&FILM, 10_000);
    let readers = ["read-checksum", "read-motion", "record"].map(|name| demo.role(name));
    demo.wait_for_recording();
    readers.into_iter().for_each(|reader| send("-KILL", reader));
    let (status, text) = demo.end();
    assert_eq!(status, Some(1), "{text}");
    assert_eq!(text.matches("failed (signal: 9 (SIGKILL))").count(), 3, "{text}");
}

#[test]
fn an_exporter_that_dies_is_a_failure() {
    let demo = Demo::start(&FILM, 100);
    let exporter = demo.role("export");
    demo.wait_for_recording();
    send("-KILL", exporter);
    let (status, text) = demo.end();
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("the exporter failed (signal: 9 (SIGKILL))"), "{text}");
}

#[test]
fn an_interrupt_ends_the_film_and_all_is_well() {
    let demo = Demo::start(&FILM, 100);
    demo.wait_for_recording();
    send("-INT", demo.director.id());
    let (status, text) = demo.end();
    assert_eq!(status, Some(130), "{text}");
    assert!(text.contains("ok: what the readers saw is what the decoder made"), "{text}");
}

#[test]
fn nobody_stays_behind_without_a_director() {
    let mut demo = Demo::start(&FILM, 100);
    let roles = ["export", "read-checksum", "read-motion", "record"].map(|name| demo.role(name));
    demo.wait_for_recording();
    demo.director.kill().expect("it can be killed");
    demo.director.wait().expect("and waited for");
    for role in roles {
        // What has ended and was not waited for by whoever adopted it has no command line.
        let line = format!("/proc/{role}/cmdline");
        wait_for(|| fs::read(&line).map_or(true, |line| line.is_empty()).then_some(()));
    }
}

#[test]
fn what_is_no_film_is_said_to_be_none() {
    let (status, text) = Demo::start(Path::new("no/such/film"), 1).end();
    assert_eq!(status, Some(1));
    assert!(text.contains("cannot open no/such/film"), "{text}");
    let (status, text) = Demo::start(Path::new(env!("CARGO_MANIFEST_PATH")), 1).end();
    assert_eq!(status, Some(1));
    assert!(text.contains("the exporter failed"), "{text}");
}
