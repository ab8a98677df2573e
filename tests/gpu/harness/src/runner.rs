// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runner: executes cases one by one, each in its own process group with a time limit, and reports
//! results as JSON lines.
//!
//! The first line describes the machine, before anything else is tried; see [`platform`].
//!
//! A line holds `suite`, `case`, `result` (`pass`, `fail` or `skip`), `ms`, and `detail` or, if the
//! case did not pass, `reason`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use frameshare_cuda::device::Device;

use crate::{Case, Failed, Needs, Skip, isolate, order, platform};

/// Report line of a case.
#[derive(Serialize)]
struct Line<'a> {
    suite: &'a str,
    case: &'a str,
    result: &'a str,
    ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Result of a case.
#[derive(Serialize, Deserialize)]
enum Verdict {
    Pass(String),
    Fail(String),
    Skip(String),
}

/// Runs the selected cases.
pub fn run(cases: impl Iterator<Item = &'static Case>, wanted: &[String], seed: u64) -> Result<ExitCode> {
    let cases = select(cases.collect(), wanted)?;
    println!("{}", platform::line());
    let machine = Machine::look();
    match &machine.devices {
        Ok(devices) => {
            let devices: Vec<_> = devices.iter().map(ToString::to_string).collect();
            println!("CUDA {}, {}", machine.version, devices.join(", "));
        }
        Err(reason) => println!("no GPU: {reason}"),
    }

    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let first = machine.devices.as_ref().ok().and_then(|devices| devices.first()).map(Device::id);
    for case in cases {
        let begin = Instant::now();
        let verdict = match machine.lacks(case) {
            Some(reason) => Verdict::Skip(reason),
            // GStreamer's plugin probes each visible GPU in each process, which takes seconds.
            None => {
                let device = first.as_deref().filter(|_| case.needs != Needs::TwoDevices);
                in_a_process(case, seed, device, machine.simulated())
            }
        };
        let (result, text) = match verdict {
            Verdict::Pass(text) => ("pass", text),
            Verdict::Fail(text) => ("fail", text),
            // A run with REQUIRE_GPU=1 must not pass by skipping.
            Verdict::Skip(text) if machine.devices.is_err() && required() => ("fail", text),
            Verdict::Skip(text) => ("skip", text),
        };
        let (detail, reason) = if result == "pass" { (Some(text), None) } else { (None, Some(text)) };
        match result {
            "pass" => passed += 1,
            "skip" => skipped += 1,
            _ => failed += 1,
        }
        let ms = u64::try_from(begin.elapsed().as_millis())?;
        let line = Line { suite: case.suite, case: case.name, result, ms, detail, reason };
        println!("{}", serde_json::to_string(&line)?);
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn required() -> bool {
    std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1")
}

/// Returns the cases that are named by suite or in full; all if no name is given.
fn select(mut cases: Vec<&'static Case>, wanted: &[String]) -> Result<Vec<&'static Case>> {
    let matches = |case: &Case, name: &str| name == case.suite || name == case.to_string();
    if let Some(name) = wanted.iter().find(|name| !cases.iter().any(|case| matches(case, name))) {
        bail!("no suite or case {name}; --list names them");
    }
    cases.retain(|case| wanted.is_empty() || wanted.iter().any(|name| matches(case, name)));
    Ok(cases)
}

/// Devices of this machine.
struct Machine {
    version: i32,
    devices: Result<&'static [Device], String>,
}

impl Machine {
    fn look() -> Machine {
        let devices = Device::all().map_err(|error| error.to_string()).and_then(|devices| {
            if devices.is_empty() { Err("CUDA reports no device".to_owned()) } else { Ok(devices) }
        });
        Machine { version: frameshare_cuda::version().unwrap_or(0), devices }
    }

    fn simulated(&self) -> bool {
        self.devices.as_ref().is_ok_and(|devices| devices[0].name().starts_with("Simulated"))
    }

    /// Returns why a case cannot run here, if so.
    fn lacks(&self, case: &Case) -> Option<String> {
        let devices = match &self.devices {
            _ if matches!(case.needs, Needs::NoGpu) => return None,
            Ok(devices) => devices.len(),
            Err(reason) => return Some(reason.clone()),
        };
        match case.needs {
            Needs::NoGpu | Needs::Nothing => None,
            Needs::TwoDevices => (devices < 2).then(|| "this machine has only one GPU".to_owned()),
            Needs::Simulation => (!self.simulated())
                .then(|| "this case needs the simulated driver, which injects failures".to_owned()),
            Needs::Namespaces => isolate::possible().err(),
        }
    }
}

/// Runs a case in a process, and kills it with all its peers when it has reported or its time limit
/// is over. If a device is given, it is the only one that they see. On the simulated driver, its
/// accesses to memory are ordered if it passes.
fn in_a_process(case: &Case, seed: u64, device: Option<&str>, is_simulated: bool) -> Verdict {
    let attempt = || -> Result<Verdict> {
        let trace = if is_simulated { order::Trace::begin()? } else { None };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--case", &case.to_string(), &seed.to_string()])
            .envs(trace.as_ref().map(order::Trace::variable))
            .envs(device.map(|device| ("CUDA_VISIBLE_DEVICES", device)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let answers = child.stdout.take().context("the case has no output pipe")?;
        let (sender, receiver) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut verdict = String::new();
            for line in BufReader::new(answers).lines().map_while(Result::ok) {
                // Lines of measurements are passed on at once; the other line is the verdict.
                if line.starts_with("{\"suite\"") { println!("{line}") } else { verdict = line }
            }
            // The receiver may have timed out.
            let _ = sender.send(verdict);
        });
        let answer = receiver.recv_timeout(Duration::from_secs(case.seconds));
        let group = rustix::process::Pid::from_child(&child);
        // The group may have exited already.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let status = child.wait()?;
        let _ = reader.join();
        let Ok(text) = answer else {
            return Ok(Verdict::Fail(format!("not complete after {} s", case.seconds)));
        };
        let (verdict, expected) = serde_json::from_str(text.trim())
            .with_context(|| format!("the case ended without a result: {status}"))?;
        if let (Verdict::Pass(_), Some(trace)) = (&verdict, trace) {
            trace.check(expected)?;
        }
        Ok(verdict)
    };
    attempt().unwrap_or_else(|error| Verdict::Fail(format!("{error:#}")))
}

/// Runs in the process of one case: executes it and prints its verdict.
pub fn conduct(mut cases: impl Iterator<Item = &'static Case>, name: &str, seed: u64) {
    let verdict = match cases.find(|case| case.to_string() == name) {
        None => Verdict::Fail("unknown case".to_owned()),
        Some(case) => match (case.conduct)(seed) {
            Ok(detail) => Verdict::Pass(detail),
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(Skip(reason)) => Verdict::Skip(reason.clone()),
                None => Verdict::Fail(format!("{error:#}{}", code_of(&error))),
            },
        },
    };
    println!("{}", serde_json::to_string(&(verdict, order::expected())).unwrap_or_default());
}

/// Returns a suffix for the report if a peer lost its context; the error text does not say so.
fn code_of(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref::<Failed>() {
        Some(failed) if failed.sticky => " (the context is lost)",
        _ => "",
    }
}
