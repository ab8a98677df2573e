// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of `framesharesrc`.

use crate::{
    FrameshareFence,
    properties::{enums, properties},
};
use frameshare::{Endpoint, MAX_CREDIT, Policy, StreamName, reader::Config};
use gst::prelude::*;
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

enums!(FrameshareSrcPolicy, FrameshareSrcOnDisconnect, FrameshareSrcVideoMeta);

properties! {
    pub(super) struct Settings {
        pub(super) config: Config = Config::default().max_held(0).max_queued(0);

        /// Name of the stream to read, as set on framesharesink. Can be changed in PLAYING
        stream: String = String::new() => mutable_playing();
        /// Path of the stream's socket, instead of its name; @NAME is an abstract socket, which
        /// needs exporter-uid. Can be changed in PLAYING
        socket_path: String = String::new() => mutable_playing();
        /// Handling of frames that are not taken in time
        pub(super) policy: FrameshareSrcPolicy = Default::default() => mutable_ready();
        /// Number of frames to request to hold at once (0 = 4, and more above 60 frames a second);
        /// raised if downstream's allocation answer needs more. Frames beyond it are copied
        max_held in config => nick("Maximum frames held").maximum(MAX_CREDIT).mutable_ready();
        /// With policy=latest: number of frames that wait for this element at most (0 = 2, and more
        /// above 60 frames a second); older ones are lost, so that a slow element gets recent
        /// frames
        max_queued in config => nick("Maximum frames queued").maximum(MAX_CREDIT).mutable_ready();
        /// Latency reported by this live source, from publication to rendering (in ns)
        pub(super) latency: gst::ClockTime = gst::ClockTime::from_mseconds(20)
            => maximum(u64::MAX - 1).mutable_playing();
        /// Share of a core to spend spinning for frames (in percent): 0 sleeps, 100 always spins;
        /// between them the source spins when a frame is expected. stats has the cost (spin-time)
        spin in config => maximum(100).mutable_ready();
        /// Maximum time to wait for an exporter that admits this reader (in ns, -1 = no limit)
        connection_timeout in config => minimum(-1).mutable_ready();
        /// Reaction to the loss of the exporter: its crash, or a stop without an end of stream.
        /// With wait, refusals that may pass are retried too, up to connection-timeout
        pub(super) on_disconnect: FrameshareSrcOnDisconnect = Default::default() => mutable_ready();
        /// Required user of the exporter (-1 = this user or root if others can write to a folder on
        /// the path to the socket, otherwise any user)
        exporter_uid in config
            => nick("Exporter UID").minimum(-1).maximum(i64::from(u32::MAX) - 1).mutable_ready();
        /// Kind of fence that signals the end of GPU work on a frame. With timeline, and with event
        /// if it is set here, frames are pushed before the GPU has written them, and streams wait
        pub(super) fence: FrameshareFence = Default::default() => mutable_ready();
        /// Maximum time of GPU work on a published frame before the exporter is treated as lost (in
        /// ns)
        fence_timeout in config => minimum(1).mutable_ready();
        /// CUDA ordinal, in this process, of the GPU to read on (-1 = the GPU of the pipeline)
        cuda_device_id: i32 = -1 => nick("CUDA device").minimum(-1).mutable_ready();
        /// Push frames in dma-bufs in place; otherwise the exporter copies them for all readers
        dma_bufs in config => nick("dma-bufs").mutable_ready();
        /// Treatment of frames with padded rows, as decoders write them. For applications that read
        /// GstVideoMeta, and take their frames from an appsink, say: always
        pub(super) video_meta: FrameshareSrcVideoMeta = Default::default() => mutable_ready();
        /// Maximum memory of the exporter's events, tags and metas in this process (in bytes);
        /// reading fails beyond it
        max_metadata_bytes in config => nick("Maximum metadata").mutable_ready();
        /// Whether this is a live source. If not, it prerolls, and has no latency, the exporter's
        /// timestamps and segment, and running time 0 at its first frame
        pub(super) is_live: bool = true => mutable_ready();
        /// Time without a frame after which the last one is pushed again, and again each time (in
        /// ns, 0 = never). For raw video and images; takes one of the frames of max-held
        resend_last: Duration = Duration::ZERO
            => nick("Resend the last frame").maximum(u64::MAX - 1).mutable_ready();
    }
}

