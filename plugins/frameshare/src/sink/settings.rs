// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of the sink.

use super::kinds::{Export, Layout, Memory, SlowReaders};
use crate::{
    FrameshareFence,
    properties::{enums, properties},
};
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

enums!(LosslessReaders, SlowReaders, Layout, Memory, Export);

properties! {
    pub(super) struct Settings {
        pub(super) config: Config = Config::default();

        /// Name of the stream: up to 64 of A-Z a-z 0-9 . _ - (its socket is
        /// $XDG_RUNTIME_DIR/frameshare/NAME.sock)
        stream: Option<String> = None => mutable_ready();
        /// Path of the stream's socket, instead of a name; @NAME is an abstract socket
        socket_path: Option<String> = None => mutable_ready();
        /// Other users that may read, <uid, uid>; needs socket-path and socket-mode
        allowed_uids in config => nick("Allowed users").mutable_ready();
        /// Groups whose members may read, <gid, gid>; needs socket-path and socket-mode
        allowed_gids in config => nick("Allowed groups").mutable_ready();
        /// Mode of the socket's file: who may connect at all. 0600 (384) = this user, 0660 (432) =
        /// the socket's group, 0666 (438) = all; needs socket-path
        socket_mode in config => maximum(0o777).mutable_ready();
        /// Most frames that exist in shared memory at once; they are allocated when first needed
        max_slots in config => nick("Maximum slots").minimum(4).maximum(MAX_SLOTS).mutable_ready();
        /// Most frames that one reader may hold at once, however many it asks for
        max_held_limit in config
            => nick("Limit of max-held").minimum(1).maximum(MAX_CREDIT).mutable_ready();
        /// Publish nothing while there is no reader, and let upstream wait for one
        pub(super) wait_for_connection: bool = false => nick("Wait for a connection").mutable_playing();
        /// Which readers may ask for every frame, so that the stream waits for them
        lossless_readers: LosslessReaders = Default::default() => mutable_ready();
        /// How long the stream waits for a lossless reader before it disconnects that reader (ns)
        reader_timeout in config => mutable_ready();
        /// Treatment of a lossless reader for which as many frames wait as may: auto waits, or
        /// disconnects it if upstream is live
        pub(super) slow_readers: SlowReaders = Default::default() => mutable_playing();
        /// Memory for frames that wait for lossless readers, of all of them together, while
        /// upstream is live or sync=true (bytes, 0 = no frame waits)
        max_queued_bytes in config => nick("Maximum queued bytes").mutable_ready();
        /// Maximum age of a frame that waits for a lossless reader (ns)
        max_queued_time in config => nick("Maximum queued time").mutable_ready();
        /// Let frames wait for lossless readers of other users, too
        queue_for_other_users in config => mutable_ready();
        /// Number of the last frames of raw video that are kept for readers that join later: 0 or 1
        history: Option<String> = Some(History::Frames(1).to_string()) => mutable_ready();
        /// Whether each frame is published at its time; unless it is set, those of a live upstream
        /// are published when they arrive
        // Overrides the property of GstBaseSink, which does not tell whether it was set.
        pub(super) sync: Option<bool> = None => mutable_playing();
        /// In ns; no limit if negative.
        // GstBaseSink would drop late frames for lossless readers, too.
        pub(super) max_lateness of gst_base::BaseSink: i64 = -1;
        /// How long a reader's GPU may work on a frame after its release before the reader is
        /// disconnected (ns)
        fence_timeout in config => mutable_ready();
        /// How much memory of former caps a reader may keep from being freed before the reader is
        /// disconnected (bytes)
        max_retired_bytes in config => nick("Maximum retired bytes").mutable_ready();
        /// Memory for the units of encoded video since the last key unit, which joining readers get
        /// first (bytes, 0 = none)
        max_gop_bytes in config
            => nick("Maximum GOP bytes").maximum(exporter::MAX_GOP_BYTES).mutable_ready();
        /// How long the end of the stream waits for lossless readers to finish (ns)
        pub(super) drain_timeout: Duration = Duration::from_secs(5) => mutable_playing();
        /// Accept the encoded media, containers and metadata that the pad template lists; otherwise
        /// autopluggers decode
        pub(super) encoded: bool = false => mutable_ready();
        /// Accept any media type: encoded media, and types that the pad template does not list
        pub(super) any_caps: bool = false => mutable_ready();
        /// Layout of raw video in system memory: compact costs one copy of each frame that a
        /// decoder would pad
        pub(super) layout: Layout = Default::default() => mutable_ready();
        /// Kind of memory that frames are shared in; with vmm, pool or legacy, frames in system
        /// memory are uploaded
        pub(super) memory: Memory = Default::default() => mutable_ready();
        /// Kind of fence that orders GPU work of exporter and readers
        fence: FrameshareFence = Default::default() => mutable_ready();
        /// Whether a decoder's own surfaces are shared where they lie or copied first
        pub(super) export: Export = Default::default() => mutable_ready();
        /// CUDA's number for the GPU that frames lie on (-1 = the one that upstream uses)
        cuda_device_id: i32 = -1 => nick("CUDA device").minimum(-1).mutable_ready();
        /// Other users that get GPU memory, which they could write, <uid, uid>; others get host
        /// memory
        trusted_uids in config => nick("Trusted users").mutable_ready();
        /// Let other users read even where the kernel lets them write into shared frames through
        /// /dev/udmabuf
        allow_udmabuf in config => mutable_ready();
    }
}

/// Returns the properties; the element itself answers those behind the settings.
pub(super) fn properties() -> &'static [glib::ParamSpec] {
    static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
        let mut specs = Settings::specs();
        specs.push(
            glib::ParamSpecUInt::builder("num-clients")
                .nick("Number of clients")
                .blurb("How many readers are connected")
                .read_only()
                .build(),
        );
        specs.push(
            glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                .nick("Statistics")
                .blurb("Frames published and copied (and why), the slots, and for each reader what it holds, got and lost")
                .read_only()
                .build(),
        );
        specs
    });
    &PROPERTIES
}

impl Settings {
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
        self.config
            .clone()
            .lossless_readers(lossless_readers)
            .memory(gpu.as_ref().and_then(|_| self.memory.kind()))
            .fence(self.fence.kind())
            .gpu(gpu)
    }
}
