// SPDX-License-Identifier: MIT OR Apache-2.0

//! Command line of the detector of unordered accesses.

use gpu_order::{Abort, Summary, check, run};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: gpu-order check FILE
       gpu-order run [--abort] COMMAND...

check: check the trace that programs on the simulated driver wrote with SIMCUDA_ORDER=FILE.
run: run a command on the simulated driver, and check its trace while it grows. With --abort,
     a process that makes an unordered access is aborted.";

fn clean(summary: Summary) {
    let Summary { lines, processes, accesses } = summary;
    eprintln!("gpu-order: {accesses} accesses of {processes} processes are ordered ({lines} lines)");
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (abort, command) = match arguments.as_slice() {
        ["check", file] => match check(file) {
            Ok(summary) => {
                clean(summary);
                return Ok(ExitCode::SUCCESS);
            }
            Err(violation) => {
                eprintln!("gpu-order: {violation}");
                return Ok(ExitCode::FAILURE);
            }
        },
        ["run", "--abort", command @ ..] => (Abort::Yes, command),
        ["run", command @ ..] => (Abort::No, command),
        _ => (Abort::No, &[][..]),
    };
    let [program, arguments @ ..] = command else {
        eprintln!("{USAGE}");
        return Ok(ExitCode::FAILURE);
    };
    let mut violations = 0;
    let (status, summary) = run(Command::new(program).args(arguments), abort, |violation| {
        violations += 1;
        eprintln!("gpu-order: {violation}");
    })?;
    match (violations, status.code()) {
        (0, Some(0)) => clean(summary),
        (0, _) => eprintln!("gpu-order: the command failed: {status}"),
        _ => eprintln!("gpu-order: {violations} violations"),
    }
    Ok(if violations == 0 && status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
