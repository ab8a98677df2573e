// SPDX-License-Identifier: MIT OR Apache-2.0

//! Start of a role in this process: GStreamer, signals, panics, and a thread for each camera. A
//! changed configuration starts and stops only the threads of the cameras that it changes.

use crate::{
    Part,
    config::{Camera, Config},
    report::{Condition, Report, Reporter},
    roles::{self, Context, Loaded, Newest, Role},
    wall,
};
use anyhow::{Context as _, Result};
use frameshare::Interrupt;
use rustix::{fs::Mode, process::umask};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    io::{self, BufRead, BufReader},
    path::Path,
    process, slice,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Configuration file that stands for the lines of the supervisor on standard input.
const SUPERVISOR: &str = "-";
/// Interval of checks.
const TICK: Duration = Duration::from_millis(200);
/// Interval of checks, and maximum time, while threads end.
const STEP: Duration = Duration::from_millis(10);
const GRACE: Duration = Duration::from_secs(4);

/// Runs a role until it is stopped.
pub fn run_role(role: Role, part: Part) -> Result<()> {
    let mut lines = (part.config == Path::new(SUPERVISOR)).then(|| BufReader::new(io::stdin()).lines());
    let loaded = match &mut lines {
        Some(lines) => parse(&lines.next().context("the supervisor has sent no configuration")??)?,
        None => part.load(role)?.into(),
    };
    if role == Role::Record {
        // Recordings are for their user and group: 0640, in folders with 0750.
        umask(Mode::from_raw_mode(0o027));
    }
    let stop = stop_of_signals()?;
    end_with_panics();
    gst::init().context("GStreamer does not start")?;
    gstframeshare::plugin_register_static().context("the plugin frameshare does not start")?;
    let (config, cameras) = &*loaded;
    let context = Context { config, cameras, reporter: Reporter::of_environment(), stop };
    let (sender, newest) = watch::channel(loaded.clone());
    if let Some(lines) = lines {
        let sender = sender.clone();
        thread::spawn(move || follow(lines, &sender));
    }
    match role {
        Role::Wall => wall::run(&context, newest),
        Role::Model => roles::model::run(&context),
        Role::Record => thread::scope(|scope| {
            scope.spawn(|| roles::record::delete_old(&context));
            let result = run_cameras(role, &context, newest);
            context.stop.set();
            result
        }),
        _ => run_cameras(role, &context, newest),
    }
}

/// Parses a configuration of the supervisor, which has the cameras of this process alone.
fn parse(line: &str) -> Result<Loaded> {
    let config: Config = serde_json::from_str(line).context("no configuration of a supervisor")?;
    let cameras = config.cameras.clone();
    Ok(Arc::new((config, cameras)))
}

/// Takes each next configuration of the supervisor.
fn follow(lines: impl Iterator<Item = io::Result<String>>, sender: &watch::Sender<Loaded>) {
    for line in lines.map_while(Result::ok) {
        match parse(&line) {
            Ok(loaded) => drop(sender.send_replace(loaded)),
            Err(error) => eprintln!("the configuration is not changed: {error:#}"),
        }
    }
}

struct Running {
    camera: Camera,
    stop: Interrupt,
    thread: JoinHandle<Result<()>>,
}

/// Runs the cameras of the newest configuration until the role is stopped, or a thread fails.
fn run_cameras(role: Role, context: &Context, mut newest: Newest) -> Result<()> {
    let mut running: Vec<Running> = Vec::new();
    newest.mark_changed();
    while !context.stop.is_set() && !running.iter().any(|running| running.thread.is_finished()) {
        if newest.has_changed()? {
            let loaded = newest.borrow_and_update().clone();
            if role == Role::Capture {
                roles::capture::bound_memory(loaded.1.len());
            }
            let is_over =
                |running: &mut Running| !loaded.1.iter().any(|new| role.goes_on(&running.camera, new));
            end(running.extract_if(.., is_over).collect())?;
            for camera in &loaded.1 {
                if !running.iter().any(|running| running.camera.name == camera.name) {
                    running.push(start(role, context, camera.clone(), &newest)?);
                }
            }
        }
        context.pause(TICK);
    }
    end(running)
}

fn start(role: Role, context: &Context, camera: Camera, newest: &Newest) -> Result<Running> {
    let (reporter, newest, stop) = (context.reporter.clone(), newest.clone(), Interrupt::new()?);
    let running = (camera.clone(), stop.clone());
    let thread = thread::spawn(move || {
        let loaded = newest.borrow().clone();
        let context = Context { config: &loaded.0, cameras: slice::from_ref(&camera), reporter, stop };
        match role {
            _ if !role.takes(&camera) => {
                let (text, condition) = (format!("no work for {}", role.command()), Condition::Off);
                let camera = camera.name.clone();
                context.reporter.send(&Report { camera, condition, text, values: Default::default() });
                context.pause(Duration::MAX);
            }
            Role::Capture => roles::capture::run(&context, &camera),
            Role::Decode => roles::decode::run(&context, &camera),
            Role::Record => roles::record::record(&camera, &context)?,
            _ => roles::motion::run(&context, &camera, newest)?,
        }
        Ok(())
    });
    Ok(Running { camera: running.0, stop: running.1, thread })
}

/// Ends threads, and returns the first error. The supervisor restarts a process whose thread hangs.
fn end(ended: Vec<Running>) -> Result<()> {
    ended.iter().for_each(|running| running.stop.set());
    let deadline = Instant::now() + GRACE;
    while let Some(late) = ended.iter().find(|running| !running.thread.is_finished()) {
        if Instant::now() > deadline {
            eprintln!("{}: the thread does not end: ending the process", late.camera.name);
            process::exit(1);
        }
        thread::sleep(STEP);
    }
    ended.into_iter().try_for_each(|running| running.thread.join().expect("panics end the process"))
}

/// Returns an interrupt that SIGINT and SIGTERM set. The second signal ends the process.
fn stop_of_signals() -> Result<Interrupt> {
    let stop = Interrupt::new()?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let interrupt = stop.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if interrupt.is_set() {
                process::exit(128 + signal);
            }
            interrupt.set();
        }
    });
    Ok(stop)
}

/// Ends the process when a thread panics: the supervisor starts it again, and no camera of its
/// group is without its thread.
fn end_with_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        process::exit(101);
    }));
}
