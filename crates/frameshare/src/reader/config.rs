// SPDX-License-Identifier: MIT OR Apache-2.0

//! Configuration of a reader.

use super::error::ConfigError;
use crate::{
    Endpoint,
    options::options,
    sys::{is_overflow_uid, is_own_or_root},
};
use frameshare_cuda::{context::Context, device::Device};
use frameshare_protocol::{FenceKind, Policy, limits::MAX_CREDIT};
use std::{sync::Arc, time::Duration};

/// Default of [`Config::max_metadata_bytes`].
pub const MAX_METADATA_BYTES: u64 = 128 << 20;

/// Default of [`Config::max_gop_bytes`].
pub const MAX_GOP_BYTES: u64 = 64 << 20;

options! {
    /// Configuration of a reader: [`Config::default`] and its setters.
    ///
    /// ```
    /// # use frameshare::{Policy, reader::Config};
    /// let config = Config::default().policy(Policy::Lossless).max_held(2);
    /// ```
    pub struct Config {
        /// Name of the reader in the exporter's statistics; cut to 128 bytes.
        pub name: String as impl Into<String> = crate::sys::process_name(),
        /// Treatment of frames beyond the credit.
        pub policy: Policy = Policy::default(),
        /// Requested number of frames to hold at once, up to 64; the exporter may grant fewer. 0
        /// leaves it to the exporter: 4, and more above 60 frames a second.
        pub max_held: u32 = 4,
        /// Under [`Policy::Latest`], the maximum number of untaken frames, up to 64; 1 by default.
        /// Older ones are lost, so that a slow reader gets recent frames: a frame is at most
        /// `max_queued + 1` frame periods old when it is taken. Frames beyond the credit are lost
        /// in any case. 0 leaves it to the exporter: 2, and more above 60 frames a second.
        pub max_queued: u32 = 1,
        /// The share of a core, in percent, that the reader may spend spinning for the next item in
        /// [`Reader::next`](super::Reader::next). 0, the default, sleeps until the exporter wakes
        /// it, and 100 always spins. Between them the reader sleeps until shortly before the next
        /// frame is expected, by the rate of the stream, its jitter, and the overshoot of its own
        /// sleeps, and then spins as long as the share allows. On a busy machine it only sleeps.
        ///
        /// Readers of a [`ReaderSet`](super::ReaderSet) and of event loops always sleep. While
        /// frames follow each other faster than a sleep takes, every reader spins for some
        /// microseconds.
        pub spin: u32 = 0,
        /// Maximum time to search for an exporter that admits this reader; `None` is without limit.
        /// It starts anew with each loss of a connection. The reader waits as long for an exporter
        /// that accepts the connection and does not answer, because it is stopped for example.
        pub connection_timeout: Option<Duration> = Some(Duration::from_secs(5)),
        /// Whether to search for the next exporter of the same name after the end of this one.
        ///
        /// Conditions that end the reader, and conditions that it survives:
        ///
        /// | condition | without `reconnect` | with it |
        /// | --- | --- | --- |
        /// | no socket, a stale one, a full backlog, no answer | waits | waits |
        /// | permission denied by a socket that was made or changed within the last second | waits | waits |
        /// | permission denied by an older socket, or by a folder | error | error |
        /// | the exporter runs as another user than [`exporter_uid`](Self::exporter_uid) | error | waits |
        /// | the connection is lost, or closed with `Reason::Stopped`, or a frame's fence is late | error | searches |
        /// | the connection is closed with `Reason::Failed`, for example by a failure of the exporter's GPU | error | searches |
        /// | closed with any other reason: the reader was evicted | error | error |
        /// | refused with `Reason::Stopped`, or with `Reason::LimitExceeded` (too many silent connections or unreceived descriptors) | waits | waits |
        /// | refused with `Reason::NoCreditLeft` or `Reason::Failed` (out of files or memory) | error | waits |
        /// | refused with any other reason | error | error |
        /// | another version of the protocol, or a violation of it; a GPU that cannot be used | error | error |
        ///
        /// "Waits" lasts until [`connection_timeout`](Self::connection_timeout); then the last
        /// obstacle is the error.
        pub reconnect: bool = false,
        /// The user that the exporter must run as. `None` accepts any user if only root, this
        /// process's user and users that either of them put in charge can write to the folders on
        /// the way to the socket; in a folder that others can write to, such as /tmp, it accepts
        /// this process's user and root. An abstract socket ([`Endpoint::at`]) needs a value.
        ///
        /// The kernel reports the user of the listening process (`SO_PEERCRED`, unix(7)), as seen
        /// in this user namespace: one without a number there cannot be named.
        pub exporter_uid: Option<u32> = None,
        /// The CUDA context that frames are read in; `None` for host memory only.
        pub gpu: Option<Arc<Context>> = None,
        /// Whether frames that cannot be read in GPU memory come in host memory instead: because
        /// the context does not reach the GPU, the driver refuses an import, or there is no kind of
        /// fence that both sides can use. Otherwise that is an error.
        pub host_fallback: bool = false,
        /// The only kind of fence to use; `None` accepts every kind.
        ///
        /// With timeline fences, and with event fences that are requested here, frames are
        /// delivered speculatively: before their ready fence is signaled, for GPU streams to wait
        /// on ([`Frame::wait_on`](super::Frame::wait_on)). A stream that waits for an event when
        /// the exporter is killed never continues; so with `None` frames come when they are
        /// written if the exporter uses event fences.
        pub fence: Option<FenceKind> = None,
        /// Maximum time for the exporter's GPU work on a published frame before the exporter counts
        /// as dead. Zero is refused, since no work would complete in time.
        pub fence_timeout: Duration = Duration::from_secs(2),
        /// Maximum bytes of events and metadata that wait in this process for the frames that they
        /// precede. No more is received until some were delivered; a single larger one ends the
        /// reader with [`ReadError::TooMuchMetadata`](super::ReadError::TooMuchMetadata).
        pub max_metadata_bytes: u64 = MAX_METADATA_BYTES,
        /// Maximum bytes of kept units of an encoded stream, from its last key unit on, that the
        /// exporter sends when the reader joins; 0 for none. They take no credit. Without them the
        /// reader starts at the next key unit, or after two seconds.
        pub max_gop_bytes: u64 = MAX_GOP_BYTES,
        /// Whether the files of imported host memory stay open, one for each slot, for
        /// [`Frame::file`](super::Frame::file).
        pub keep_files: bool = false,
        /// Whether frames in dma-bufs come in place: memory of a device, such as a camera's, mapped
        /// for the CPU to read ([`Frame::dma_buf`](super::Frame::dma_buf)); true by default.
        /// Otherwise the exporter copies them into host memory, for all readers of the stream. They
        /// are accepted from exporters of this process's user, of root and of
        /// [`exporter_uid`](Self::exporter_uid) only: whether an access to one may raise SIGBUS is
        /// up to its driver.
        pub dma_bufs: bool = true,
    }
    hidden {
        /// Whether frames come when they are written only, whatever the kind of fence: for tests.
        pub written_only: bool = false,
    }
}

