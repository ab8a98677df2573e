// SPDX-License-Identifier: MIT OR Apache-2.0

//! Compares the output of decoders and muxers behind `framesharesrc` with that behind a `queue`.
//! One encoder feeds both; programs are lines of `gst-launch-1.0`.

use frameshare_tests::{content::checksum, random::Random};
use gst::prelude::*;
use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

const PATIENCE: gst::ClockTime = gst::ClockTime::from_seconds(30);

/// A source and an encoder, and what can follow them: a muxer and the demuxer of its files, or a
/// decoder and nothing.
struct Codec {
    source: &'static str,
    encoders: &'static [&'static str],
    sinks: &'static [(&'static str, &'static str)],
}

const VIDEO: &str = "videotestsrc name=a pattern=ball";
const SOUND: &str = "audiotestsrc name=a wave=ticks samplesperbuffer=480";
const CODECS: &[Codec] = &[
    Codec {
        source: VIDEO,
        encoders: &[
            "x264enc speed-preset=ultrafast bframes=0 key-int-max=10 ! h264parse",
            "x264enc speed-preset=superfast bframes=2 b-adapt=false key-int-max=12 ! h264parse",
            "x264enc speed-preset=superfast bframes=3 b-pyramid=true key-int-max=15 ! h264parse",
            "x264enc speed-preset=superfast bframes=2 key-int-max=9 option-string=open-gop=1 ! h264parse",
            "x264enc tune=zerolatency key-int-max=7 ! video/x-h264,stream-format=byte-stream ! \
             h264parse config-interval=-1",
            "x264enc speed-preset=ultrafast key-int-max=1 ! h264parse",
        ],
        sinks: &[
            ("h264parse ! mp4mux", "qtdemux"),
            ("h264parse ! qtmux", "qtdemux"),
            ("h264parse ! matroskamux", "matroskademux"),
            ("h264parse ! mpegtsmux", "tsdemux"),
            ("h264parse ! flvmux", "flvdemux"),
            ("h264parse ! avdec_h264 max-threads=1 ! videoconvert ! video/x-raw,format=I420", ""),
        ],
    },
    Codec {
        source: VIDEO,
        encoders: &["vp8enc deadline=1 keyframe-max-dist=8"],
        sinks: &[("matroskamux", "matroskademux"), ("webmmux", "matroskademux"), ("vp8dec", "")],
    },
    Codec {
        source: VIDEO,
        encoders: &["jpegenc"],
        sinks: &[
            ("matroskamux", "matroskademux"),
            ("jpegparse ! qtmux", "qtdemux"),
            ("jpegparse ! avimux", "avidemux"),
            ("jpegdec", ""),
        ],
    },
    Codec {
        source: VIDEO,
        encoders: &["identity"],
        sinks: &[
            ("matroskamux", "matroskademux"),
            ("x264enc speed-preset=ultrafast bframes=2 ! mp4mux", "qtdemux"),
            ("videorate ! video/x-raw,framerate=50/1 ! jpegenc ! matroskamux", "matroskademux"),
            ("videoconvert ! video/x-raw,format=RGB", ""),
        ],
    },
    // A muxer with pads for several kinds has to be told which one: a parser does that.
    Codec {
        source: SOUND,
        encoders: &["opusenc"],
        sinks: &[("opusparse ! oggmux", "oggdemux"), ("opusparse ! matroskamux", "matroskademux")],
    },
    Codec {
        source: SOUND,
        encoders: &["lamemp3enc ! mpegaudioparse"],
        sinks: &[
            ("mpegaudioparse ! matroskamux", "matroskademux"),
            ("mpegaudioparse ! mpegtsmux", "tsdemux"),
        ],
    },
    Codec {
        source: SOUND,
        encoders: &["identity"],
        sinks: &[
            ("audioconvert ! audio/x-raw,format=S16LE ! matroskamux", "matroskademux"),
            ("audioresample ! audio/x-raw,rate=16000 ! wavenc", "wavparse"),
            ("audioconvert ! audio/x-raw,format=F32LE", ""),
        ],
    },
    Codec {
        source: SOUND,
        encoders: &["avenc_aac ! aacparse"],
        sinks: &[
            ("aacparse ! mp4mux", "qtdemux"),
            ("aacparse ! mpegtsmux", "tsdemux"),
            ("aacparse ! flvmux", "flvdemux"),
            ("avdec_aac", ""),
        ],
    },
];

