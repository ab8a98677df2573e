// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of `framesharesrc`.

use crate::fence::FrameshareFence;
use frameshare::{Endpoint, MAX_CREDIT, Policy, StreamName};
use glib::prelude::*;
use std::{sync::LazyLock, time::Duration};

/// Handling of frames that are not taken in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareSrcPolicy")]
#[non_exhaustive]
pub enum FrameshareSrcPolicy {
    /// The oldest frame is lost, and the exporter continues.
    #[default]
    #[enum_value(name = "Drop the oldest frame, never block the exporter", nick = "latest")]
    Latest,
    /// The exporter waits.
    #[enum_value(name = "Lose no frame, block the exporter", nick = "lossless")]
    Lossless,
}

impl From<FrameshareSrcPolicy> for Policy {
    fn from(policy: FrameshareSrcPolicy) -> Self {
        match policy {
            FrameshareSrcPolicy::Latest => Self::Latest,
            FrameshareSrcPolicy::Lossless => Self::Lossless,
        }
    }
}

/// Speculative delivery: whether frames are pushed before the GPU has written them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareSrcGpuWait")]
#[non_exhaustive]
pub enum FrameshareSrcGpuWait {
    /// With timeline values only: their waiters can be released after a crash of the exporter.
    #[default]
    #[enum_value(name = "With timeline fences only", nick = "auto")]
    Auto,
    /// Always; streams wait for the frames.
    #[enum_value(name = "Push frames at once, let streams wait for them", nick = "true")]
    True,
    /// Never.
    #[enum_value(name = "Push frames after they are written", nick = "false")]
    False,
}

impl FrameshareSrcGpuWait {
    /// Returns the explicit setting; none for `auto`.
    pub(super) fn wanted(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::True => Some(true),
            Self::False => Some(false),
        }
    }
}

/// Frames whose rows are not where the caps alone would put them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareSrcVideoMeta")]
#[non_exhaustive]
pub enum FrameshareSrcVideoMeta {
    /// Copied unless downstream says that it supports GstVideoMeta.
    #[default]
    #[enum_value(name = "Copy them unless downstream announces GstVideoMeta", nick = "auto")]
    Auto,
    /// Never copied for that: the application reads GstVideoMeta.
    #[enum_value(name = "Push them in place: the application reads GstVideoMeta", nick = "always")]
    Always,
}

/// Reaction to the loss of the exporter: its crash, or a stop without an end of stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareSrcOnDisconnect")]
#[non_exhaustive]
pub enum FrameshareSrcOnDisconnect {
    /// The pipeline gets an error.
    #[default]
    #[enum_value(name = "Post an error", nick = "error")]
    Error,
    /// The stream ends, so that muxers complete their files.
    #[enum_value(name = "Post a warning and end the stream (EOS)", nick = "eos")]
    Eos,
    /// The source connects to the next exporter.
    #[enum_value(name = "Wait for the next exporter, up to connection-timeout", nick = "wait")]
    Wait,
}

pub(super) const STREAM: &str = "stream";
pub(super) const SOCKET_PATH: &str = "socket-path";
pub(super) const POLICY: &str = "policy";
pub(super) const MAX_HELD: &str = "max-held";
pub(super) const MAX_QUEUED: &str = "max-queued";
pub(super) const LATENCY: &str = "latency";
pub(super) const SPIN: &str = "spin";
pub(super) const CONNECTION_TIMEOUT: &str = "connection-timeout";
pub(super) const ON_DISCONNECT: &str = "on-disconnect";
pub(super) const EXPORTER_UID: &str = "exporter-uid";
pub(super) const FENCE: &str = "fence";
pub(super) const FENCE_TIMEOUT: &str = "fence-timeout";
pub(super) const GPU_WAIT: &str = "gpu-wait";
pub(super) const CUDA_DEVICE_ID: &str = "cuda-device-id";
pub(super) const VIDEO_META: &str = "video-meta";
pub(super) const DMA_BUFS: &str = "dma-bufs";
pub(super) const MAX_METADATA_BYTES: &str = "max-metadata-bytes";
pub(super) const IS_LIVE: &str = "is-live";
pub(super) const RESEND_LAST: &str = "resend-last";
pub(super) const STATS: &str = "stats";