/// Returns the properties; the element itself answers `stats`.
pub(super) fn properties() -> &'static [glib::ParamSpec] {
    static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
        let mut specs = Settings::specs();
        specs.push(
            glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                .nick("Statistics")
                .blurb("Frames received, lost, held and copied, and the reasons of copies")
                .read_only()
                .build(),
        );
        specs
    });
    &PROPERTIES
}

impl Settings {
    /// Returns the stream's endpoint.
    ///
    /// # Errors
    ///
    /// The error names the property to set.
    pub fn endpoint(&self) -> Result<Endpoint, String> {
        match (self.socket_path.as_str(), self.stream.as_str()) {
            ("", "") => Err("set stream to the stream's name, or socket-path".into()),
            ("", stream) => {
                let name = stream.parse::<StreamName>().map_err(|error| error.to_string())?;
                let endpoint = match self.config.exporter_uid {
                    Some(user) => Endpoint::of_user(&name, user),
                    None => Endpoint::of_stream(&name),
                };
                endpoint.map_err(|error| error.to_string())
            }
            (path, _) => Endpoint::at(path).map_err(|error| error.to_string()),
        }
    }

    /// Returns the CUDA ordinal, in this process, of the GPU to read on; none: the GPU of the
    /// pipeline.
    pub fn device(&self) -> Option<u32> {
        u32::try_from(self.cuda_device_id).ok()
    }

    /// Returns the time without a frame after which the last one is pushed again; none: never.
    pub fn resend_last(&self) -> Option<Duration> {
        Some(self.resend_last).filter(|time| !time.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_needs_stream_name_or_socket_path() {
        let mut settings = Settings::default();
        assert!(settings.endpoint().unwrap_err().contains("stream"));
        settings.set("stream", &"not a name".to_value());
        assert!(settings.endpoint().unwrap_err().contains("not a name"));
        settings.set("socket-path", &"/tmp/x.sock".to_value());
        assert_eq!(settings.endpoint().unwrap().path(), "/tmp/x.sock");
    }

    #[test]
    fn exporter_uid_and_fence_timeout_reach_engine_config() {
        let mut settings = Settings::default();
        let default = frameshare::reader::Config::default();
        assert_eq!(settings.config.exporter_uid, default.exporter_uid);
        assert_eq!(settings.config.fence_timeout, default.fence_timeout);
        settings.set("exporter-uid", &65534_i64.to_value());
        settings.set("fence-timeout", &7_000_000_u64.to_value());
        assert_eq!(settings.config.exporter_uid, Some(65534));
        assert_eq!(settings.config.fence_timeout, Duration::from_millis(7));
        for name in ["exporter-uid", "fence-timeout"] {
            assert!(properties().iter().any(|property| property.name() == name), "{name}");
        }
    }

    #[test]
    fn spin_has_the_default_of_the_engine() {
        let mut settings = Settings::default();
        assert_eq!(settings.config.spin, frameshare::reader::Config::default().spin);
        settings.set("spin", &25_u32.to_value());
        assert_eq!((settings.config.spin, settings.get("spin").unwrap().get::<u32>().unwrap()), (25, 25));
    }

    #[test]
    fn connection_timeout_minus_one_means_no_limit() {
        let mut settings = Settings::default();
        assert_eq!(settings.config.connection_timeout, Some(Duration::from_secs(5)));
        settings.set("connection-timeout", &(-1_i64).to_value());
        assert_eq!(settings.config.connection_timeout, None);
    }
}