/// The two pipelines of a program, with places for paths.
#[derive(Clone)]
pub struct Launch {
    buffers: u32,
    is_live: bool,
    /// The reader joins this many buffers after the start; with 0 the exporter waits for it.
    join_after: u32,
    reads_live: bool,
    codec: usize,
    encoder: usize,
    sink: usize,
}

impl Launch {
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut below = |limit: usize| random.below(limit as u64) as usize;
        // The first one has most faults to find.
        let codec = if below(2) == 0 { 0 } else { below(CODECS.len()) };
        let is_live = below(2) == 0;
        let mut launch = Self {
            buffers: 30 + below(60) as u32,
            is_live,
            join_after: if is_live && below(3) > 0 { 1 + below(20) as u32 } else { 0 },
            reads_live: below(2) == 0,
            codec,
            encoder: below(CODECS[codec].encoders.len()),
            sink: below(CODECS[codec].sinks.len()),
        };
        let (elements, demuxer) = CODECS[codec].sinks[launch.sink];
        let is_opus = elements.contains("opus");
        let is_open = CODECS[codec].encoders[launch.encoder].contains("open-gop");
        // The output for a part of the stream is no part of that for the whole: of encoders and
        // frame rates, of decoders in the middle of open GOPs, and of Opus without its begin.
        if elements.contains("enc ")
            || elements.contains("resample")
            || (is_open && demuxer.is_empty())
            || is_opus
        {
            launch.join_after = 0;
        }
        // One fills the time before the first picture, the other makes a time before 0 of it.
        let depends_on_start = is_opus || elements.contains("videorate");
        launch.reads_live &= !depends_on_start;
        launch.is_live &= !depends_on_start;
        launch
    }

    fn exporter(&self, folder: &Path) -> String {
        let codec = &CODECS[self.codec];
        let caps = if codec.source == VIDEO {
            "video/x-raw,format=I420,width=64,height=48,framerate=100/1"
        } else {
            "audio/x-raw,rate=48000,channels=2"
        };
        let folder = folder.display();
        format!(
            "{} num-buffers={} is-live={} ! {caps} ! {} ! tee name=t \
             t. ! queue max-size-time=0 max-size-buffers=0 max-size-bytes=0 ! {} \
             t. ! queue max-size-time=0 max-size-buffers=0 max-size-bytes=0 ! framesharesink name=s \
             encoded=true sync={} wait-for-connection={} socket-path={folder}/s",
            codec.source,
            self.buffers,
            self.is_live,
            codec.encoders[self.encoder],
            self.tail("queue", &folder),
            self.is_live,
            self.join_after == 0
        )
    }

    fn reader(&self, folder: &Path) -> String {
        let folder = folder.display();
        format!(
            "framesharesrc socket-path={folder}/s policy=lossless is-live={} connection-timeout=20000000000 ! {}",
            self.reads_live,
            self.tail("frameshare", &folder)
        )
    }

    fn tail(&self, name: &str, folder: &impl fmt::Display) -> String {
        let (elements, demuxer) = CODECS[self.codec].sinks[self.sink];
        if demuxer.is_empty() {
            format!("{elements} ! fakesink name=end_{name} sync=false async=false")
        } else {
            format!("{elements} ! filesink async=false location={folder}/{name}")
        }
    }

    fn demuxer(&self) -> Option<&'static str> {
        Some(CODECS[self.codec].sinks[self.sink].1).filter(|demuxer| !demuxer.is_empty())
    }

    /// Simpler programs, to be tried if this one fails.
    pub fn simpler(&self) -> Vec<Self> {
        let fewer = Self { buffers: self.buffers / 2, ..self.clone() };
        let earlier = Self { join_after: self.join_after / 2, ..self.clone() };
        let offline = Self { is_live: false, join_after: 0, ..self.clone() };
        let mut all = Vec::new();
        if fewer.buffers >= 4 {
            all.push(fewer);
        }
        if self.join_after > 0 {
            all.push(earlier);
        }
        if self.is_live {
            all.push(offline);
        }
        all
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = Path::new("/tmp/queue");
        writeln!(f, "gst-launch-1.0 -e {}", self.exporter(folder))?;
        write!(f, "gst-launch-1.0 -e {}", self.reader(folder))?;
        if self.join_after > 0 { write!(f, "  # after {} buffers", self.join_after) } else { Ok(()) }
    }
}

