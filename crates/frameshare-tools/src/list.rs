// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare list`.

use crate::{
    error::Error,
    output::{Page, print_json},
    stream::{Measured, Observed, label, measure, observe_all, short_format},
};
use serde_json::{Value, json};

/// Lists the streams.
pub fn list(json: bool) -> Result<(), Error> {
    let rows = observe_all(measure)?;
    if json {
        return print_json(&Value::Array(rows.iter().map(to_json).collect()));
    }
    let mut page = Page::new();
    page.table(
        ["STREAM", "EXPORTER", "FORMAT", "MEMORY", "FRAMES/S", "READERS"],
        &rows.iter().map(to_cells).collect::<Vec<_>>(),
    );
    for (stream, measured) in &rows {
        if let Err(error) = measured {
            page.line(&format!("{}: {error}", stream.name));
        }
    }
    if rows.is_empty() {
        page.line("no streams: start one with `gst-launch-1.0 videotestsrc is-live=true ! framesharesink stream=cam0`");
    }
    page.print()
}

fn to_cells((stream, measured): &Observed<Measured>) -> [String; 6] {
    let pid = stream.exporter_pid.map_or("-".to_owned(), |pid| pid.to_string());
    let exporter = format!("{pid} {}", stream.exporter_program.as_deref().unwrap_or_default());
    let [format, memory, rate, readers] = match measured {
        Ok(Measured { snapshot, rate }) => [
            short_format(snapshot),
            snapshot.memory.to_string(),
            format!("{rate:.1}"),
            snapshot.readers.len().to_string(),
        ],
        Err(_) => ["-"; 4].map(str::to_owned),
    };
    [label(stream), exporter.trim_end().to_owned(), format, memory, rate, readers]
}

fn to_json((stream, measured): &Observed<Measured>) -> Value {
    let mut value = json!({
        "stream": stream.name.as_str(),
        "socket": stream.endpoint.to_string(),
        "exporter": { "pid": stream.exporter_pid, "program": stream.exporter_program },
    });
    match measured {
        Ok(Measured { snapshot, rate }) => {
            value["caps"] = snapshot.format.as_ref().map(|format| format.caps.as_str()).into();
            value["memory"] = snapshot.memory.to_string().into();
            value["rate"] = (*rate).into();
            value["published"] = snapshot.counters.published.into();
            value["readers"] = snapshot.readers.len().into();
        }
        Err(error) => value["error"] = error.to_string().into(),
    }
    value
}
