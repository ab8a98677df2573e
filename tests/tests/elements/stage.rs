// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test stage: a folder in which processes meet, and the processes.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Maximum time of any step; a longer one hangs.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A process that is being started has copies of all files of this one until it has become its
/// program, locks on names included. No test takes a name again in that moment.
static STARTING: Mutex<()> = Mutex::new(());

/// Keeps processes from being started.
pub fn while_none_is_started() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

const PLUGIN: &str = "libgstframeshare.so";

/// It contains only the plugin, so that GStreamer scans nothing else that was built.
static PLUGINS: LazyLock<PathBuf> = LazyLock::new(|| {
    let own = std::env::current_exe().expect("a test has a path");
    let beside = own.parent().expect("it lies in a folder");
    let built = [beside.join(PLUGIN), beside.with_file_name(PLUGIN)]
        .into_iter()
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max()
        .unwrap_or_else(|| panic!("no {PLUGIN} near {}: cargo build -p gst-plugin-frameshare", own.display()))
        .1;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
    fs::create_dir_all(&folder).expect("a folder for the plugin");
    let fresh = folder.join(format!("{PLUGIN}.{}", std::process::id()));
    std::os::unix::fs::symlink(built, &fresh).expect("a link to the plugin");
    fs::rename(fresh, folder.join(PLUGIN)).expect("the link has its name");
    folder
});

/// A runtime folder of its own; streams of other tests are not visible in it.
pub struct Stage {
    folder: tempfile::TempDir,
}

/// The result of a process.
pub struct Outcome {
    pub ok: bool,
    /// The signal that killed it, if one did.
    pub signal: Option<i32>,
    pub lines: Vec<String>,
    pub stderr: String,
    stop: Stop,
}

/// Times at which a process printed that it stops and has stopped, and at which it exited.
#[derive(Clone, Copy, Debug, Default)]
struct Stop {
    begin: Option<Instant>,
    done: Option<Instant>,
    gone: Option<Instant>,
}

