// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs of all cases, each in fresh processes.

use crate::{
    case::{Run, Transport},
    mps::{self, Mps},
    options::Options,
    outcome::{Figures, Outcome},
    pipewire::{self, Daemon},
    raw, report, stamps,
};
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// Timeout for a reader's first frame and for all reports. NVIDIA's plugin alone takes some seconds
/// to load when several processes start at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs all cases, and prints the report.
pub fn all(options: &Options) -> Result<()> {
    gst::init()?;
    let (here, missing): (Vec<Transport>, Vec<Transport>) =
        options.transports.iter().partition(|transport| {
            transport.is_installed()
                && (**transport != Transport::Pipewire || pipewire::is_installed())
                && (**transport != Transport::Iceoryx2 || options.iceoryx2.is_some())
        });
    let folder = env::temp_dir().join(format!("frameshare-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let mut file = options.raw.as_ref().map(fs::File::create).transpose()?;
    let begin = Instant::now();
    let mut outcomes = Vec::new();
    for round in 1..=options.rounds {
        for &case in &options.cases {
            // Transports alternate, so that other load on the machine affects all of them.
            for &transport in here.iter().filter(|transport| case.rate > 0 || transport.runs_free()) {
                let socket = folder.join(format!("{}.sock", outcomes.len()));
                let run = Run {
                    transport,
                    case,
                    socket: socket.to_string_lossy().into_owned(),
                    warm: options.warm,
                    measure: options.measure,
                    pool: options.pool,
                    max_held: options.max_held,
                    daemon: None,
                    program: options.iceoryx2.clone().filter(|_| transport == Transport::Iceoryx2),
                    clip: options
                        .clips
                        .as_deref()
                        .map(|clips| Ok::<_, anyhow::Error>(clips.join(case.size.clip()?)))
                        .transpose()?,
                    live: None,
                };
                let outcome = Outcome { round, transport, case, mps: Mps::here(), result: once(run)? };
                eprintln!("round {round}, {case}, {}: {}", transport.name(), report::line(&outcome));
                if let Some(file) = &mut file {
                    raw::write(file, &outcome)?;
                }
                outcomes.push(outcome);
            }
        }
    }
    fs::remove_dir_all(&folder)?;
    print!("{}", report::markdown(options, &here, &missing, &outcomes, begin.elapsed()));
    // Timings never fail the program; a stuck stream of frameshare does.
    let stuck = |outcome: &&Outcome| !outcome.transport.is_rival() && outcome.result.is_err();
    match outcomes.iter().find(stuck) {
        Some(Outcome { transport, result: Err(where_), .. }) => bail!("{}: {where_}", transport.name()),
        _ => Ok(()),
    }
}

/// Performs one run. The inner error names the point at which it got stuck.
pub fn once(mut run: Run) -> Result<std::result::Result<Figures, String>> {
    let is_pipewire = run.transport == Transport::Pipewire;
    let daemon = is_pipewire.then(|| Daemon::start(pipewire_folder(&run))).transpose()?;
    run.daemon = daemon.as_ref().map(Daemon::id);
    let run = &run;
    let mut exporter = Role::start("export", run)?;
    let mut readers = Vec::new();
    let result = (|| {
        exporter.receive::<String>(PATIENCE)?;
        let count = if run.transport.has_readers() { run.case.readers } else { 0 };
        for _ in 0..count {
            readers.push(Role::start("read", run).map_err(|error| error.to_string())?);
        }
        for reader in &readers {
            let link = daemon.as_ref().map(|daemon| daemon.link(exporter.process.id(), reader.process.id()));
            link.transpose().map_err(|error| format!("{error:#}"))?;
        }
        for (index, reader) in readers.iter().enumerate() {
            reader
                .receive::<String>(PATIENCE)
                .map_err(|why| format!("reader {index} gets no frame: {why}"))?;
        }
        exporter.go();
        let time = run.warm + run.measure + PATIENCE;
        let exported =
            exporter.receive(time).map_err(|why| format!("the exporter gets no further: {why}"))?;
        let itself = run.reads_itself().then(|| ("what the exporter itself reads".to_owned(), &exporter));
        let others = readers.iter().enumerate().map(|(index, reader)| (format!("reader {index}"), reader));
        let received = itself.into_iter().chain(others).map(|(name, reader)| {
            reader.receive(PATIENCE).map_err(|why| format!("{name} gets no further: {why}"))
        });
        let received = received.collect::<std::result::Result<_, String>>()?;
        Ok(Figures { exported, received })
    })();
    // The exporter stops first: some readers fail at its end, and nothing is measured any more.
    exporter.end();
    readers.iter_mut().for_each(Role::release);
    readers.into_iter().for_each(Role::end);
    let _ = fs::remove_file(&run.socket);
    let _ = fs::remove_file(stamps::path(&run.socket));
    Ok(result)
}

/// Folder of PipeWire's socket.
fn pipewire_folder(run: &Run) -> PathBuf {
    Path::new(&run.socket).with_extension("pipewire")
}

/// A process with a role.
struct Role {
    process: Child,
    commands: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Role {
    fn start(role: &str, run: &Run) -> Result<Self> {
        let mut command = Command::new(run.program.clone().map_or_else(env::current_exe, Ok)?);
        let mut process = pipewire::enter(&mut command, &pipewire_folder(run))
            .arg(role)
            .arg(serde_json::to_string(run)?)
            .envs(mps::variables(role))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process")?;
        let out = BufReader::new(process.stdout.take().context("its output is piped")?);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || out.lines().map_while(|line| line.ok()).try_for_each(|line| sender.send(line)));
        Ok(Self { commands: process.stdin.take(), process, lines })
    }

    fn receive<T: DeserializeOwned>(&self, patience: Duration) -> std::result::Result<T, String> {
        let line = self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("nothing for {patience:?}"),
            RecvTimeoutError::Disconnected => "its process has ended".into(),
        })?;
        serde_json::from_str(&line).map_err(|error| format!("it said {line:?}: {error}"))
    }

    fn go(&mut self) {
        // A process that has exited shows at the next receive.
        let _ = self.commands.as_mut().map(|commands| commands.write_all(b"go\n"));
    }

    /// Closes the process's stdin, so that it exits.
    fn release(&mut self) {
        self.commands = None;
    }

    /// Waits for the process to exit, and kills it after a timeout.
    fn end(mut self) {
        self.release();
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline {
            if matches!(self.process.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove_shm_areas(self.process.id());
    }
}

/// A killed shmsink leaves its shared memory, which has the size of many frames.
fn remove_shm_areas(pid: u32) {
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut parts = name.split('.');
        parts.next() == Some("shmpipe") && parts.next().is_some_and(|of| of.trim() == pid.to_string())
    };
    let areas = fs::read_dir(Path::new("/dev/shm")).into_iter().flatten().flatten();
    areas.map(|area| area.path()).filter(is_its).for_each(|area| {
        let _ = fs::remove_file(area);
    });
}