/// The values of the properties.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    stream: Option<String>,
    socket_path: Option<String>,
    pub policy: FrameshareSrcPolicy,
    pub max_held: u32,
    pub max_queued: u32,
    pub latency: gst::ClockTime,
    pub spin: u32,
    /// In ns; negative: no limit.
    connection_timeout: i64,
    pub on_disconnect: FrameshareSrcOnDisconnect,
    /// Negative: decided by the permissions of the folders on the path to the socket.
    exporter_uid: i64,
    pub fence: FrameshareFence,
    /// In ns.
    fence_timeout: u64,
    pub gpu_wait: FrameshareSrcGpuWait,
    /// Negative: any.
    cuda_device_id: i32,
    pub video_meta: FrameshareSrcVideoMeta,
    pub dma_bufs: bool,
    pub max_metadata_bytes: u64,
    pub is_live: bool,
    /// In ns; 0: never.
    resend_last: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream: None,
            socket_path: None,
            policy: FrameshareSrcPolicy::default(),
            max_held: 0,
            max_queued: 0,
            latency: gst::ClockTime::from_mseconds(20),
            spin: 0,
            connection_timeout: 5_000_000_000,
            on_disconnect: FrameshareSrcOnDisconnect::default(),
            exporter_uid: -1,
            fence: FrameshareFence::default(),
            fence_timeout: 2_000_000_000,
            gpu_wait: FrameshareSrcGpuWait::default(),
            cuda_device_id: -1,
            video_meta: FrameshareSrcVideoMeta::default(),
            dma_bufs: true,
            max_metadata_bytes: frameshare::reader::MAX_METADATA_BYTES,
            is_live: true,
            resend_last: 0,
        }
    }
}

impl Settings {
    /// Returns the stream's endpoint.
    ///
    /// # Errors
    ///
    /// The error names the property to set.
    pub fn endpoint(&self) -> Result<Endpoint, String> {
        match (&self.socket_path, &self.stream) {
            (Some(path), _) => Endpoint::at(path).map_err(|error| error.to_string()),
            (None, Some(stream)) => {
                let name = stream.parse::<StreamName>().map_err(|error| error.to_string())?;
                let endpoint = match self.exporter_uid() {
                    Some(user) => Endpoint::of_user(&name, user),
                    None => Endpoint::of_stream(&name),
                };
                endpoint.map_err(|error| error.to_string())
            }
            (None, None) => Err(format!("set {STREAM} to the stream's name, or {SOCKET_PATH}")),
        }
    }

    /// Returns the time to wait for the exporter; none: no limit.
    pub fn connection_timeout(&self) -> Option<Duration> {
        u64::try_from(self.connection_timeout).ok().map(Duration::from_nanos)
    }

    /// Returns the required user of the exporter; none: decided by the permissions of the folders
    /// on the path to the socket.
    pub fn exporter_uid(&self) -> Option<u32> {
        u32::try_from(self.exporter_uid).ok()
    }

    /// Returns the maximum time of GPU work on a published frame.
    pub fn fence_timeout(&self) -> Duration {
        Duration::from_nanos(self.fence_timeout)
    }

    /// Returns the CUDA ordinal, in this process, of the GPU to read on; none: the GPU of the
    /// pipeline.
    pub fn device(&self) -> Option<u32> {
        u32::try_from(self.cuda_device_id).ok()
    }

    /// Returns the time without a frame after which the last one is pushed again; none: never.
    pub fn resend_last(&self) -> Option<Duration> {
        Some(self.resend_last).filter(|time| *time > 0).map(Duration::from_nanos)
    }

    /// Sets a property.
    pub fn set(&mut self, name: &str, value: &glib::Value) {
        // GObject has checked name, type and range.
        let text = || value.get::<Option<String>>().ok().flatten().filter(|text| !text.is_empty());
        match name {
            STREAM => self.stream = text(),
            SOCKET_PATH => self.socket_path = text(),
            POLICY => self.policy = value.get().unwrap_or_default(),
            MAX_HELD => self.max_held = value.get().unwrap_or(self.max_held),
            MAX_QUEUED => self.max_queued = value.get().unwrap_or(self.max_queued),
            LATENCY => self.latency = value.get().map_or(self.latency, gst::ClockTime::from_nseconds),
            SPIN => self.spin = value.get().unwrap_or(self.spin),
            CONNECTION_TIMEOUT => self.connection_timeout = value.get().unwrap_or(self.connection_timeout),
            ON_DISCONNECT => self.on_disconnect = value.get().unwrap_or_default(),
            EXPORTER_UID => self.exporter_uid = value.get().unwrap_or(self.exporter_uid),
            FENCE_TIMEOUT => self.fence_timeout = value.get().unwrap_or(self.fence_timeout),
            FENCE => self.fence = value.get().unwrap_or_default(),
            GPU_WAIT => self.gpu_wait = value.get().unwrap_or_default(),
            CUDA_DEVICE_ID => self.cuda_device_id = value.get().unwrap_or(self.cuda_device_id),
            VIDEO_META => self.video_meta = value.get().unwrap_or_default(),
            DMA_BUFS => self.dma_bufs = value.get().unwrap_or(self.dma_bufs),
            MAX_METADATA_BYTES => self.max_metadata_bytes = value.get().unwrap_or(self.max_metadata_bytes),
            IS_LIVE => self.is_live = value.get().unwrap_or(self.is_live),
            RESEND_LAST => self.resend_last = value.get().unwrap_or(self.resend_last),
            _ => {}
        }
    }

