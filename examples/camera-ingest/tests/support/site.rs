// SPDX-License-Identifier: MIT OR Apache-2.0

//! A site: its supervisor, the state that it shows to the page, and its folders.

use super::wait_for;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

pub struct Site {
    folder: Option<tempfile::TempDir>,
    supervisor: Child,
    control: UnixStream,
    /// The newest state.
    state: Arc<Mutex<Value>>,
}

impl Site {
    /// Starts a site in demo mode. Paths of the configuration are relative to its folder.
    pub fn start(folder: tempfile::TempDir, config: &str) -> Self {
        let at = |name: &str| folder.path().join(name);
        for name in ["run", "tmp"] {
            fs::create_dir(at(name)).expect("a folder");
        }
        fs::write(at("site.toml"), config).expect("write the configuration");
        let log = File::create(at("log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_camera-ingest"));
        if std::env::var_os("GST_REGISTRY").is_none() {
            command.env("GST_REGISTRY", Path::new(env!("CARGO_TARGET_TMPDIR")).join("registry.bin"));
        }
        let supervisor = command
            .args(["run", "--demo", "--config"])
            .arg(at("site.toml"))
            .env("XDG_RUNTIME_DIR", at("run"))
            .env("TMPDIR", at("tmp"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("the supervisor starts");
        let control = wait_for("the supervisor's socket", || read(&at("log")), || connect(&at("tmp")));
        let state = Arc::default();
        follow(control.try_clone().expect("a descriptor"), Arc::clone(&state));
        Self { folder: Some(folder), supervisor, control, state }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().expect("the site is not stopped").path().join(name)
    }

    /// Path of a stream's socket.
    pub fn stream(&self, name: &str) -> String {
        self.path("run/frameshare").join(format!("{name}.sock")).to_str().expect("UTF-8").to_owned()
    }

    pub fn log(&self) -> String {
        read(&self.path("log"))
    }

    /// Returns the state of all processes, as the page gets it.
    pub fn processes(&self) -> Vec<Value> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state["processes"].as_array().cloned().unwrap_or_default()
    }

    pub fn process(&self, name: &str) -> Option<Value> {
        self.processes().into_iter().find(|process| process["name"] == name)
    }

    /// Waits until a process reports this condition of a camera.
    pub fn wait_for_report(&self, process: &str, camera: &str, condition: &str) {
        wait_for(
            &format!("{process} reports {camera} {condition}"),
            || self.log(),
            || {
                let process = self.process(process)?;
                (process["reports"][camera]["condition"] == condition).then_some(())
            },
        );
    }

    /// Number of the supervisor's process.
    pub fn supervisor(&self) -> u32 {
        self.supervisor.id()
    }

    /// Returns the number of a process, once it runs.
    pub fn pid(&self, process: &str) -> u32 {
        wait_for(
            &format!("{process} runs"),
            || self.log(),
            || self.process(process)?["pid"].as_u64()?.try_into().ok(),
        )
    }

    /// Sends a signal to a process.
    pub fn signal(&self, process: &str, signal: &str) {
        let pid = self.pid(process).to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill runs").success());
    }

    /// Kills a process as the page does.
    pub fn kill_by_page(&mut self, process: &str) {
        let command = json!({"command": "kill", "process": process});
        writeln!(self.control, "{command}").expect("the supervisor receives");
    }

    /// Waits until a process has been started again this many times.
    pub fn wait_for_restarts(&self, process: &str, restarts: u64) {
        wait_for(
            &format!("{process} runs again"),
            || self.log(),
            || {
                let process = self.process(process)?;
                (process["restarts"].as_u64()? >= restarts && !process["pid"].is_null()).then_some(())
            },
        );
    }

    /// Stops the site, waits for its end, and checks that it has left nothing but its recordings.
    pub fn stop(mut self) -> (tempfile::TempDir, ExitStatus) {
        let pid = self.supervisor.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
        let log = self.path("log");
        let status = wait_for(
            "the end of the supervisor",
            || read(&log),
            || self.supervisor.try_wait().expect("wait for the supervisor"),
        );
        assert_eq!(processes_in(&self.path("")), Vec::<String>::new(), "{}", self.log());
        let left = |name: &str| -> Vec<_> {
            let entries = fs::read_dir(self.path(name)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        // The locks of names stay.
        let sockets: Vec<_> =
            left("run/frameshare").into_iter().filter(|name| !name.ends_with(".lock")).collect();
        assert_eq!((sockets, left("tmp")), (Vec::new(), Vec::new()), "{}", self.log());
        (self.folder.take().expect("the site is not stopped"), status)
    }
}

impl Drop for Site {
    /// After a failed test, too, nothing is left: the processes end with their supervisor.
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Connects to the supervisor's socket, in a folder of its own.
fn connect(folder: &Path) -> Option<UnixStream> {
    let folders = fs::read_dir(folder).ok()?.flatten();
    folders.map(|folder| folder.path().join("control.sock")).find_map(|path| UnixStream::connect(path).ok())
}

/// Keeps the newest state.
fn follow(control: UnixStream, state: Arc<Mutex<Value>>) {
    thread::spawn(move || {
        for line in BufReader::new(control).lines().map_while(Result::ok) {
            let new = serde_json::from_str(&line).expect("states are JSON");
            *state.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
    });
}

/// Returns the command lines of all processes whose environment has this folder.
fn processes_in(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().expect("UTF-8").as_bytes();
    let processes = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let is_of_site = |process: &PathBuf| {
        fs::read(process.join("environ"))
            .is_ok_and(|text| text.windows(folder.len()).any(|part| part == folder))
    };
    processes.filter(is_of_site).map(|process| read(&process.join("cmdline")).replace('\0', " ")).collect()
}