/// A unit of the result: times in ns, size and checksum.
#[derive(Clone, Debug, PartialEq)]
struct Unit {
    pts: Option<u64>,
    dts: Option<u64>,
    is_delta: bool,
    size: usize,
    checksum: String,
}

fn unit(buffer: &gst::Buffer) -> Unit {
    let ns = |time: Option<gst::ClockTime>| time.map(gst::ClockTime::nseconds);
    let bytes = buffer.map_readable().unwrap();
    Unit {
        pts: ns(buffer.pts()),
        dts: ns(buffer.dts()),
        is_delta: buffer.flags().contains(gst::BufferFlags::DELTA_UNIT),
        size: bytes.len(),
        checksum: checksum(&bytes),
    }
}

/// Records what a sink gets.
fn record(sink: &gst::Element) -> Arc<Mutex<Vec<Unit>>> {
    let units = Arc::<Mutex<Vec<Unit>>>::default();
    let record = units.clone();
    sink.static_pad("sink").unwrap().add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        record.lock().unwrap().extend(info.buffer().map(|buffer| unit(&buffer.to_owned())));
        gst::PadProbeReturn::Ok
    });
    units
}

fn launch(text: &str) -> Result<gst::Pipeline, String> {
    let pipeline = gst::parse::launch(text).map_err(|error| format!("{error}: {text}"))?;
    pipeline.downcast().map_err(|_| text.to_owned())
}

/// Waits for the end of a pipeline.
fn wait(pipeline: &gst::Pipeline, name: &str) -> Result<(), String> {
    let bus = pipeline.bus().unwrap();
    let types = [gst::MessageType::Eos, gst::MessageType::Error];
    match bus.timed_pop_filtered(PATIENCE, &types) {
        Some(message) => match message.view() {
            gst::MessageView::Error(error) => Err(format!("{name}: {} {:?}", error.error(), error.debug())),
            _ => Ok(()),
        },
        None => Err(format!("{name}: no end within {PATIENCE}")),
    }
}

/// Stops a pipeline however its scope ends.
struct Stopped(gst::Pipeline);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

fn demux(file: &Path, demuxer: &str) -> Result<Vec<Unit>, String> {
    let text = format!("filesrc location={} ! {demuxer} ! fakesink name=end sync=false", file.display());
    let pipeline = Stopped(launch(&text)?);
    let units = record(&pipeline.0.by_name("end").unwrap());
    pipeline.0.set_state(gst::State::Playing).map_err(|error| error.to_string())?;
    wait(&pipeline.0, demuxer)?;
    let units = units.lock().unwrap().clone();
    Ok(units)
}

/// Returns what is wrong with the outcome of a program.
pub fn faults(program: &Launch) -> Vec<String> {
    crate::init();
    match run(program) {
        Ok((queue, frameshare)) => differences(program, &queue, &frameshare),
        Err(why) => vec![why],
    }
}

