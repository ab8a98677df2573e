// SPDX-License-Identifier: MIT OR Apache-2.0

//! Command-line options.

use crate::case::{Case, Size, Transport};
use anyhow::{Context, Result, bail};
use std::{path::PathBuf, time::Duration};

/// Text of the options.
pub const USAGE: &str = "frameshare-bench [OPTION VALUE]...
frameshare-bench --report FILE...      print the tables of earlier runs from their --raw files
frameshare-bench --slow-readers [N]    slow and paused readers of the engine, N rounds (5)
frameshare-bench --many [N]            many streams and many readers in one process, N rounds (5)
frameshare-bench --spin [N]            readers that sleep, spin when a frame is expected, and always spin,
                                       N rounds (3)
frameshare-bench --spin-of STREAM [PERCENT [N]]
                                       the same of a stream that exists, spin=PERCENT (10), N rounds (3)
frameshare-bench --live [N]            live sources, defaults of every sink beside sync=false, N rounds (3)
frameshare-bench --metadata [N]        frames with metadata, N rounds (5)
frameshare-bench --sharing CLIP...     one decoder shared, beside one in each reader: CLIP.h264 [--gpu]
                                       [--readers N,...] [--rounds N] [--seconds S] [--raw FILE]
frameshare-bench --cost-of-readers [N [READERS]]
                                       acquiring and publishing alone, 0 to 64 readers, N rounds (5)
frameshare-bench --cost-split [N [RATE]]
                                       parts of a frame's cost by controls, N rounds (5), RATE frames/s (60)
frameshare-bench --observers [N]       a lossless reader beside 1,000 observers a second, N rounds (5)

  --quick                  smoke test: one short round of frameshare alone
  --rounds N               number of rounds (5)
  --seconds S              seconds per measurement (1.5)
  --transports A,B,...     of lossless latest polling engine unixfd shm pipewire
                           (lossless,latest,unixfd,shm,pipewire), those that are installed
  --iceoryx2 PROGRAM       tests/rivals/iceoryx2, built: transports engine iceoryx2 lossless, 1920x1080,
                           1 4 8 readers
  --clips FOLDER           frames that NVIDIA's decoder makes of FOLDER/hd.h264 and uhd.h264: transports
                           gpu gpu-pool gpu-polling cudaipc decoder (and gpu-written: no stream waits;
                           copies into memory of one kind: gpu-vmm gpu-vmm-event gpu-mempool gpu-legacy),
                           1920x1080 and 3840x2160, 1 4 8 readers, 0 and 60 frames/s
  --kernel                 with --clips: readers launch a kernel that reads each frame, and latency ends
                           when the kernel is done (with decoder: in the exporter's own process)
  --sizes WxH,...          frames of NV12 (320x240,1920x1080,3840x2160)
  --readers N,...          readers at once (1,3)
  --rates N,...            frames per second, 0 for full speed (0,60,1000)
  --pool N                 buffers if a rival's sink brings no pool, 0 for no limit (16)
  --max-held N             frames that a reader of frameshare may hold (framesharesrc's default)
  --gstreamer-of TEXT      origin of GStreamer, for the report
  --raw FILE               write each run's figures to FILE, a line of JSON each";

/// Parsed options.
#[derive(Debug)]
pub struct Options {
    /// Number of rounds.
    pub rounds: usize,
    /// Time before each measurement.
    pub warm: Duration,
    /// Time of each measurement.
    pub measure: Duration,
    /// Compared transports.
    pub transports: Vec<Transport>,
    /// Measured cases.
    pub cases: Vec<Case>,
    /// Number of buffers of the rivals.
    pub pool: u32,
    /// Credit of frameshare's readers.
    pub max_held: Option<u32>,
    /// Origin of GStreamer, for the report.
    pub gstreamer_of: String,
    /// Folder of the clips, for transports with a decoder.
    pub clips: Option<PathBuf>,
    /// The program of `tests/rivals/iceoryx2`.
    pub iceoryx2: Option<PathBuf>,
    /// File for raw figures.
    pub raw: Option<PathBuf>,
}

/// Parses the command line.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    use Transport::{
        Cudaipc, Decoder, Engine, Gpu, GpuPolling, GpuPool, Iceoryx2, Latest, Lossless, Pipewire, Shm, Unixfd,
    };
    let mut options = Options {
        rounds: 5,
        warm: Duration::from_millis(400),
        measure: Duration::from_millis(1500),
        transports: vec![Lossless, Latest, Unixfd, Shm, Pipewire],
        cases: Vec::new(),
        pool: 16,
        max_held: None,
        gstreamer_of: "this machine's own".into(),
        clips: None,
        iceoryx2: None,
        raw: None,
    };
    let mut sizes: Vec<Size> = list("320x240,1920x1080,3840x2160")?;
    let mut readers: Vec<usize> = vec![1, 3];
    let mut rates: Vec<u32> = vec![0, 60, 1000];
    let mut by_kernel = false;
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{option} what?"));
        match option.as_str() {
            "--quick" => {
                options.rounds = 1;
                (options.warm, options.measure) = (Duration::from_millis(50), Duration::from_millis(200));
                options.transports = vec![Lossless, Latest];
                (sizes, readers, rates) = (list("320x240")?, vec![2], vec![0, 60]);
            }
            "--clips" => {
                options.clips = Some(value()?.into());
                options.transports = vec![Gpu, GpuPool, GpuPolling, Cudaipc, Decoder];
                (sizes, readers, rates) = (list("1920x1080,3840x2160")?, vec![1, 4, 8], vec![0, 60]);
            }
            "--iceoryx2" => {
                options.iceoryx2 = Some(value()?.into());
                options.transports = vec![Engine, Iceoryx2, Lossless];
                (sizes, readers) = (list("1920x1080")?, vec![1, 4, 8]);
            }
            "--kernel" => by_kernel = true,
            "--rounds" => options.rounds = value()?.parse()?,
            "--seconds" => options.measure = Duration::try_from_secs_f64(value()?.parse()?)?,
            "--transports" => options.transports = list(&value()?)?,
            "--sizes" => sizes = list(&value()?)?,
            "--readers" => readers = list(&value()?)?,
            "--rates" => rates = list(&value()?)?,
            "--pool" => options.pool = value()?.parse()?,
            "--max-held" => options.max_held = Some(value()?.parse()?),
            "--gstreamer-of" => options.gstreamer_of = value()?,
            "--raw" => options.raw = Some(value()?.into()),
            _ => bail!("{option} is no option\n{USAGE}"),
        }
    }
    if by_kernel && options.clips.is_none() {
        bail!("--kernel is for frames in GPU memory: say with --clips where the clips are");
    }
    for size in sizes {
        for &readers in &readers {
            options.cases.extend(rates.iter().map(|&rate| Case { size, readers, rate, by_kernel }));
        }
    }
    Ok(options)
}

/// Parses values between commas.
pub fn list<T>(text: &str) -> Result<Vec<T>>
where
    T: std::str::FromStr,
    anyhow::Error: From<T::Err>,
{
    text.split(',').map(|item| Ok(item.parse()?)).collect()
}
