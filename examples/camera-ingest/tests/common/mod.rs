// SPDX-License-Identifier: MIT OR Apache-2.0

//! A place of its own for each test, its processes, and what they print.
#![allow(dead_code)] // each test file uses a part

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Longest wait: far beyond what a busy machine needs.
const LIMIT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(20);

/// Folders of a test: configuration, streams, temporary files.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        for folder in ["run", "tmp"] {
            fs::create_dir(place.path().join(folder)).unwrap();
        }
        Self(place)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the configuration.
    pub fn configure(&self, text: &str) {
        fs::write(self.path("camera-ingest.toml"), text).unwrap();
    }

    /// Path of a stream's socket.
    pub fn stream(&self, name: &str) -> String {
        self.path(&format!("run/frameshare/{name}.sock")).to_str().unwrap().to_owned()
    }

    /// A command with this place's configuration.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_camera-ingest"));
        let mut words = words.split_whitespace();
        command.arg(words.next().unwrap());
        command.args(["--config".as_ref(), self.path("camera-ingest.toml").as_os_str()]).args(words);
        command.env("XDG_RUNTIME_DIR", self.path("run")).env("TMPDIR", self.path("tmp"));
        command.env_remove("FRAMESHARE_PATH").env_remove("NOTIFY_SOCKET");
        command
    }

    /// Starts a command such as "capture cam0".
    pub fn start(&self, words: &str) -> Process {
        Process::start(&mut self.command(words))
    }

    /// Connects to the supervisor's socket.
    pub fn control(&self) -> Control {
        let folder = || fs::read_dir(self.path("tmp")).unwrap().flatten().next().map(|entry| entry.path());
        let connect = || UnixStream::connect(folder()?.join("control.sock")).ok();
        let stream = wait("the supervisor's socket", connect);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Control(BufReader::new(stream))
    }

    /// Names of the sockets and folders that are left.
    pub fn left(&self) -> Vec<String> {
        let names = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
        let all = names(self.path("run/frameshare")).chain(names(self.path("tmp")));
        let names = all.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".lock")).collect()
    }
}

/// Waits for a value.
pub fn wait<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(begin.elapsed() < LIMIT, "no {what} within {LIMIT:?}");
        thread::sleep(STEP);
    }
}

/// A process whose lines are kept. It is killed on drop.
pub struct Process {
    child: Child,
    output: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = Arc::<(Mutex<Vec<String>>, Condvar)>::default();
        let keep = |input: Box<dyn Read + Send>| {
            let output = output.clone();
            thread::spawn(move || {
                for line in BufReader::new(input).lines().map_while(Result::ok) {
                    output.0.lock().unwrap().push(line);
                    output.1.notify_all();
                }
            });
        };
        keep(Box::new(child.stdout.take().unwrap()));
        keep(Box::new(child.stderr.take().unwrap()));
        Self { child, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line with this part, and returns it.
    pub fn expect(&self, part: &str) -> String {
        self.expect_times(part, 1)
    }

    /// Waits for so many lines with this part, and returns the last one.
    pub fn expect_times(&self, part: &str, times: usize) -> String {
        let find = |lines: &[String]| lines.iter().filter(|line| line.contains(part)).nth(times - 1).cloned();
        let lines = self.output.0.lock().unwrap();
        let (lines, _) =
            self.output.1.wait_timeout_while(lines, LIMIT, |lines| find(lines).is_none()).unwrap();
        find(&lines).unwrap_or_else(|| panic!("no {part:?} ({times} times) in {lines:#?}"))
    }

    pub fn text(&self) -> String {
        self.output.0.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    pub fn signal(&self, signal: Signal) {
        self::signal(self.pid(), signal);
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait("end of the process", || child.try_wait().unwrap())
    }

    /// Interrupts it and waits for its end.
    pub fn stop(&mut self) {
        self.signal(Signal::INT);
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.text());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}", self.text());
        }
    }
}

pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Returns whether a process runs, other than as a zombie.
pub fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A connection to the supervisor.
pub struct Control(BufReader<UnixStream>);

impl Control {
    /// Returns the connection, from which no state has been read.
    pub fn into_stream(self) -> UnixStream {
        self.0.into_inner()
    }

    pub fn send(&mut self, command: &Value) {
        self.0.get_mut().write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// Waits for a state that fits.
    pub fn expect(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).expect(what), 0, "the supervisor closed before {what}");
            let state: Value = serde_json::from_str(&line).unwrap();
            if fits(&state) {
                return state;
            }
            assert!(begin.elapsed() < LIMIT, "no {what} within {LIMIT:?}, last: {state:#}");
        }
    }
}

/// Returns a process of a state.
pub fn process<'a>(state: &'a Value, name: &str) -> &'a Value {
    let processes = state["processes"].as_array().unwrap();
    processes.iter().find(|process| process["name"] == name).unwrap_or(&Value::Null)
}

pub fn pid(state: &Value, name: &str) -> Option<u32> {
    process(state, name)["pid"].as_u64().map(|pid| pid.try_into().unwrap())
}

/// Returns whether a camera of a process has this condition.
pub fn is(state: &Value, name: &str, camera: &str, condition: &str) -> bool {
    process(state, name)["reports"][camera]["condition"] == condition
}

/// The RTSP server of the demo.
pub struct Server {
    pub process: Process,
    pub port: u16,
}

impl Server {
    /// Starts a server, on a free port if `port` is 0.
    pub fn start(port: u16, arguments: &str) -> Self {
        let mut command = Command::new(program("rtsp-cameras"));
        command.args(["--port", &port.to_string()]).args(arguments.split_whitespace());
        let process = Process::start(&mut command);
        let line = process.expect("ready ");
        let (_, port) = line.rsplit_once(':').unwrap();
        Self { port: port.parse().unwrap(), process }
    }

    pub fn url(&self, path: &str) -> String {
        format!("rtsp://127.0.0.1:{}/{path}", self.port)
    }

    /// Kills it, so that clients get no end of the session.
    pub fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait();
    }
}

/// Finds a program of the workspace beside this package's.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_camera-ingest")).with_file_name(name);
    assert!(path.exists(), "no {}: cargo build -p {name}", path.display());
    path
}
