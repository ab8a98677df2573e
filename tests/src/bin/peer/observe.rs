// SPDX-License-Identifier: MIT OR Apache-2.0

//! `peer observe` and `peer list`.

use crate::{Result, options::Options, print};
use frameshare::observer::Observer;
use serde_json::json;
use std::{process::ExitCode, time::Duration};

pub fn observe(options: &Options) -> Result<ExitCode> {
    let timeout = Duration::from_millis(options.or("timeout-ms", 5000)?);
    let mut observer = Observer::connect(&options.endpoint()?, timeout)?;
    let snapshot = observer.latest();
    let readers: Vec<_> = snapshot.readers.iter().map(|reader| json!([reader.id, reader.pid])).collect();
    print(&json!({ "event": "snapshot", "exporter": snapshot.exporter.pid, "readers": readers }))?;
    if let Some(reader) = options.get("disconnect")? {
        observer.disconnect_reader(reader)?;
        print(&json!({ "event": "disconnected", "reader": reader }))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn list() -> Result<ExitCode> {
    let streams = frameshare::streams()?;
    let names: Vec<_> =
        streams.iter().map(|stream| json!([stream.name.as_str(), stream.is_named()])).collect();
    print(&json!({ "event": "streams", "names": names }))?;
    Ok(ExitCode::SUCCESS)
}
