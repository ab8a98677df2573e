// SPDX-License-Identifier: MIT OR Apache-2.0

//! `peer share`, `peer gather` and `peer fork`: many streams in one process, or in a process and
//! its child.

use crate::{Result, child, options::Options, print};
use frameshare::{
    Endpoint, Format, Interrupt, Wait,
    exporter::{self, Exporter, Frame, Purpose},
    fence::Written,
    reader::{self, Item, Reader, ReaderSet},
};
use frameshare_tests::census::descriptors;
use rustix::process::{Pid, WaitOptions, waitpid};
use serde_json::json;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

/// Size in bytes of each frame.
const SIZE: u64 = 1000;

/// Returns the endpoints of the streams `cam0`, `cam1` and so on in a folder.
fn endpoints(options: &Options) -> Result<Vec<Endpoint>> {
    let folder: PathBuf = options.get("folder")?.ok_or("--folder is missing")?;
    let streams = 0..options.or("streams", 64_u32)?;
    let endpoint = |stream| Ok(Endpoint::at(folder.join(format!("cam{stream}.sock")))?);
    streams.map(endpoint).collect()
}

fn publish(exporter: &Exporter) -> Result<()> {
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No)?;
    exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever)?;
    Ok(())
}

/// Exports many streams from one thread. Each gets one frame, and another one whenever it has got
/// `--readers` readers.
pub fn share(options: &Options) -> Result<ExitCode> {
    let readers = options.or("readers", 0_usize)?;
    let until: PathBuf = options.get("until")?.ok_or("--until is missing")?;
    let interrupt = Interrupt::new()?;
    let files = descriptors(std::process::id())?;
    let mut exporters = Vec::new();
    for endpoint in endpoints(options)? {
        let config = exporter::Config::default().interrupt(Some(interrupt.clone()));
        let exporter = Exporter::bind(&endpoint, config, drop)?;
        exporter.set_format(Format { caps: "application/x-frameshare-test".into(), video: None });
        publish(&exporter)?;
        exporters.push(exporter);
    }
    print(&json!({ "event": "open", "files_before": files }))?;
    if readers > 0 {
        for exporter in &exporters {
            while exporter.reader_count() < readers {
                thread::sleep(Duration::from_millis(1));
            }
            publish(exporter)?;
        }
        print(&json!({ "event": "published" }))?;
    }
    wait_for(&until);
    drop(exporters);
    print(&json!({ "event": "closed" }))?;
    Ok(ExitCode::SUCCESS)
}

fn wait_for(file: &Path) {
    while !file.exists() {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Exports a stream, and another one in a forked child, until a file exists. The first one is
/// stopped and started again meanwhile.
pub fn fork(options: &Options) -> Result<ExitCode> {
    let until: PathBuf = options.get("until")?.ok_or("--until is missing")?;
    let endpoints = endpoints(options)?;
    let [first, second] = &endpoints[..] else { return Err("--streams must be 2".into()) };
    let exporter = Exporter::bind(first, exporter::Config::default(), drop)?;
    let child = child::start(|| {
        let exporter = Exporter::bind(second, exporter::Config::default(), drop);
        let opened = exporter.is_ok() && print(&json!({ "event": "open" })).is_ok();
        wait_for(&until);
        drop(exporter);
        opened
    })?;
    // The child has a copy of each descriptor of the first stream, which does not prevent a rebind.
    drop(exporter);
    let exporter = Exporter::bind(first, exporter::Config::default(), drop)?;
    wait_for(&until);
    drop(exporter);
    let status = waitpid(Pid::from_raw(child), WaitOptions::empty())?;
    let is_well = status.is_some_and(|(_, status)| status.exit_status() == Some(0));
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads many streams in one thread until it is killed.
pub fn gather(options: &Options) -> Result<ExitCode> {
    let interrupt = Interrupt::new()?;
    let mut set = ReaderSet::default();
    let mut waiting = BTreeSet::new();
    let (copies, max_held) = (options.or("copies", 1)?, options.or("max-held", 1)?);
    for endpoint in endpoints(options)?.iter().flat_map(|endpoint| std::iter::repeat_n(endpoint, copies)) {
        let config = reader::Config::default().max_held(max_held);
        waiting.insert(set.add(Reader::connect(endpoint, config, &interrupt)?));
    }
    // Receive all pending messages before the report.
    while let Some((key, item)) = set.next(Some(Duration::ZERO), &interrupt)? {
        if matches!(item?, Item::Frame(_)) {
            waiting.remove(&key);
        }
    }
    print(&json!({ "event": "connected" }))?;
    let mut is_complete = false;
    loop {
        if waiting.is_empty() && !std::mem::replace(&mut is_complete, true) {
            print(&json!({ "event": "complete" }))?;
        }
        if let Some((key, item)) = set.next(None, &interrupt)?
            && matches!(item?, Item::Frame(_))
        {
            waiting.remove(&key);
        }
    }
}
