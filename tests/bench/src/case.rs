//! What is compared, and in which situations.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

/// A way from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// `framesharesink` and `framesharesrc policy=lossless`.
    Lossless,
    /// `framesharesink` and `framesharesrc policy=latest`.
    Latest,
    /// As `Lossless`, with readers that poll for frames and never sleep: for fewer of them than there are cores.
    Polling,
    /// The engine alone, without GStreamer: tells how much of the cost is whose.
    Engine,
    /// `unixfdsink` and `unixfdsrc`.
    Unixfd,
    /// `shmsink` and `shmsrc`.
    Shm,
    /// Decoded frames through `framesharesink` and `framesharesrc policy=lossless`, as they choose by themselves.
    Gpu,
    /// The same, and the decoder copies into frameshare's pool.
    GpuPool,
    /// As `Gpu`, with readers that poll for frames and never sleep.
    GpuPolling,
    /// As `Gpu`, with readers that are given frames that are written: no stream of theirs waits.
    GpuWritten,
    /// Decoded frames through `cudaipcsink` and `cudaipcsrc io-mode=import`.
    Cudaipc,
    /// Decoded frames that go nowhere: what the decoder itself costs.
    Decoder,
}

impl Transport {
    /// As it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lossless => "frameshare",
            Self::Latest => "frameshare, latest",
            Self::Polling | Self::GpuPolling => "frameshare, polling",
            Self::Engine => "engine alone",
            Self::Unixfd => "unixfd",
            Self::Shm => "shm",
            Self::Gpu => "frameshare",
            Self::GpuPool => "frameshare, pool",
            Self::GpuWritten => "frameshare, gpu-wait=false",
            Self::Cudaipc => "cudaipc",
            Self::Decoder => "decoder alone",
        }
    }

    /// Whether its frames come out of a decoder, in GPU memory.
    pub fn decodes(self) -> bool {
        use Transport::{Cudaipc, Decoder, Gpu, GpuPolling, GpuPool, GpuWritten};
        matches!(self, Gpu | GpuPool | GpuPolling | GpuWritten | Cudaipc | Decoder)
    }

    /// For how long, in ns, its readers poll for a frame before they sleep: longer than any takes to come, or not at all.
    pub fn busy_poll(self) -> u64 {
        if matches!(self, Self::Polling | Self::GpuPolling) { 1_000_000_000 } else { 0 }
    }

    /// What `framesharesrc` is told of `gpu-wait`.
    pub fn gpu_wait(self) -> &'static str {
        if self == Self::GpuWritten { "false" } else { "auto" }
    }

    /// Whether anybody reads them.
    pub fn has_readers(self) -> bool {
        self != Self::Decoder
    }

    /// An element that it needs from GStreamer's own plugins.
    pub fn element(self) -> Option<&'static str> {
        match self {
            Self::Unixfd => Some("unixfdsink"),
            Self::Shm => Some("shmsink"),
            Self::Cudaipc => Some("cudaipcsink"),
            Self::Decoder => Some("nvh264dec"),
            _ => None,
        }
    }
}

impl FromStr for Transport {
    type Err = anyhow::Error;
    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "lossless" => Self::Lossless,
            "latest" => Self::Latest,
            "polling" => Self::Polling,
            "engine" => Self::Engine,
            "unixfd" => Self::Unixfd,
            "shm" => Self::Shm,
            "gpu" => Self::Gpu,
            "gpu-pool" => Self::GpuPool,
            "gpu-polling" => Self::GpuPolling,
            "gpu-written" => Self::GpuWritten,
            "cudaipc" => Self::Cudaipc,
            "decoder" => Self::Decoder,
            _ => bail!(
                "there is no transport {name}: they are lossless, latest, polling, engine, unixfd, shm, gpu, \
                 gpu-pool, gpu-polling, gpu-written, cudaipc, decoder"
            ),
        })
    }
}

/// Frames of NV12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
}

impl Size {
    /// The layout of such a frame.
    pub fn info(self) -> Result<gst_video::VideoInfo> {
        gst_video::VideoInfo::builder(gst_video::VideoFormat::Nv12, self.width, self.height)
            .fps((1000, 1))
            .build()
            .context("no such frame")
    }

    /// What its film is called in the folder that `tests/gpu/make-runtime.sh` makes.
    pub fn film(self) -> Result<&'static str> {
        match (self.width, self.height) {
            (1920, 1080) => Ok("hd.h264"),
            (3840, 2160) => Ok("uhd.h264"),
            _ => bail!("there is no film of {self}: they are of 1920x1080 and 3840x2160"),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

impl FromStr for Size {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let (width, height) = text.split_once('x').with_context(|| format!("{text} is not like 320x240"))?;
        Ok(Self { width: width.parse()?, height: height.parse()? })
    }
}

/// One situation in which all transports are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Of the frames.
    pub size: Size,
    /// How many processes read.
    pub readers: usize,
    /// Frames a second; 0 is as fast as it goes.
    pub rate: u32,
    /// Readers have a kernel read each frame, and have it when that is done.
    #[serde(default)]
    pub by_kernel: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let readers = if self.readers == 1 { "reader" } else { "readers" };
        write!(f, "{}, {} {readers}, ", self.size, self.readers)?;
        match self.rate {
            0 => write!(f, "free-running")?,
            rate => write!(f, "{rate} frames/s")?,
        }
        if self.by_kernel { write!(f, ", by a kernel") } else { Ok(()) }
    }
}

/// What a role's process needs to know; travels as its argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// How frames go.
    pub transport: Transport,
    /// The situation.
    pub case: Case,
    /// The stream's socket.
    pub socket: String,
    /// How long to run before measuring.
    pub warm: Duration,
    /// How long to measure.
    pub measure: Duration,
    /// How many buffers go round where the sink brings no pool; 0 is as many as it takes.
    pub pool: u32,
    /// What `framesharesrc` shall ask to hold; none is its default.
    pub max_held: Option<u32>,
    /// The H.264 film of such frames, for transports that decode; played again and again.
    pub film: Option<PathBuf>,
}

impl Run {
    /// Whether the exporter's own process reads the frames, for want of another: until a kernel has read one takes time
    /// where nobody hands it on, too.
    pub fn reads_itself(&self) -> bool {
        self.case.by_kernel && !self.transport.has_readers()
    }
}
