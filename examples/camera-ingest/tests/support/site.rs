// SPDX-License-Identifier: MIT OR Apache-2.0

//! A site in demo mode: its supervisor, the newest state that it publishes, and its folders.

use crate::common::{Place, Process, signal, wait};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

pub struct Site {
    pub place: Place,
    supervisor: Process,
    control: UnixStream,
    /// The newest state.
    state: Arc<Mutex<Value>>,
}

impl Site {
    /// Starts a site. Paths of the configuration are relative to its place.
    pub fn start(config: &str) -> Self {
        let place = Place::new();
        place.configure(config);
        let supervisor = place.start("run --demo");
        let control = place.control().into_stream();
        let state = Arc::default();
        follow(control.try_clone().unwrap(), Arc::clone(&state));
        Self { place, supervisor, control, state }
    }

    pub fn log(&self) -> String {
        self.supervisor.text()
    }

    /// Number of the supervisor's process.
    pub fn supervisor(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Returns the state of all processes, as the page gets it.
    pub fn processes(&self) -> Vec<Value> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state["processes"].as_array().cloned().unwrap_or_default()
    }

    pub fn process(&self, name: &str) -> Option<Value> {
        self.processes().into_iter().find(|process| process["name"] == name)
    }

    /// Waits until a process reports one of these conditions of a camera.
    pub fn wait_for_report(&self, process: &str, camera: &str, conditions: &[&str]) {
        wait(&format!("report of {process} that {camera} is {conditions:?}"), || {
            let process = self.process(process)?;
            let condition = process["reports"][camera]["condition"].as_str()?;
            conditions.contains(&condition).then_some(())
        });
    }

    /// Waits until a recorder has reported so many more units of a camera.
    pub fn wait_for_units(&self, process: &str, camera: &str, more: f64) {
        let units = || self.process(process)?["reports"][camera]["values"]["received"].as_f64();
        let before = units().unwrap_or(0.0);
        wait(&format!("units of {camera} at {process}"), || (units()? >= before + more).then_some(()));
    }

    /// Returns the number of a process, once it runs.
    pub fn pid(&self, process: &str) -> u32 {
        wait(&format!("process {process}"), || self.process(process)?["pid"].as_u64()?.try_into().ok())
    }

    pub fn signal(&self, process: &str, what: Signal) {
        signal(self.pid(process), what);
    }

    /// Kills a process as the page does.
    pub fn kill_by_page(&mut self, process: &str) {
        let command = json!({"command": "kill", "process": process});
        writeln!(self.control, "{command}").unwrap();
    }

    /// Waits until a process has been started again this many times.
    pub fn wait_for_restarts(&self, process: &str, restarts: u64) {
        wait(&format!("restart {restarts} of {process}"), || {
            let process = self.process(process)?;
            (process["restarts"].as_u64()? >= restarts && !process["pid"].is_null()).then_some(())
        });
    }

    /// Stops the site, and checks that it leaves nothing but its recordings.
    pub fn stop(mut self) -> Place {
        self.supervisor.stop();
        assert_eq!(processes_in(&self.place.path("")), Vec::<String>::new());
        assert_eq!(self.place.left(), Vec::<String>::new());
        self.place
    }
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
    let folder = folder.to_str().unwrap().as_bytes();
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_of_site = |process: &std::path::PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.windows(folder.len()).any(|part| part == folder)
    };
    let line = |process: std::path::PathBuf| fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    processes.filter(is_of_site).map(|process| line(process).replace('\0', " ")).collect()
}
