//! An exporter or a reader without GStreamer, for tests across processes.
//!
//! `peer export` publishes frames whose every byte derives from the sequence number; `peer read` prints one JSON
//! line per frame and a summary. Run without arguments for the options. The exit status is 0 when everything went
//! as it should, 1 for an error (which stderr names) and 2 when a frame did not hold what it should.
//!
//! # Safety
//!
//! Slots are written through their pointer while nobody else has them, and frames are read as plain slices while
//! they are leased.
#![allow(unsafe_code)]

use frameshare::{
    Endpoint, Format, Interrupt, Policy, StreamName,
    exporter::{self, Exporter, LosslessReaders, Purpose},
    reader::{self, Frame, Item, Reader},
};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, VecDeque},
    env,
    error::Error,
    io::{self, Write},
    process::ExitCode,
    str::FromStr,
    time::{Duration, Instant},
};

const USAGE: &str = "\
peer read   --stream NAME | --socket PATH   what to read
            --policy latest|lossless        (latest)
            --max-held N                    (4)
            --frames N                      stop after so many
            --sleep-ms N                    before each frame's release
            --hold N                        keep the newest N frames
            --hoard N                       hold N frames, then sleep for ever
            --timeout-ms N                  for the connection (5000)
            --reconnect yes                 go on with a new exporter
            --sum yes                       a checksum of each frame's bytes
            --verify yes                    compare with what `peer export` writes
            --quiet yes                     the summary alone
peer export --stream NAME | --socket PATH   where to
            --frames N                      how many (100)
            --size BYTES                    of each frame (1000000)
            --fps N                         how fast; 0: as fast as it goes (0)
            --readers N                     wait for so many first (1)
            --max-slots N, --max-held-limit N, --lossless-readers none|own-uid|all, --reader-timeout-ms N
            --end eos|stop|hang             what comes after the last frame (eos)
            --drain-ms N                    wait for the readers after it (10000)";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The options of a command line: `--name value`, in any order.
struct Options(HashMap<String, String>);

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = HashMap::new();
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let name =
                name.strip_prefix("--").ok_or_else(|| format!("{name:?} is no option\n{USAGE}"))?.to_owned();
            let value = arguments.next().ok_or_else(|| format!("--{name} has no value"))?;
            if !USAGE.contains(&format!("--{name} ")) {
                return Err(format!("there is no --{name}\n{USAGE}").into());
            }
            options.insert(name, value);
        }
        Ok(Self(options))
    }

    fn get<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        Ok(Some(value.parse().map_err(|_| format!("--{name} {value} makes no sense"))?))
    }

    fn or<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        Ok(self.get(name)?.unwrap_or(default))
    }

    fn is_set(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value == "yes")
    }

    fn endpoint(&self) -> Result<Endpoint> {
        match (self.get::<String>("socket")?, self.get::<StreamName>("stream")?) {
            (Some(path), None) => Ok(Endpoint::at(path)?),
            (None, Some(name)) => Ok(Endpoint::of_stream(&name)?),
            _ => Err(format!("one of --stream and --socket is needed\n{USAGE}").into()),
        }
    }
}

/// The words that frame `sequence` consists of (splitmix64).
fn words(sequence: u64) -> impl Iterator<Item = u64> {
    let mut state = sequence.wrapping_mul(0xd134_2543_de82_ef95);
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    })
}

fn paint(bytes: &mut [u8], sequence: u64) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words(sequence)) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

fn is_painted(bytes: &[u8], sequence: u64) -> bool {
    bytes.chunks(8).zip(words(sequence)).all(|(chunk, word)| *chunk == word.to_le_bytes()[..chunk.len()])
}

/// FNV-1a over words of eight bytes: fast enough for frames in a build without optimisation.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3)
    })
}