/// Maximum time for a pipeline or an engine object to stop, and for its process to exit after that,
/// whatever its peers do: docs/failure-semantics.md.
const STOPS_WITHIN: Duration = Duration::from_secs(1);
const EXITS_WITHIN: Duration = Duration::from_secs(1);
/// Lines that gst-launch-1.0 and the test peer print before and after stopping.
const BEGIN: [&str; 2] = ["Setting pipeline to NULL", r#""event":"stopping""#];
const DONE: [&str; 2] = ["Freeing pipeline", r#""event":"stopped""#];

impl Stop {
    fn note(&mut self, line: &str, at: Instant) {
        let says = |texts: [&str; 2]| texts.iter().any(|text| line.contains(text));
        if says(BEGIN) {
            self.begin = Some(at);
        } else if says(DONE) {
            self.done = Some(at);
        }
    }

    /// Panics if the process, which has exited, took too long.
    fn check(self, what: &str) {
        let (Some(begin), Some(gone)) = (self.begin, self.gone) else { return };
        let done = self.done.unwrap_or(gone);
        let (stop, exit) = (done.duration_since(begin), gone.saturating_duration_since(done));
        assert!(stop <= STOPS_WITHIN, "{what}: it took {stop:?} to stop");
        assert!(exit <= EXITS_WITHIN, "{what}: it took {exit:?} to exit after it had stopped");
    }
}

/// A process that is killed when it is dropped.
pub struct Process {
    what: String,
    child: Child,
    lines: mpsc::Receiver<(Instant, String)>,
    seen: Vec<String>,
    stderr: Option<thread::JoinHandle<String>>,
    stop: Stop,
    /// Time at which its output ended: the test may wait for it much later.
    ended: Arc<OnceLock<Instant>>,
}

impl Stage {
    pub fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("fs").tempdir().expect("a folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `gst-launch-1.0` with a pipeline. It prints when it stops.
    pub fn gst(&self, pipeline: &str) -> Process {
        let mut command = Command::new("gst-launch-1.0");
        command.args(pipeline.split_whitespace());
        self.start(command, pipeline)
    }

    /// Starts `gst-launch-1.0` by a command that becomes it.
    pub fn gst_by(&self, command: &str, pipeline: &str) -> Process {
        self.command(&format!("{command} gst-launch-1.0 {pipeline}"))
    }

    /// Starts `gst-launch-1.0 -v` with a pipeline: what its elements notify is printed.
    pub fn gst_verbose(&self, pipeline: &str) -> Process {
        let mut command = Command::new("gst-launch-1.0");
        command.arg("-v").args(pipeline.split_whitespace());
        self.start(command, pipeline)
    }

    /// Starts the test peer.
    pub fn peer(&self, arguments: &str) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peer"));
        command.args(arguments.split_whitespace());
        self.start(command, &format!("peer {arguments}"))
    }

    /// Starts the test peer by a command that becomes it, such as `prlimit --nofile=40`.
    pub fn peer_by(&self, command: &str, arguments: &str) -> Process {
        let opened = self.path("peer");
        let peer = if opened.exists() { opened } else { env!("CARGO_BIN_EXE_peer").into() };
        self.command(&format!("{command} {} {arguments}", peer.display()))
    }

    /// Starts any command.
    pub fn command(&self, line: &str) -> Process {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a command has a name"));
        command.args(words);
        self.start(command, line)
    }

    /// Gives other users access to the folder, to the test peer and to the plugin.
    pub fn open_to_others(&self) {
        let plugins = self.path("plugins");
        fs::create_dir(&plugins).expect("a folder for the plugin");
        let copies = [
            (env!("CARGO_BIN_EXE_peer").into(), self.path("peer")),
            (env!("CARGO_BIN_EXE_hostile").into(), self.path("hostile")),
            (PLUGINS.join(PLUGIN), plugins.join(PLUGIN)),
        ];
        for (from, to) in &copies {
            fs::copy(from, to).expect("there is room for a copy");
        }
        for path in
            [self.folder.path(), &plugins].into_iter().chain(copies.iter().map(|(_, to)| to.as_path()))
        {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
    }

    fn start(&self, mut command: Command, what: &str) -> Process {
        if std::env::var_os("GST_REGISTRY").is_none() {
            command.env("GST_REGISTRY", Path::new(env!("CARGO_TARGET_TMPDIR")).join("registry.bin"));
        }
        command
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .env("GST_PLUGIN_PATH", PLUGINS.as_path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let alone = while_none_is_started();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(alone);
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let mut stderr = child.stderr.take().expect("stderr is a pipe");
        let (sender, lines) = mpsc::channel();
        let ended = Arc::new(OnceLock::new());
        let end = ended.clone();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
            let _ = end.set(Instant::now());
        });
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Process {
            what: what.to_owned(),
            child,
            lines,
            seen: Vec::new(),
            stderr: Some(stderr),
            stop: Stop::default(),
            ended,
        }
    }

    /// Returns the bytes of a file in the folder.
    pub fn read(&self, name: impl AsRef<OsStr>) -> Vec<u8> {
        fs::read(self.folder.path().join(name.as_ref())).expect("the file can be read")
    }

    /// Waits until a file in the folder is not empty.
    pub fn wait_for_bytes(&self, name: &str) {
        let path = self.path(name);
        wait_until(&format!("something in {name}"), || fs::metadata(&path).is_ok_and(|file| file.len() > 0));
    }
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL: it can clean nothing up.
    pub fn kill(&mut self) {
        self.child.kill().expect("a process of ours can be killed");
        self.child.wait().expect("and waited for");
    }

    /// Kills it, and returns its stderr.
    pub fn kill_for_stderr(mut self) -> String {
        self.kill();
        self.stderr.take().map(|thread| thread.join().unwrap_or_default()).unwrap_or_default()
    }

    /// Stops it, as Ctrl-Z does: it lives without running.
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
        // Some threads may still run for a moment.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        wait_until(&format!("{} is stopped", self.what), || {
            waitid(WaitId::Pid(Pid::from_child(&self.child)), stopped).expect("a child").is_some()
        });
    }

    /// Continues it.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a process of ours can be signalled");
    }

    /// Waits until it prints a JSON line with this event.
    pub fn wait_for(&mut self, event: &str) -> Value {
        self.look_for(event).unwrap_or_else(|| {
            let _ = self.child.kill();
            let stderr = self.stderr.take().map(|thread| thread.join().unwrap_or_default());
            panic!("{}: no {event:?} came\n{}\n{stderr:?}", self.what, self.seen.join("\n"))
        })
    }

    /// Returns the last JSON line so far with this event; lines up to the present one are skipped
    /// from now on.
    pub fn last(&mut self, event: &str) -> Option<Value> {
        let begin = self.seen.len();
        while let Ok((at, line)) = self.lines.try_recv() {
            self.saw(at, line);
        }
        let mut values =
            self.seen[begin..].iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.rfind(|value| value["event"] == event)
    }

    /// Returns the next JSON line with this event; none if the process ends without one, or none
    /// comes.
    pub fn look_for(&mut self, event: &str) -> Option<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (at, line) = self.lines.recv_timeout(left).ok()?;
            self.saw(at, line.clone());
            if let Ok(value) = serde_json::from_str::<Value>(&line)
                && value["event"] == event
            {
                return Some(value);
            }
        }
    }

    /// Waits until it prints that it has stopped, and checks the time that it took. It may not be
    /// able to exit.
    pub fn wait_until_stopped(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.stop.done.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            let (at, line) = self.lines.recv_timeout(left).unwrap_or_else(|_| {
                let _ = self.child.kill();
                panic!("{} does not say that it has stopped\n{}", self.what, self.seen.join("\n"))
            });
            self.saw(at, line);
        }
        Stop { gone: self.stop.done, ..self.stop }.check(&self.what);
    }

    fn saw(&mut self, at: Instant, line: String) {
        self.stop.note(&line, at);
        self.seen.push(line);
    }

    /// Stops a pipeline, as Ctrl-C does.
    pub fn begin_interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Stops a pipeline, as Ctrl-C does, and checks the time that it takes.
    pub fn interrupt(self) -> Outcome {
        self.signal(Signal::INT);
        let what = self.what.clone();
        let outcome = self.finish();
        assert!(
            outcome.stop.begin.is_some(),
            "{what} does not say that it stops\n{}",
            outcome.lines.join("\n")
        );
        outcome
    }

    /// Waits until it ends by itself, and checks that it stops and exits in time.
    pub fn finish(mut self) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a process of ours can be waited for") {
                self.stop.gone = Some(self.ended.get().copied().unwrap_or_else(Instant::now));
                break Some(status);
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let stderr = self.stderr.take().map(|thread| thread.join().unwrap_or_default()).unwrap_or_default();
        while let Ok((at, line)) = self.lines.recv() {
            self.saw(at, line);
        }
        let Some(status) = status else {
            panic!("{} hangs\n{}\n{stderr}", self.what, self.seen.join("\n"));
        };
        self.stop.check(&self.what);
        Outcome {
            ok: status.success(),
            signal: status.signal(),
            lines: std::mem::take(&mut self.seen),
            stderr,
            stop: self.stop,
        }
    }

    /// Waits until it ends by itself, with success.
    pub fn finish_well(self) -> Outcome {
        let what = self.what.clone();
        let outcome = self.finish();
        assert!(outcome.ok, "{what} failed\n{}\n{}", outcome.lines.join("\n"), outcome.stderr);
        outcome
    }

    /// Waits until it fails, and returns its stderr.
    pub fn finish_badly(self) -> String {
        let what = self.what.clone();
        let outcome = self.finish();
        assert!(!outcome.ok, "{what} did not fail\n{}\n{}", outcome.lines.join("\n"), outcome.stderr);
        outcome.stderr
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    /// The JSON lines with this event.
    pub fn events(&self, event: &str) -> Vec<Value> {
        let values = self.lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.filter(|value| value["event"] == event).collect()
    }

    /// The last line of a peer.
    pub fn summary(&self) -> Value {
        self.events("summary").pop().unwrap_or_else(|| panic!("no summary\n{}", self.stderr))
    }
}

/// The checksum that the peer prints, of every frame of `size` bytes in a file.
pub fn sums(bytes: &[u8], size: usize) -> Vec<String> {
    assert_eq!(bytes.len() % size, 0, "{} bytes are no whole frames of {size}", bytes.len());
    let sum = |frame: &[u8]| {
        frame.chunks(8).fold(0xcbf2_9ce4_8422_2325_u64, |sum, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3)
        })
    };
    bytes.chunks(size).map(|frame| format!("{:016x}", sum(frame))).collect()
}
