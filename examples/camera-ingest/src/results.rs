// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of motion detection and models: JSON in a stream, each keyed by its frame.
//!
//! The form on the wire is that of the Python package (docs/python-publish.md):
//! `{"session":"1234","sequence":5,"value":{…}}` in a stream with the caps
//! `application/x-frameshare-results`. Unknown fields of a value are ignored.

use crate::clock::CLOCK;
use anyhow::{Context, Result};
use frameshare::{
    Endpoint, Format, Interrupt, Wait,
    event::{Caps, Meta},
    exporter::{self, Exporter, SlowReaders},
    fence::Written,
    reader::Frame,
};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::Relaxed;

/// Caps of a stream of results.
pub const CAPS: &str = "application/x-frameshare-results, format=(string)json";

/// A result for one frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keyed {
    /// Session of the stream of frames, a decimal number.
    pub session: String,
    pub sequence: u64,
    pub value: Value,
}

/// Findings of motion detection or the model on a frame.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Time of the encoded unit from which the frame was decoded, in ns: the same number that the
    /// unit carries in its metadata, so that a result finds its place in recordings and in the
    /// encoded stream, too.
    pub time: u64,
    /// Part of the picture's area (or of its zones) that moves, 0 to 1; none for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    #[serde(default)]
    pub boxes: Vec<Region>,
}

/// A box in parts of the picture's width and height, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    /// The zone, or the class.
    pub label: String,
    pub score: f64,
}

impl Keyed {
    /// Returns the result of a frame.
    pub fn of(frame: &Frame, value: Value) -> Self {
        Self { session: frame.session().to_string(), sequence: frame.descriptor().sequence.0, value }
    }

    /// Reads a unit of a stream of results.
    pub fn read(unit: &Frame) -> Result<Self> {
        let number = unit.descriptor().sequence;
        serde_json::from_slice(&bytes_of(unit)).with_context(|| format!("unit {number} is no result"))
    }
}

/// Publishes results. No reader holds it back: those that fall behind are disconnected.
pub struct Publisher {
    exporter: Exporter,
}

impl Publisher {
    /// Opens a stream of results. `stop` ends waits for its memory.
    pub fn open(stream: &str, stop: &Interrupt) -> Result<Self> {
        let config = exporter::Config::default()
            .slow_readers(SlowReaders::QueueThenDisconnect)
            .interrupt(Some(stop.clone()));
        let on_notice = |notice| log::info!("{notice:?}");
        let exporter = Exporter::bind(&Endpoint::of_text(stream)?, config, on_notice)?;
        exporter.set_format(Format { caps: CAPS.to_owned(), video: None });
        Ok(Self { exporter })
    }

    pub fn publish(&self, result: &Keyed) -> Result<()> {
        let text = serde_json::to_vec(result)?;
        let size = text.len() as u64;
        let slot = self.exporter.filled(size, Wait::Forever, |bytes| bytes.copy_from_slice(&text))?;
        self.exporter.publish(exporter::Frame::new(&slot, size, Written::Cpu), Wait::Forever)?;
        Ok(())
    }
}

/// Returns the number that identifies a unit and the frame decoded from it: the capture time in ns
/// since 1970, which the capture role attaches. None for streams of others.
pub fn time_of(frame: &Frame) -> Option<u64> {
    let metas = Meta::of_metadata(frame.metadata()).ok()?;
    metas.into_iter().find_map(|meta| match meta {
        Meta::ReferenceTimestamp { reference: Caps::Structures(clocks), timestamp, .. } => {
            clocks.iter().any(|clock| clock.structure.name == CLOCK).then_some(timestamp)
        }
        _ => None,
    })
}

/// Copies a frame in host memory.
pub fn bytes_of(frame: &Frame) -> Vec<u8> {
    match frame.slice() {
        Some(bytes) => bytes.to_vec(),
        None => frame.bytes().iter().map(|byte| byte.load(Relaxed)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare::{Policy, reader};
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
        time::Duration,
    };

    fn value() -> Value {
        let label = "door".to_owned();
        let region = Region { x: 0.25, y: 0.5, width: 0.125, height: 0.25, label, score: 0.75 };
        Value { time: 1_700_000_000_000_000_001, score: Some(0.5), boxes: vec![region] }
    }

    /// As crates/frameshare-python writes it.
    const OF_PYTHON: &str = r#"{"session":"18446744073709551615","sequence":5,"value":{"time":1700000000000000001,"score":0.5,"boxes":[{"x":0.25,"y":0.5,"width":0.125,"height":0.25,"label":"door","score":0.75}]}}"#;

    #[test]
    fn results_have_the_form_of_the_python_package() {
        let keyed = Keyed { session: u64::MAX.to_string(), sequence: 5, value: value() };
        assert_eq!(serde_json::to_string(&keyed).unwrap(), OF_PYTHON);
        assert_eq!(serde_json::from_str::<Keyed>(OF_PYTHON).unwrap(), keyed);
        let other = r#"{"session":"1","sequence":2,"value":{"time":3,"model":"v1"}}"#;
        let read = serde_json::from_str::<Keyed>(other).unwrap();
        assert_eq!(read.value, Value { time: 3, score: None, boxes: Vec::new() });
    }

    #[test]
    fn published_results_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.sock");
        let stop = Interrupt::new().unwrap();
        let publisher = Publisher::open(path.to_str().unwrap(), &stop).unwrap();
        let config = reader::Config::default().policy(Policy::Lossless);
        let mut results = reader::Frames::open(path.to_str().unwrap(), config).unwrap();
        for sequence in 0..100 {
            let keyed = Keyed { session: "7".into(), sequence, value: value() };
            publisher.publish(&keyed).unwrap();
            let unit = results.next_within(Duration::from_secs(60)).unwrap().unwrap();
            assert_eq!(Keyed::read(&unit).unwrap(), keyed);
            assert_eq!(time_of(&unit), None);
        }
    }

    /// Reads one result, and publishes the same value as a result of its own.
    const PROGRAM: &str = "
import sys, frameshare
with frameshare.open_results(sys.argv[1], policy='lossless', connection_timeout=60) as stream, \
        frameshare.create_results(sys.argv[2], slow_readers='disconnect') as results:
    print('open', flush=True)
    key, value = stream.next(60)
    results.wait_for_reader(60)
    results.publish(key, value)
    sys.stdin.read()
";

    #[test]
    fn results_cross_to_python_and_back() {
        let python = std::env::var_os("CAMERA_INGEST_PYTHON").unwrap_or_else(|| "python3".into());
        let try_it = Command::new(&python).args(["-c", "import frameshare"]).output();
        if !try_it.is_ok_and(|output| output.status.success()) {
            println!("SKIP camera-ingest/results-python: the Python package frameshare is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [there, back] =
            ["there", "back"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
        let stop = Interrupt::new().unwrap();
        let publisher = Publisher::open(&there, &stop).unwrap();
        let mut program = Command::new(python);
        program.args(["-c", PROGRAM, &there, &back]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        let keyed = Keyed { session: u64::MAX.to_string(), sequence: 5, value: value() };
        publisher.publish(&keyed).unwrap();
        let config = reader::Config::default().policy(Policy::Lossless);
        let mut results = reader::Frames::open(&back, config).unwrap();
        let unit = results.next_within(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(Keyed::read(&unit).unwrap(), keyed);
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }
}