impl Config {
    /// Sets [`gpu`](Self#structfield.gpu) to the primary context of a device, in which programs of
    /// CUDA's runtime API run, PyTorch's too.
    ///
    /// ```no_run
    /// # use frameshare::{cuda::Device, reader::Config};
    /// let config = Config::default().on_gpu(&Device::find("0")?)?; // a number, or a UUID
    /// # Ok::<(), frameshare::cuda::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn on_gpu(self, device: &Device) -> frameshare_cuda::Result<Self> {
        Ok(self.gpu(Some(Context::primary(device)?)))
    }
}

impl Config {
    /// Returns whether dma-bufs are accepted from an exporter of this user.
    pub(super) fn accepts_dma_bufs(&self, uid: u32) -> bool {
        self.dma_bufs && (is_own_or_root(uid) || self.exporter_uid == Some(uid))
    }

    /// Checks the ranges that the fields document.
    ///
    /// # Errors
    /// The value that is out of range.
    pub(super) fn check(&self, endpoint: &Endpoint) -> Result<(), ConfigError> {
        if self.max_held > MAX_CREDIT {
            return Err(ConfigError::MaxHeld(self.max_held));
        }
        if self.max_queued > MAX_CREDIT {
            return Err(ConfigError::MaxQueued(self.max_queued));
        }
        if self.spin > 100 {
            return Err(ConfigError::Spin(self.spin));
        }
        if self.fence_timeout.is_zero() {
            return Err(ConfigError::ZeroFenceTimeout);
        }
        if let Some(uid) = self.exporter_uid.filter(|uid| is_overflow_uid(*uid)) {
            return Err(ConfigError::UnmappedUser(uid));
        }
        if endpoint.is_abstract() && self.exporter_uid.is_none() {
            return Err(ConfigError::AbstractOfAnyUser);
        }
        Ok(())
    }
}