    /// Returns the value of a property; none if it is not a setting.
    pub fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            STREAM => self.stream.to_value(),
            SOCKET_PATH => self.socket_path.to_value(),
            POLICY => self.policy.to_value(),
            MAX_HELD => self.max_held.to_value(),
            MAX_QUEUED => self.max_queued.to_value(),
            LATENCY => self.latency.nseconds().to_value(),
            SPIN => self.spin.to_value(),
            CONNECTION_TIMEOUT => self.connection_timeout.to_value(),
            ON_DISCONNECT => self.on_disconnect.to_value(),
            EXPORTER_UID => self.exporter_uid.to_value(),
            FENCE_TIMEOUT => self.fence_timeout.to_value(),
            FENCE => self.fence.to_value(),
            GPU_WAIT => self.gpu_wait.to_value(),
            CUDA_DEVICE_ID => self.cuda_device_id.to_value(),
            VIDEO_META => self.video_meta.to_value(),
            DMA_BUFS => self.dma_bufs.to_value(),
            MAX_METADATA_BYTES => self.max_metadata_bytes.to_value(),
            IS_LIVE => self.is_live.to_value(),
            RESEND_LAST => self.resend_last.to_value(),
            _ => return None,
        })
    }
}

/// The properties, with the defaults of [`Settings`].
pub(super) fn properties() -> &'static [glib::ParamSpec] {
    static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
        use gst::prelude::GstParamSpecBuilderExt;
        let default = Settings::default();
        vec![
            glib::ParamSpecString::builder(STREAM)
                .nick("Stream")
                .blurb("Name of the stream to read, as set on framesharesink. Can be changed in PLAYING")
                .mutable_playing()
                .build(),
            glib::ParamSpecString::builder(SOCKET_PATH)
                .nick("Socket path")
                .blurb("Path of the stream's socket, instead of its name; @NAME is an abstract socket, which needs exporter-uid. Can be changed in PLAYING")
                .mutable_playing()
                .build(),
            glib::ParamSpecEnum::builder_with_default(POLICY, default.policy)
                .nick("Policy")
                .blurb("Handling of frames that are not taken in time")
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder(MAX_HELD)
                .nick("Maximum frames held")
                .blurb(
                    "Number of frames to request to hold at once (0 = 4, and more above 60 frames a second); \
                     raised if downstream's allocation answer needs more. Frames beyond it are copied",
                )
                .maximum(MAX_CREDIT)
                .default_value(default.max_held)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder(MAX_QUEUED)
                .nick("Maximum frames queued")
                .blurb(
                    "With policy=latest: number of frames that wait for this element at most (0 = 2, and more \
                     above 60 frames a second); older ones are lost, so that a slow element gets recent frames",
                )
                .maximum(MAX_CREDIT)
                .default_value(default.max_queued)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt64::builder(LATENCY)
                .nick("Latency")
                .blurb("Latency reported by this live source, from publication to rendering (in ns)")
                .maximum(u64::MAX - 1)
                .default_value(default.latency.nseconds())
                .mutable_playing()
                .build(),
            glib::ParamSpecUInt::builder(SPIN)
                .nick("Spin")
                .blurb(
                    "Share of a core to spend spinning for frames (in percent): 0 sleeps, 100 always spins; \
                     between them the source spins when a frame is expected. stats has the cost (spin-time)",
                )
                .maximum(100)
                .default_value(default.spin)
                .mutable_ready()
                .build(),
            glib::ParamSpecInt64::builder(CONNECTION_TIMEOUT)
                .nick("Connection timeout")
                .blurb("Maximum time to wait for an exporter that admits this reader (in ns, -1 = no limit)")
                .minimum(-1)
                .default_value(default.connection_timeout)
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder_with_default(ON_DISCONNECT, default.on_disconnect)
                .nick("On disconnect")
                .blurb(
                    "Reaction to the loss of the exporter: its crash, or a stop without an end of stream. With \
                     wait, refusals that may pass are retried too, up to connection-timeout",
                )
                .mutable_ready()
                .build(),
            glib::ParamSpecInt64::builder(EXPORTER_UID)
                .nick("Exporter UID")
                .blurb(
                    "Required user of the exporter (-1 = this user or root if others can write to a folder \
                     on the path to the socket, otherwise any user)",
                )
                .minimum(-1)
                // The highest number means "no user": chown(2).
                .maximum(i64::from(u32::MAX) - 1)
                .default_value(default.exporter_uid)
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder_with_default(FENCE, default.fence)
                .nick("Fence")
                .blurb("Kind of fence that signals the end of GPU work on a frame")
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt64::builder(FENCE_TIMEOUT)
                .nick("Fence timeout")
                .blurb("Maximum time of GPU work on a published frame before the exporter is treated as lost (in ns)")
                .minimum(1)
                .default_value(default.fence_timeout)
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder_with_default(GPU_WAIT, default.gpu_wait)
                .nick("GPU wait")
                .blurb(
                    "Whether frames are pushed before the GPU has written them, so that streams wait. With \
                     event fences, a crash of the exporter then blocks those streams forever",
                )
                .mutable_ready()
                .build(),
            glib::ParamSpecInt::builder(CUDA_DEVICE_ID)
                .nick("CUDA device")
                .blurb("CUDA ordinal, in this process, of the GPU to read on (-1 = the GPU of the pipeline)")
                .minimum(-1)
                .default_value(default.cuda_device_id)
                .mutable_ready()
                .build(),
            glib::ParamSpecBoolean::builder(DMA_BUFS)
                .nick("dma-bufs")
                .blurb("Push frames in dma-bufs in place; otherwise the exporter copies them for all readers")
                .default_value(default.dma_bufs)
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder_with_default(VIDEO_META, default.video_meta)
                .nick("Video meta")
                .blurb(
                    "Treatment of frames with padded rows, as decoders write them. For applications that \
                     read GstVideoMeta, and take their frames from an appsink, say: always",
                )
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt64::builder(MAX_METADATA_BYTES)
                .nick("Maximum metadata")
                .blurb(
                    "Maximum memory of the exporter's events, tags and metas in this process (in bytes); \
                     reading fails beyond it",
                )
                .default_value(default.max_metadata_bytes)
                .mutable_ready()
                .build(),
            glib::ParamSpecBoolean::builder(IS_LIVE)
                .nick("Is live")
                .blurb(
                    "Whether this is a live source. If not, it prerolls, and has no latency, the exporter's \
                     timestamps and segment, and running time 0 at its first frame",
                )
                .default_value(default.is_live)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt64::builder(RESEND_LAST)
                .nick("Resend the last frame")
                .blurb(
                    "Time without a frame after which the last one is pushed again, and again each time (in \
                     ns, 0 = never). For raw video and images; takes one of the frames of max-held",
                )
                .maximum(u64::MAX - 1)
                .default_value(default.resend_last)
                .mutable_ready()
                .build(),
            glib::ParamSpecBoxed::builder::<gst::Structure>(STATS)
                .nick("Statistics")
                .blurb("Frames received, lost, held and copied, and the reasons of copies")
                .read_only()
                .build(),
        ]
    });
    &PROPERTIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_needs_stream_name_or_socket_path() {
        let mut settings = Settings::default();
        assert!(settings.endpoint().unwrap_err().contains("stream"));
        settings.set(STREAM, &"not a name".to_value());
        assert!(settings.endpoint().unwrap_err().contains("not a name"));
        settings.set(SOCKET_PATH, &"/tmp/x.sock".to_value());
        assert_eq!(settings.endpoint().unwrap().path(), "/tmp/x.sock");
    }

    #[test]
    fn exporter_uid_and_fence_timeout_reach_engine_config() {
        let mut settings = Settings::default();
        let default = frameshare::reader::Config::default();
        assert_eq!(settings.exporter_uid(), default.exporter_uid);
        assert_eq!(settings.fence_timeout(), default.fence_timeout);
        settings.set(EXPORTER_UID, &65534_i64.to_value());
        settings.set(FENCE_TIMEOUT, &7_000_000_u64.to_value());
        assert_eq!(settings.exporter_uid(), Some(65534));
        assert_eq!(settings.fence_timeout(), Duration::from_millis(7));
        for name in [EXPORTER_UID, FENCE_TIMEOUT] {
            assert!(properties().iter().any(|property| property.name() == name), "{name}");
        }
    }

    #[test]
    fn spin_has_the_default_of_the_engine() {
        let mut settings = Settings::default();
        assert_eq!(settings.spin, frameshare::reader::Config::default().spin);
        settings.set(SPIN, &25_u32.to_value());
        assert_eq!((settings.spin, settings.get(SPIN).unwrap().get::<u32>().unwrap()), (25, 25));
    }

    #[test]
    fn connection_timeout_minus_one_means_no_limit() {
        let mut settings = Settings::default();
        assert_eq!(settings.connection_timeout(), Some(Duration::from_secs(5)));
        settings.set(CONNECTION_TIMEOUT, &(-1_i64).to_value());
        assert_eq!(settings.connection_timeout(), None);
    }
}
