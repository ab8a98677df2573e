// SPDX-License-Identifier: MIT OR Apache-2.0

//! Compared transports, and the cases in which they are measured.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

/// A transport of frames between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// `framesharesink` and `framesharesrc policy=lossless`.
    Lossless,
    /// `framesharesink` and `framesharesrc policy=latest`.
    Latest,
    /// As `Lossless`, with readers that poll and never sleep. Needs more cores than readers.
    Polling,
    /// The engine alone, without GStreamer, to tell its share of the cost.
    Engine,
    /// `unixfdsink` and `unixfdsrc`.
    Unixfd,
    /// `shmsink` and `shmsrc`.
    Shm,
    /// `pipewiresink mode=provide` and `pipewiresrc`, linked by `pw-link`.
    Pipewire,
    /// iceoryx2's publish-subscribe, with its events to wake readers: another program's roles.
    Iceoryx2,
    /// Decoded frames through `framesharesink` and `framesharesrc policy=lossless`, with default
    /// settings.
    Gpu,
    /// As `Gpu`, with a decoder that copies into frameshare's pool.
    GpuPool,
    /// As `Gpu`, with readers that poll and never sleep.
    GpuPolling,
    /// As `Gpu`, with event fences that the readers did not ask for: they receive frames after the
    /// ready fence is signaled, and no stream waits.
    GpuWritten,
    /// As `GpuPool`, with memory of kind `vmm` and timeline fences.
    GpuVmm,
    /// As `GpuPool`, with memory of kind `vmm` and event fences, which streams wait for.
    GpuVmmEvent,
    /// As `GpuPool`, with memory of kind `pool`.
    GpuMempool,
    /// As `GpuPool`, with memory of kind `legacy`.
    GpuLegacy,
    /// Decoded frames through `cudaipcsink` and `cudaipcsrc io-mode=import`.
    Cudaipc,
    /// Decoded frames without a transport: the cost of the decoder itself.
    Decoder,
}

impl Transport {
    /// Name in options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lossless => "frameshare",
            Self::Latest => "frameshare, latest",
            Self::Polling | Self::GpuPolling => "frameshare, polling",
            Self::Engine => "engine alone",
            Self::Unixfd => "unixfd",
            Self::Shm => "shm",
            Self::Pipewire => "pipewire",
            Self::Iceoryx2 => "iceoryx2",
            Self::Gpu => "frameshare",
            Self::GpuPool => "frameshare, pool",
            Self::GpuWritten => "frameshare, written frames",
            Self::GpuVmm => "frameshare, vmm",
            Self::GpuVmmEvent => "frameshare, vmm, event",
            Self::GpuMempool => "frameshare, memory=pool",
            Self::GpuLegacy => "frameshare, legacy",
            Self::Cudaipc => "cudaipc",
            Self::Decoder => "decoder alone",
        }
    }

    /// Whether frames come from a decoder, in GPU memory.
    pub fn decodes(self) -> bool {
        use Transport::{Cudaipc, Decoder, Gpu, GpuPolling, GpuWritten};
        self.copies() || matches!(self, Gpu | GpuPolling | GpuWritten | Cudaipc | Decoder)
    }

    /// Whether the decoder copies its frames into frameshare's pool.
    pub fn copies(self) -> bool {
        use Transport::{GpuLegacy, GpuMempool, GpuPool, GpuVmm, GpuVmmEvent};
        matches!(self, GpuPool | GpuVmm | GpuVmmEvent | GpuMempool | GpuLegacy)
    }

    /// Value of the `spin` property of `framesharesrc`.
    pub fn spin(self) -> u32 {
        if matches!(self, Self::Polling | Self::GpuPolling) { 100 } else { 0 }
    }

    /// Value of the `fence` property of `framesharesrc`.
    pub fn fence(self) -> &'static str {
        if self == Self::GpuVmmEvent { "event" } else { "auto" }
    }

    /// Whether the transport has readers.
    pub fn has_readers(self) -> bool {
        self != Self::Decoder
    }

    /// Whether it hands frames on as fast as it can. PipeWire's graph stops after some 10 frames
    /// without a pace, between two `gst-launch-1.0` too.
    pub fn runs_free(self) -> bool {
        self != Self::Pipewire
    }

    /// Whether it appears as a file at the path of its socket.
    pub fn has_socket(self) -> bool {
        !matches!(self, Self::Decoder | Self::Pipewire | Self::Iceoryx2)
    }

    /// Whether it is not frameshare.
    pub fn is_rival(self) -> bool {
        self == Self::Iceoryx2 || self.element().is_some()
    }

    /// Whether GStreamer has the element that it needs.
    pub fn is_installed(self) -> bool {
        self.element().is_none_or(|element| gst::ElementFactory::find(element).is_some())
    }

    /// An element that it needs from GStreamer's own plugins.
    pub fn element(self) -> Option<&'static str> {
        match self {
            Self::Unixfd => Some("unixfdsink"),
            Self::Shm => Some("shmsink"),
            Self::Pipewire => Some("pipewiresink"),
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
            "pipewire" => Self::Pipewire,
            "iceoryx2" => Self::Iceoryx2,
            "gpu" => Self::Gpu,
            "gpu-pool" => Self::GpuPool,
            "gpu-polling" => Self::GpuPolling,
            "gpu-written" => Self::GpuWritten,
            "gpu-vmm" => Self::GpuVmm,
            "gpu-vmm-event" => Self::GpuVmmEvent,
            "gpu-mempool" => Self::GpuMempool,
            "gpu-legacy" => Self::GpuLegacy,
            "cudaipc" => Self::Cudaipc,
            "decoder" => Self::Decoder,
            _ => bail!(
                "there is no transport {name}: they are lossless, latest, polling, engine, unixfd, shm, \
                 pipewire, iceoryx2, gpu, gpu-pool, gpu-polling, gpu-written, gpu-vmm, gpu-vmm-event, \
                 gpu-mempool, gpu-legacy, cudaipc, decoder"
            ),
        })
    }
}