fn print(line: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn read(options: &Options) -> Result<ExitCode> {
    let interrupt = Interrupt::new()?;
    let timeout = Duration::from_millis(options.or("timeout-ms", 5000)?);
    let config = reader::Config {
        name: "peer".into(),
        policy: options.or("policy", Policy::Latest)?,
        max_held: options.or("max-held", 4)?,
        connection_timeout: Some(timeout),
        reconnect: options.is_set("reconnect"),
        ..Default::default()
    };
    let mut reader = Reader::connect(&options.endpoint()?, config, &interrupt)?;
    let stats = reader.stats();
    print(&json!({ "event": "connected", "credit": stats.credit, "exporter": stats.exporter_pid }))?;

    let (limit, quiet) = (options.get::<u64>("frames")?, options.is_set("quiet"));
    let (sums, verify) = (options.is_set("sum"), options.is_set("verify"));
    let pause = Duration::from_millis(options.or("sleep-ms", 0)?);
    let (hold, hoard) = (options.or("hold", 0_usize)?, options.get::<usize>("hoard")?);
    let mut held = VecDeque::<Frame>::new();
    let (mut frames, mut lost, mut bad, mut expected) = (0_u64, 0_u64, 0_u64, None);
    let how = loop {
        if limit.is_some_and(|limit| frames >= limit) {
            break "frames".to_owned();
        }
        let item = match reader.next(None, &interrupt) {
            Ok(item) => item,
            Err(error) => break error.to_string(),
        };
        match item {
            None => {}
            Some(Item::Format(format)) => print(&json!({ "event": "format", "caps": format.caps }))?,
            Some(Item::Event(event)) => {
                print(&json!({ "event": "event", "kind": event.kind, "size": event.payload.len() }))?;
            }
            Some(Item::Reconnected) => {
                expected = None;
                print(&json!({ "event": "reconnected", "exporter": reader.stats().exporter_pid }))?;
            }
            Some(Item::EndOfStream) => break "eos".to_owned(),
            Some(Item::Frame(frame)) => {
                let descriptor = frame.descriptor();
                let sequence = descriptor.sequence;
                // SAFETY: the frame is leased for as long as it lives, and an exporter of ours keeps its promise.
                let bytes = unsafe { frame.as_slice() };
                let is_gap_counted =
                    expected.is_none_or(|expected| expected + frame.lost_before() == sequence);
                let is_good = is_gap_counted && (!verify || is_painted(bytes, sequence));
                expected = Some(sequence + 1);
                frames += 1;
                lost += frame.lost_before();
                bad += u64::from(!is_good);
                if !quiet {
                    print(&json!({
                        "event": "frame",
                        "sequence": sequence,
                        "sum": sums.then(|| format!("{:016x}", sum(bytes))),
                        "lost_before": frame.lost_before(),
                        "size": bytes.len(),
                        "pts": descriptor.pts,
                        "metadata": frame.metadata().len(),
                        "good": is_good,
                    }))?;
                }
                std::thread::sleep(pause);
                held.push_back(frame);
                if let Some(hoard) = hoard {
                    if held.len() >= hoard {
                        print(&json!({ "event": "hoarding", "frames": held.len() }))?;
                        loop {
                            std::thread::park();
                        }
                    }
                } else if held.len() > hold {
                    held.pop_front();
                }
            }
        }
    };
    let stats = reader.stats();
    print(&json!({
        "event": "summary",
        "frames": frames,
        "lost": lost,
        "bad": bad,
        "end": how,
        "held": stats.held,
    }))?;
    Ok(if bad > 0 {
        ExitCode::from(2)
    } else if how == "eos" || how == "frames" {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn export(options: &Options) -> Result<ExitCode> {
    let interrupt = Interrupt::new()?;
    let default = exporter::Config::default();
    let config = exporter::Config {
        max_slots: options.or("max-slots", default.max_slots)?,
        max_held_limit: options.or("max-held-limit", default.max_held_limit)?,
        lossless_readers: match options.or("lossless-readers", "own-uid".to_owned())?.as_str() {
            "none" => LosslessReaders::None,
            "own-uid" => LosslessReaders::OwnUid,
            "all" => LosslessReaders::All,
            other => return Err(format!("--lossless-readers {other} makes no sense").into()),
        },
        reader_timeout: options
            .get("reader-timeout-ms")?
            .map_or(default.reader_timeout, Duration::from_millis),
        ..Default::default()
    };
    let (frames, size) = (options.or("frames", 100_u64)?, options.or("size", 1_000_000_u64)?);
    let (fps, readers) = (options.or("fps", 0.0_f64)?, options.or("readers", 1_usize)?);
    let exporter = Exporter::bind(&options.endpoint()?, config, |notice| eprintln!("{notice:?}"))?;
    exporter.set_format(Format { caps: "application/x-frameshare-test".into(), video: None });
    print(&json!({ "event": "open" }))?;
    while exporter.reader_count() < readers {
        std::thread::sleep(Duration::from_millis(2));
    }
    let begin = Instant::now();
    for sequence in 1..=frames {
        if fps > 0.0 {
            let due = Duration::from_secs_f64((sequence - 1) as f64 / fps);
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        let slot = exporter.acquire(size, Purpose::Copy)?;
        let start = slot.as_ptr().ok_or("the slot is no host memory")?.as_ptr();
        // SAFETY: the slot is as long as was asked for, and until it is published nobody else has it.
        paint(unsafe { std::slice::from_raw_parts_mut(start, size as usize) }, sequence);
        let frame = exporter::Frame {
            slot: &slot,
            offset: 0,
            size,
            pts: None,
            dts: None,
            duration: None,
            media_offset: Some(sequence - 1),
            media_offset_end: Some(sequence),
            flags: 0,
            planes: &[],
            metadata: &[],
            keep: None,
            written: frameshare::fence::Written::Cpu,
        };
        let published = exporter.publish(frame, &interrupt)?;
        if published != sequence {
            return Err(format!("frame {sequence} was published as {published}").into());
        }
    }
    let elapsed = begin.elapsed();
    match options.or("end", "eos".to_owned())?.as_str() {
        "eos" => exporter.end_of_stream(),
        "hang" => loop {
            std::thread::park();
        },
        _ => {}
    }
    let drained = exporter.drain(Duration::from_millis(options.or("drain-ms", 10_000)?), &interrupt)?;
    let stats = exporter.stats();
    print(&json!({
        "event": "summary",
        "published": stats.published,
        "seconds": elapsed.as_secs_f64(),
        "slots": stats.slots,
        "drained": drained,
        "readers": stats.readers.iter().map(|reader| json!({
            "pid": reader.info.pid, "sent": reader.sent, "lost": reader.lost, "held": reader.held,
        })).collect::<Vec<_>>(),
    }))?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let role = arguments.next().unwrap_or_default();
    let done = Options::parse(arguments).and_then(|options| match role.as_str() {
        "read" => read(&options),
        "export" => export(&options),
        _ => Err(USAGE.into()),
    });
    done.unwrap_or_else(|error| {
        eprintln!("peer: {error}");
        ExitCode::FAILURE
    })
}
