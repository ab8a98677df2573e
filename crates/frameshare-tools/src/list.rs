// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare list`.

use crate::{
    error::Error,
    output::{Page, print_json},
    stream::{Measured, measure, short_format},
};
use frameshare::{StreamInfo, observer::ObserveError};
use serde_json::{Value, json};
use std::thread;

/// Maximum number of streams that are observed at once.
const AT_ONCE: usize = 64;

type Row = (StreamInfo, Result<Measured, ObserveError>);

/// Observes all streams: an exporter that does not answer delays no other.
fn observe(streams: Vec<StreamInfo>) -> Vec<Row> {
    let mut rows = Vec::with_capacity(streams.len());
    for streams in streams.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let measuring: Vec<_> =
                streams.iter().map(|stream| scope.spawn(|| measure(&stream.endpoint))).collect();
            for (stream, measured) in streams.iter().zip(measuring) {
                // A panic of the thread is reported as it is here.
                let measured = measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                rows.push((stream.clone(), measured));
            }
        });
    }
    rows
}

/// Lists the streams.
pub fn list(json: bool) -> Result<(), Error> {
    let rows = observe(frameshare::streams().map_err(Error::List)?);
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

fn to_cells((stream, measured): &Row) -> [String; 6] {
    let name = match stream.is_named() {
        true => stream.name.to_string(),
        false => stream.endpoint.to_string(),
    };
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
    [name, exporter.trim_end().to_owned(), format, memory, rate, readers]
}

fn to_json((stream, measured): &Row) -> Value {
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