/// Frame size, format NV12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
}

impl Size {
    /// Layout of a frame.
    pub fn info(self) -> Result<gst_video::VideoInfo> {
        gst_video::VideoInfo::builder(gst_video::VideoFormat::Nv12, self.width, self.height)
            .fps((1000, 1))
            .build()
            .context("no such frame")
    }

    /// File name of the clip of this size in the folder that `tests/gpu/make-runtime.sh` makes.
    pub fn clip(self) -> Result<&'static str> {
        match (self.width, self.height) {
            (1920, 1080) => Ok("hd.h264"),
            (3840, 2160) => Ok("uhd.h264"),
            _ => bail!("there is no clip of {self}: they are of 1920x1080 and 3840x2160"),
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

/// One case, in which all transports are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Frame size.
    pub size: Size,
    /// Number of reader processes.
    pub readers: usize,
    /// Frames per second; 0 for full speed.
    pub rate: u32,
    /// Readers launch a kernel that reads each frame, and latency ends when the kernel is done.
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

/// Parameters of one run, passed to its processes as an argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The transport.
    pub transport: Transport,
    /// The case.
    pub case: Case,
    /// Path of the stream's socket.
    pub socket: String,
    /// Time before the measurement.
    pub warm: Duration,
    /// Time of the measurement.
    pub measure: Duration,
    /// Number of buffers if the sink has no pool of its own; 0 for no limit.
    pub pool: u32,
    /// The `max-held` property of `framesharesrc`; its default if `None`.
    pub max_held: Option<u32>,
    /// Process of the transport's daemon.
    pub daemon: Option<u32>,
    /// Program of the roles; this one if `None`.
    pub program: Option<PathBuf>,
    /// H.264 clip of this frame size for transports with a decoder, played in a loop.
    pub clip: Option<PathBuf>,
    /// The sink of a live source; `None` for the source of the comparison.
    pub live: Option<Live>,
}

/// Settings of the sink behind a live source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Live {
    /// Those that it has by itself.
    Defaults,
    /// With `sync=false`.
    Unsynchronized,
}

impl Run {
    /// Whether latencies have a meaning: frames queue up at full speed, unless a decoder paces
    /// them.
    pub fn keeps_latencies(&self) -> bool {
        self.case.rate > 0 || self.transport.decodes()
    }

    /// Whether the exporter's own process reads the frames, because the transport has no readers. A
    /// kernel needs time to read a frame there too.
    pub fn reads_itself(&self) -> bool {
        self.case.by_kernel && !self.transport.has_readers()
    }
}
