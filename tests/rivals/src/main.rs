// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the same kills, stalls and restarts against frameshare and GStreamer's own elements, and
//! prints one JSON line a case and a table. It reports results only; no case passes or fails.

mod cases;
mod process;
mod transport;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use std::{path::PathBuf, process::ExitCode};

const USAGE: &str = "frameshare-rivals [OPTION VALUE]... TRANSPORT...

  TRANSPORT         of lossless latest unixfd, and with --clip lossless-cuda latest-cuda cudaipc-copy
                    cudaipc-import
  --kills N         readers to kill in a row (20)
  --case TEXT       run only cases whose names begin with this; may be given several times
  --clip PATH       H.264 clip of distinct frames for transports that need NVIDIA's decoder, played at
                    full speed; the others read a test source with 200 frames a second
  --plugins PATH    a folder with the plugin
  --folder PATH     for sockets (the system's for temporary files)
  --by COMMAND      prefix of every command, to run it with another GStreamer, such as
                    `tests/rootfs.sh run`, where both folders have the same names";

/// Environment of all cases.
struct Setting {
    by: Vec<String>,
    folder: PathBuf,
    plugins: Option<String>,
    kills: usize,
    clip: Option<String>,
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("frameshare-rivals: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut setting =
        Setting { by: Vec::new(), folder: std::env::temp_dir(), plugins: None, kills: 20, clip: None };
    let (mut names, mut begins) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} has no value"));
        match argument.as_str() {
            "--by" => setting.by = value()?.split_whitespace().map(str::to_owned).collect(),
            "--folder" => setting.folder = value()?.into(),
            "--plugins" => setting.plugins = Some(value()?),
            "--kills" => setting.kills = value()?.parse().context("--kills")?,
            "--clip" => setting.clip = Some(value()?),
            "--case" => begins.push(value()?),
            option if option.starts_with('-') => bail!("there is no {option}\n{USAGE}"),
            _ => names.push(argument),
        }
    }
    let is_wanted =
        |case: &&cases::Case| begins.is_empty() || begins.iter().any(|text| case.name.starts_with(text));
    let cases: Vec<_> = cases::CASES.iter().filter(is_wanted).collect();
    if names.is_empty() || cases.is_empty() {
        let all: Vec<_> = cases::CASES.iter().map(|case| case.name).collect();
        bail!("which transports, and which cases of these: {}?\n{USAGE}", all.join("; "));
    }
    let version = process::version(&setting)?;
    println!("{}", json!({ "gstreamer": version }));
    let transports = names.iter().map(|name| transport::find(name)).collect::<Result<Vec<_>>>()?;
    let mut table = vec![format!("| {version} | {} |", names.join(" | "))];
    table.push(format!("| --- {}|", "| --- ".repeat(names.len())));
    for case in cases {
        let mut row = format!("| {} ", case.name);
        for transport in &transports {
            let setup = cases::Setup::new(&setting, transport)?;
            let result = (case.conduct)(&setup).unwrap_or_else(|error| format!("no result: {error:#}"));
            let result = setup.without_paths(&result);
            let line = [("case", case.name), ("transport", transport.name), ("result", &result)];
            let line = line.map(|(key, value)| format!("\"{key}\": {}", json!(value))).join(", ");
            println!("{{\"suite\": \"rivals\", {line}}}");
            row += &format!("| {} ", result.replace('|', "/"));
        }
        table.push(row + "|");
    }
    println!("\n{}", table.join("\n"));
    Ok(())
}
