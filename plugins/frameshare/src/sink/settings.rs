// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of the sink.

use super::kinds::{Export, Layout, Memory, SlowReaders};
use crate::FrameshareFence;
use frameshare::{
    Endpoint, MAX_CREDIT, MAX_SLOTS, StreamName,
    exporter::{self, Config, History},
};
use frameshare_cuda::context::Context;
use gst::prelude::*;
use std::{
    os::unix::fs::MetadataExt,
    sync::{Arc, LazyLock},
    time::Duration,
};

/// The readers that may be lossless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareLosslessReaders")]
pub enum LosslessReaders {
    /// No reader.
    #[enum_value(name = "No reader may hold the stream back", nick = "none")]
    None,
    /// Those of the user who runs the exporter.
    #[default]
    #[enum_value(
        name = "Readers of the user who runs this process may hold the stream back",
        nick = "own-uid"
    )]
    OwnUid,
    /// All readers.
    #[enum_value(name = "All readers may hold the stream back", nick = "all")]
    All,
}

/// Overrides the property of `GstBaseSink`, which does not tell whether it was set.
pub(super) const SYNC: &str = "sync";

#[derive(Clone)]
pub(super) struct Settings {
    stream: Option<String>,
    socket_path: Option<String>,
    allowed_uids: Vec<u32>,
    allowed_gids: Vec<u32>,
    socket_mode: u32,
    max_slots: u32,
    max_held_limit: u32,
    lossless_readers: LosslessReaders,
    pub(super) reader_timeout: Duration,
    pub(super) slow_readers: SlowReaders,
    max_queued_bytes: u64,
    max_queued_time: Duration,
    queue_for_other_users: bool,
    history: Option<String>,
    /// In ns; no limit if negative.
    pub(super) max_lateness: i64,
    fence_timeout: Duration,
    max_retired_bytes: u64,
    max_gop_bytes: u64,
    /// None unless it was set.
    pub(super) sync: Option<bool>,
    pub(super) wait_for_connection: bool,
    pub(super) drain_timeout: Duration,
    pub(super) encoded: bool,
    pub(super) any_caps: bool,
    pub(super) layout: Layout,
    pub(super) memory: Memory,
    fence: FrameshareFence,
    pub(super) export: Export,
    pub(super) cuda_device_id: i32,
    trusted_uids: Vec<u32>,
    allow_udmabuf: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let limits = Config::default();
        Self {
            stream: None,
            socket_path: None,
            allowed_uids: limits.allowed_uids,
            allowed_gids: limits.allowed_gids,
            socket_mode: limits.socket_mode,
            max_slots: limits.max_slots,
            max_held_limit: limits.max_held_limit,
            lossless_readers: LosslessReaders::default(),
            reader_timeout: limits.reader_timeout,
            slow_readers: SlowReaders::default(),
            max_queued_bytes: limits.max_queued_bytes,
            max_queued_time: limits.max_queued_time,
            queue_for_other_users: limits.queue_for_other_users,
            history: Some(History::Frames(1).to_string()),
            max_lateness: -1,
            fence_timeout: limits.fence_timeout,
            max_retired_bytes: limits.max_retired_bytes,
            max_gop_bytes: limits.max_gop_bytes,
            sync: None,
            wait_for_connection: false,
            drain_timeout: Duration::from_secs(5),
            encoded: false,
            any_caps: false,
            layout: Layout::default(),
            memory: Memory::default(),
            fence: FrameshareFence::default(),
            export: Export::default(),
            cuda_device_id: -1,
            trusted_uids: limits.trusted_uids,
            allow_udmabuf: limits.allow_udmabuf,
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Returns a property that lists numbers of users or groups.
fn ids_spec(name: &str, nick: &str, blurb: &str) -> glib::ParamSpec {
    let id = glib::ParamSpecUInt::builder("id").nick("Number").blurb("Of the user or group").build();
    gst::ParamSpecArray::builder(name).nick(nick).blurb(blurb).element_spec(&id).mutable_ready().build()
}

fn ids_to_value(ids: &[u32]) -> glib::Value {
    gst::Array::new(ids.iter().copied()).to_value()
}

fn ids_of_value(value: &glib::Value) -> Option<Vec<u32>> {
    value.get::<gst::Array>().ok()?.iter().map(|id| id.get().ok()).collect()
}

impl Settings {
    /// Specifications of the properties; the element itself answers `num-clients` and `stats`.
    pub(super) fn specs() -> &'static [glib::ParamSpec] {
        static SPECS: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let default = Settings::default();
            vec![
                glib::ParamSpecString::builder("stream")
                    .nick("Stream")
                    .blurb("Name of the stream: up to 64 of A-Z a-z 0-9 . _ - (its socket is $XDG_RUNTIME_DIR/frameshare/NAME.sock)")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecString::builder("socket-path")
                    .nick("Socket path")
                    .blurb("Path of the stream's socket, instead of a name; @NAME is an abstract socket")
                    .mutable_ready()
                    .build(),
                ids_spec(
                    "allowed-uids",
                    "Allowed users",
                    "Other users that may read, <uid, uid>; needs socket-path and socket-mode",
                ),
                ids_spec(
                    "allowed-gids",
                    "Allowed groups",
                    "Groups whose members may read, <gid, gid>; needs socket-path and socket-mode",
                ),
                glib::ParamSpecUInt::builder("socket-mode")
                    .nick("Socket mode")
                    .blurb("Mode of the socket's file: who may connect at all. 0600 (384) = this user, 0660 (432) = the socket's group, 0666 (438) = all; needs socket-path")
                    .maximum(0o777)
                    .default_value(default.socket_mode)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt::builder("max-slots")
                    .nick("Maximum slots")
                    .blurb("Most frames that exist in shared memory at once; they are allocated when first needed")
                    .minimum(4)
                    .maximum(MAX_SLOTS)
                    .default_value(default.max_slots)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt::builder("max-held-limit")
                    .nick("Limit of max-held")
                    .blurb("Most frames that one reader may hold at once, however many it asks for")
                    .minimum(1)
                    .maximum(MAX_CREDIT)
                    .default_value(default.max_held_limit)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoolean::builder("wait-for-connection")
                    .nick("Wait for a connection")
                    .blurb("Publish nothing while there is no reader, and let upstream wait for one")
                    .default_value(default.wait_for_connection)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("lossless-readers", default.lossless_readers)
                    .nick("Lossless readers")
                    .blurb("Which readers may ask for every frame, so that the stream waits for them")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("reader-timeout")
                    .nick("Reader timeout")
                    .blurb("How long the stream waits for a lossless reader before it disconnects that reader (ns)")
                    .default_value(nanoseconds(default.reader_timeout))
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("slow-readers", default.slow_readers)
                    .nick("Slow readers")
                    .blurb("Treatment of a lossless reader for which as many frames wait as may: auto waits, or disconnects it if upstream is live")
                    .mutable_playing()
                    .build(),
                glib::ParamSpecUInt64::builder("max-queued-bytes")
                    .nick("Maximum queued bytes")
                    .blurb("Memory for frames that wait for lossless readers, of all of them together, while upstream is live or sync=true (bytes, 0 = no frame waits)")
                    .default_value(default.max_queued_bytes)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("max-queued-time")
                    .nick("Maximum queued time")
                    .blurb("Maximum age of a frame that waits for a lossless reader (ns)")
                    .default_value(nanoseconds(default.max_queued_time))
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoolean::builder("queue-for-other-users")
                    .nick("Queue for other users")
                    .blurb("Let frames wait for lossless readers of other users, too")
                    .default_value(default.queue_for_other_users)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecString::builder("history")
                    .nick("History")
                    .blurb("Number of the last frames of raw video that are kept for readers that join later: 0 or 1")
                    .default_value(default.history.as_deref())
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoolean::builder(SYNC)
                    .nick("Sync")
                    .blurb("Whether each frame is published at its time; unless it is set, those of a live upstream are published when they arrive")
                    .default_value(true)
                    .mutable_playing()
                    .build(),
                // GstBaseSink would drop late frames for lossless readers, too.
                glib::ParamSpecOverride::for_class::<gst_base::BaseSink>("max-lateness"),
                glib::ParamSpecUInt64::builder("fence-timeout")
                    .nick("Fence timeout")
                    .blurb("How long a reader's GPU may work on a frame after its release before the reader is disconnected (ns)")
                    .default_value(nanoseconds(default.fence_timeout))
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("max-retired-bytes")
                    .nick("Maximum retired bytes")
                    .blurb("How much memory of former caps a reader may keep from being freed before the reader is disconnected (bytes)")
                    .default_value(default.max_retired_bytes)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("max-gop-bytes")
                    .nick("Maximum GOP bytes")
                    .blurb("Memory for the units of encoded video since the last key unit, which joining readers get first (bytes, 0 = none)")
                    .maximum(exporter::MAX_GOP_BYTES)
                    .default_value(default.max_gop_bytes)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("drain-timeout")
                    .nick("Drain timeout")
                    .blurb("How long the end of the stream waits for lossless readers to finish (ns)")
                    .default_value(nanoseconds(default.drain_timeout))
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("encoded")
                    .nick("Encoded")
                    .blurb("Accept the encoded media, containers and metadata that the pad template lists; otherwise autopluggers decode")
                    .default_value(default.encoded)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoolean::builder("any-caps")
                    .nick("Any caps")
                    .blurb("Accept any media type: encoded media, and types that the pad template does not list")
                    .default_value(default.any_caps)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("layout", default.layout)
                    .nick("Layout")
                    .blurb("Layout of raw video in system memory: compact costs one copy of each frame that a decoder would pad")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("memory", default.memory)
                    .nick("Memory")
                    .blurb("Kind of memory that frames are shared in; with vmm, pool or legacy, frames in system memory are uploaded")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("fence", default.fence)
                    .nick("Fence")
                    .blurb("Kind of fence that orders GPU work of exporter and readers")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("export", default.export)
                    .nick("Export")
                    .blurb("Whether a decoder's own surfaces are shared where they lie or copied first")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecInt::builder("cuda-device-id")
                    .nick("CUDA device")
                    .blurb("CUDA's number for the GPU that frames lie on (-1 = the one that upstream uses)")
                    .minimum(-1)
                    .default_value(default.cuda_device_id)
                    .mutable_ready()
                    .build(),
                ids_spec(
                    "trusted-uids",
                    "Trusted users",
                    "Other users that get GPU memory, which they could write, <uid, uid>; others get host memory",
                ),
                glib::ParamSpecBoolean::builder("allow-udmabuf")
                    .nick("Allow udmabuf")
                    .blurb("Let other users read even where the kernel lets them write into shared frames through /dev/udmabuf")
                    .default_value(default.allow_udmabuf)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt::builder("num-clients")
                    .nick("Number of clients")
                    .blurb("How many readers are connected")
                    .read_only()
                    .build(),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Frames published and copied (and why), the slots, and for each reader what it holds, got and lost")
                    .read_only()
                    .build(),
            ]
        });
        &SPECS
    }

    /// Sets a property. Returns false if it is not one of the settings.
    pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        // GObject checks types and ranges against the specifications first.
        macro_rules! take {
            ($field:ident) => {
                value.get().map(|value| self.$field = value).is_ok()
            };
            (ids $field:ident) => {
                ids_of_value(value).map(|ids| self.$field = ids).is_some()
            };
            (ns $field:ident) => {
                value.get().map(|value| self.$field = Duration::from_nanos(value)).is_ok()
            };
        }
        match name {
            "stream" => take!(stream),
            "socket-path" => take!(socket_path),
            "allowed-uids" => take!(ids allowed_uids),
            "allowed-gids" => take!(ids allowed_gids),
            "socket-mode" => take!(socket_mode),
            "max-slots" => take!(max_slots),
            "max-held-limit" => take!(max_held_limit),
            SYNC => value.get().map(|value| self.sync = Some(value)).is_ok(),
            "wait-for-connection" => take!(wait_for_connection),
            "lossless-readers" => take!(lossless_readers),
            "reader-timeout" => take!(ns reader_timeout),
            "slow-readers" => take!(slow_readers),
            "max-queued-bytes" => take!(max_queued_bytes),
            "max-queued-time" => take!(ns max_queued_time),
            "queue-for-other-users" => take!(queue_for_other_users),
            "history" => take!(history),
            "max-lateness" => take!(max_lateness),
            "fence-timeout" => take!(ns fence_timeout),
            "max-retired-bytes" => take!(max_retired_bytes),
            "max-gop-bytes" => take!(max_gop_bytes),
            "drain-timeout" => take!(ns drain_timeout),
            "encoded" => take!(encoded),
            "any-caps" => take!(any_caps),
            "layout" => take!(layout),
            "memory" => take!(memory),
            "fence" => take!(fence),
            "export" => take!(export),
            "cuda-device-id" => take!(cuda_device_id),
            "trusted-uids" => take!(ids trusted_uids),
            "allow-udmabuf" => take!(allow_udmabuf),
            _ => false,
        }
    }

    /// Returns the value of a property; none if it is not one of the settings.
    pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            "stream" => self.stream.to_value(),
            "socket-path" => self.socket_path.to_value(),
            "allowed-uids" => ids_to_value(&self.allowed_uids),
            "allowed-gids" => ids_to_value(&self.allowed_gids),
            "socket-mode" => self.socket_mode.to_value(),
            "max-slots" => self.max_slots.to_value(),
            "max-held-limit" => self.max_held_limit.to_value(),
            SYNC => self.sync.unwrap_or(true).to_value(),
            "wait-for-connection" => self.wait_for_connection.to_value(),
            "lossless-readers" => self.lossless_readers.to_value(),
            "reader-timeout" => nanoseconds(self.reader_timeout).to_value(),
            "slow-readers" => self.slow_readers.to_value(),
            "max-queued-bytes" => self.max_queued_bytes.to_value(),
            "max-queued-time" => nanoseconds(self.max_queued_time).to_value(),
            "queue-for-other-users" => self.queue_for_other_users.to_value(),
            "history" => self.history.to_value(),
            "max-lateness" => self.max_lateness.to_value(),
            "fence-timeout" => nanoseconds(self.fence_timeout).to_value(),
            "max-retired-bytes" => self.max_retired_bytes.to_value(),
            "max-gop-bytes" => self.max_gop_bytes.to_value(),
            "drain-timeout" => nanoseconds(self.drain_timeout).to_value(),
            "encoded" => self.encoded.to_value(),
            "any-caps" => self.any_caps.to_value(),
            "layout" => self.layout.to_value(),
            "memory" => self.memory.to_value(),
            "fence" => self.fence.to_value(),
            "export" => self.export.to_value(),
            "cuda-device-id" => self.cuda_device_id.to_value(),
            "trusted-uids" => ids_to_value(&self.trusted_uids),
            "allow-udmabuf" => self.allow_udmabuf.to_value(),
            _ => return None,
        })
    }

    /// The endpoint of the stream's socket.
    pub(super) fn endpoint(&self) -> Result<Endpoint, gst::ErrorMessage> {
        let settings = |text: String| gst::error_msg!(gst::ResourceError::Settings, ("{}", text));
        match (&self.socket_path, &self.stream) {
            (Some(path), _) => Endpoint::at(path).map_err(|error| settings(error.to_string())),
            (None, Some(stream)) => {
                let name: StreamName = stream.parse().map_err(|error| settings(format!("{error}")))?;
                Endpoint::of_stream(&name).map_err(|error| settings(error.to_string()))
            }
            (None, None) => Err(settings(
                "The stream has no name: set the property stream (a name) or socket-path (a path).".into(),
            )),
        }
    }

    /// The frames that are kept for readers that join later.
    pub(super) fn history(&self) -> Result<History, exporter::ConfigError> {
        self.history.as_deref().unwrap_or_default().parse()
    }

    /// The properties of a `framesharesrc` that reads the stream.
    pub(super) fn of_reader(&self, endpoint: &Endpoint) -> String {
        match (&self.socket_path, &self.stream) {
            (None, Some(stream)) => format!("stream={stream}"),
            _ if endpoint.is_abstract() => {
                let user = std::fs::metadata("/proc/self").map(|process| process.uid());
                format!("socket-path={endpoint} exporter-uid={}", user.unwrap_or(0))
            }
            _ => format!("socket-path={endpoint}"),
        }
    }

    /// CUDA's number of the selected GPU, if one is.
    pub(super) fn device(&self) -> Option<u32> {
        u32::try_from(self.cuda_device_id).ok()
    }

    /// The exporter's configuration; without a GPU all frames are in host memory.
    pub(super) fn config(&self, gpu: Option<Arc<Context>>) -> Config {
        let lossless_readers = match self.lossless_readers {
            LosslessReaders::None => exporter::LosslessReaders::None,
            LosslessReaders::OwnUid => exporter::LosslessReaders::OwnUid,
            LosslessReaders::All => exporter::LosslessReaders::All,
        };
        Config::default()
            .allowed_uids(self.allowed_uids.clone())
            .allowed_gids(self.allowed_gids.clone())
            .socket_mode(self.socket_mode)
            .max_slots(self.max_slots)
            .max_held_limit(self.max_held_limit)
            .lossless_readers(lossless_readers)
            .reader_timeout(self.reader_timeout)
            .max_queued_bytes(self.max_queued_bytes)
            .max_queued_time(self.max_queued_time)
            .queue_for_other_users(self.queue_for_other_users)
            .fence_timeout(self.fence_timeout)
            .max_retired_bytes(self.max_retired_bytes)
            .max_gop_bytes(self.max_gop_bytes)
            .memory(gpu.as_ref().and_then(|_| self.memory.kind()))
            .fence(self.fence.kind())
            .trusted_uids(self.trusted_uids.clone())
            .allow_udmabuf(self.allow_udmabuf)
            .gpu(gpu)
    }
}
