//! The same kills, stalls and restarts against frameshare and GStreamer's own elements, one JSON line a case and a table.
//!
//!     frameshare-rivals [--by COMMAND] [--folder PATH] [--plugins PATH] [--kills N] [--film PATH] [--case TEXT]...
//!         TRANSPORT...
//!
//! COMMAND is put before every command, to run it with another GStreamer (`tests/rootfs.sh run`); PATH is a folder that is
//! seen under the same name there, for sockets; the plugin lies in the other. Frames come from a test source at 200 a
//! second, or, as fast as it goes, from NVIDIA's decoder and an H.264 film no two frames of which are alike. Of the cases all
//! are run, or those whose name begins with a TEXT. Transports: see `transport.rs`. What is printed is what happened; nothing passes or fails.

mod cases;
mod process;
mod transport;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use std::path::PathBuf;

/// Where and by what everything is run.
struct Setting {
    by: Vec<String>,
    folder: PathBuf,
    plugins: Option<String>,
    kills: usize,
    film: Option<String>,
}

fn main() -> Result<()> {
    let mut setting =
        Setting { by: Vec::new(), folder: std::env::temp_dir(), plugins: None, kills: 20, film: None };
    let (mut names, mut begins) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} has no value"));
        match argument.as_str() {
            "--by" => setting.by = value()?.split_whitespace().map(str::to_owned).collect(),
            "--folder" => setting.folder = value()?.into(),
            "--plugins" => setting.plugins = Some(value()?),
            "--kills" => setting.kills = value()?.parse().context("--kills")?,
            "--film" => setting.film = Some(value()?),
            "--case" => begins.push(value()?),
            option if option.starts_with('-') => bail!("there is no {option}"),
            _ => names.push(argument),
        }
    }
    let version = process::version(&setting)?;
    println!("{}", json!({ "gstreamer": version }));
    let transports = names.iter().map(|name| transport::find(name)).collect::<Result<Vec<_>>>()?;
    let mut table = vec![format!("| {version} | {} |", names.join(" | "))];
    table.push(format!("| --- {}|", "| --- ".repeat(names.len())));
    let is_wanted =
        |case: &&cases::Case| begins.is_empty() || begins.iter().any(|text| case.name.starts_with(text));
    for case in cases::CASES.iter().filter(is_wanted) {
        let mut row = format!("| {} ", case.name);
        for transport in &transports {
            let stage = cases::Stage::new(&setting, transport)?;
            let result = (case.conduct)(&stage).unwrap_or_else(|error| format!("no result: {error:#}"));
            let result = stage.without_paths(&result);
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