fn run(program: &Launch) -> Result<(Vec<Unit>, Vec<Unit>), String> {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Stopped(launch(&program.exporter(folder.path()))?);
    let reader = Stopped(launch(&program.reader(folder.path()))?);
    let ends = [exporter.0.by_name("end_queue"), reader.0.by_name("end_frameshare")];
    let records = ends.map(|end| end.map(|end| record(&end)));
    let play = |pipeline: &gst::Pipeline| {
        pipeline.set_state(gst::State::Playing).map(drop).map_err(|error| error.to_string())
    };
    if program.join_after == 0 {
        play(&reader.0)?;
        play(&exporter.0)?;
    } else {
        play(&exporter.0)?;
        std::thread::sleep(Duration::from_millis(10) * program.join_after);
        play(&reader.0)?;
    }
    wait(&reader.0, "reader")?;
    wait(&exporter.0, "exporter")?;
    let files = ["queue", "frameshare"].map(|name| folder.path().join(name));
    match (program.demuxer(), records) {
        (Some(demuxer), _) => Ok((demux(&files[0], demuxer)?, demux(&files[1], demuxer)?)),
        (None, [Some(queue), Some(frameshare)]) => {
            let units = (queue.lock().unwrap().clone(), frameshare.lock().unwrap().clone());
            Ok(units)
        }
        _ => Err("no result".into()),
    }
}

/// Rounding of times in files, in ns: MPEG-TS has 90 kHz, Matroska and FLV milliseconds.
const ROUNDING: u64 = 2_000_000;
/// Number of units at the begin of an FLV file that have other distances: it has no times before
/// 0, at which units before B-frames are decoded.
const CLAMPED_BY_FLV: usize = 6;

fn differences(program: &Launch, queue: &[Unit], frameshare: &[Unit]) -> Vec<String> {
    let mut found = Vec::new();
    let Some(first) = frameshare.first() else { return vec![format!("nothing of {} units", queue.len())] };
    if program.join_after == 0 && queue.len() != frameshare.len() {
        found.push(format!("{} units instead of {}", frameshare.len(), queue.len()));
    }
    // A late reader begins at a key unit; from there on it gets all.
    let from = queue.len().saturating_sub(frameshare.len());
    let same = |one: &Unit, other: &Unit| (one.size, &one.checksum) == (other.size, &other.checksum);
    if first.is_delta {
        found.push("the first unit is none of a key".into());
    }
    let clamped = if program.demuxer() == Some("flvdemux") { CLAMPED_BY_FLV } else { 0 };
    let mut lags: [Option<i128>; 2] = [None, None];
    for (number, (wanted, got)) in queue[from..].iter().zip(frameshare).enumerate() {
        // Headers may be of the first unit alone.
        if !same(wanted, got) && number > 0 {
            found.push(format!("unit {number}: {got:?} instead of {wanted:?}"));
        }
        if wanted.is_delta != got.is_delta {
            found.push(format!("unit {number}: delta {} instead of {}", got.is_delta, wanted.is_delta));
        }
        if number < clamped {
            continue;
        }
        let times = [(wanted.pts, got.pts), (wanted.dts, got.dts)];
        for (lag, (wanted, got)) in lags.iter_mut().zip(times) {
            match (wanted, got) {
                (Some(wanted), Some(got)) => {
                    let now = i128::from(got) - i128::from(wanted);
                    let known = *lag.get_or_insert(now);
                    if known.abs_diff(now) > u128::from(ROUNDING) {
                        let moved = crate::make::ms(now - known);
                        found.push(format!("unit {number}: moved by {moved}, {got} instead of {wanted}"));
                    }
                }
                (None, None) => {}
                (wanted, got) => found.push(format!("unit {number}: {got:?} instead of {wanted:?}")),
            }
        }
    }
    found.truncate(6);
    found
}
