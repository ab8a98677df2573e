//! What a user can set.

use frameshare::{Endpoint, Policy, StreamName};
use glib::prelude::*;
use std::{sync::LazyLock, time::Duration};

/// What happens to frames that are not taken in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareSrcPolicy")]
#[non_exhaustive]
pub enum FrameshareSrcPolicy {
    /// The oldest is lost, and the exporter goes on.
    #[default]
    #[enum_value(name = "Lose the oldest frame, never hold the exporter back", nick = "latest")]
    Latest,
    /// The exporter waits.
    #[enum_value(name = "Lose nothing, let the exporter wait", nick = "lossless")]
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

pub(super) const STREAM: &str = "stream";
pub(super) const SOCKET_PATH: &str = "socket-path";
pub(super) const POLICY: &str = "policy";
pub(super) const MAX_HELD: &str = "max-held";
pub(super) const LATENCY: &str = "latency";
pub(super) const CONNECTION_TIMEOUT: &str = "connection-timeout";
pub(super) const RECONNECT: &str = "reconnect";
pub(super) const STATS: &str = "stats";

/// Most frames that a reader can be let hold, by the protocol.
pub(super) const MAX_CREDIT: u32 = 64;

/// The values of the properties.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    stream: Option<String>,
    socket_path: Option<String>,
    pub policy: FrameshareSrcPolicy,
    pub max_held: u32,
    pub latency: gst::ClockTime,
    /// In ns; negative: for ever.
    connection_timeout: i64,
    pub reconnect: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream: None,
            socket_path: None,
            policy: FrameshareSrcPolicy::default(),
            max_held: 4,
            latency: gst::ClockTime::from_mseconds(20),
            connection_timeout: 5_000_000_000,
            reconnect: false,
        }
    }
}

impl Settings {
    /// Where the stream is to be found; an error says what to set.
    pub fn endpoint(&self) -> Result<Endpoint, String> {
        match (&self.socket_path, &self.stream) {
            (Some(path), _) => Endpoint::at(path).map_err(|error| error.to_string()),
            (None, Some(stream)) => {
                let name = stream.parse::<StreamName>().map_err(|error| error.to_string())?;
                Endpoint::of_stream(&name).map_err(|error| error.to_string())
            }
            (None, None) => Err(format!("set {STREAM} to the stream's name, or {SOCKET_PATH}")),
        }
    }

    /// How long to wait for the exporter; nothing: for ever.
    pub fn connection_timeout(&self) -> Option<Duration> {
        u64::try_from(self.connection_timeout).ok().map(Duration::from_nanos)
    }

    /// Takes over a property's new value.
    pub fn set(&mut self, name: &str, value: &glib::Value) {
        // GObject checked name, type and range.
        let text = || value.get::<Option<String>>().ok().flatten().filter(|text| !text.is_empty());
        match name {
            STREAM => self.stream = text(),
            SOCKET_PATH => self.socket_path = text(),
            POLICY => self.policy = value.get().unwrap_or_default(),
            MAX_HELD => self.max_held = value.get().unwrap_or(self.max_held),
            LATENCY => self.latency = value.get().map_or(self.latency, gst::ClockTime::from_nseconds),
            CONNECTION_TIMEOUT => self.connection_timeout = value.get().unwrap_or(self.connection_timeout),
            RECONNECT => self.reconnect = value.get().unwrap_or_default(),
            _ => {}
        }
    }

    /// A property's value; nothing for one that is not a setting.
    pub fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            STREAM => self.stream.to_value(),
            SOCKET_PATH => self.socket_path.to_value(),
            POLICY => self.policy.to_value(),
            MAX_HELD => self.max_held.to_value(),
            LATENCY => self.latency.nseconds().to_value(),
            CONNECTION_TIMEOUT => self.connection_timeout.to_value(),
            RECONNECT => self.reconnect.to_value(),
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
                .blurb("Name of the stream to read, the one given to framesharesink")
                .mutable_ready()
                .build(),
            glib::ParamSpecString::builder(SOCKET_PATH)
                .nick("Socket path")
                .blurb("Path of the stream's socket, instead of its name")
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder_with_default(POLICY, default.policy)
                .nick("Policy")
                .blurb("What happens to frames that are not taken in time")
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder(MAX_HELD)
                .nick("Frames held at most")
                .blurb(
                    "How many frames to ask to hold at once; more where downstream says that it keeps more. \
                     What goes beyond is copied",
                )
                .minimum(1)
                .maximum(MAX_CREDIT)
                .default_value(default.max_held)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt64::builder(LATENCY)
                .nick("Latency")
                .blurb("Time between a frame's publication and its showing (in ns), as this live source reports it")
                .maximum(u64::MAX - 1)
                .default_value(default.latency.nseconds())
                .mutable_playing()
                .build(),
            glib::ParamSpecInt64::builder(CONNECTION_TIMEOUT)
                .nick("Connection timeout")
                .blurb("How long to wait for the exporter (in ns, -1 = for ever)")
                .minimum(-1)
                .default_value(default.connection_timeout)
                .mutable_ready()
                .build(),
            glib::ParamSpecBoolean::builder(RECONNECT)
                .nick("Reconnect")
                .blurb("Wait for a new exporter when the old one vanishes, rather than fail")
                .default_value(default.reconnect)
                .mutable_ready()
                .build(),
            glib::ParamSpecBoxed::builder::<gst::Structure>(STATS)
                .nick("Statistics")
                .blurb("What was received, lost, is held and was copied, and why")
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
    fn a_stream_needs_a_name_or_a_path() {
        let mut settings = Settings::default();
        assert!(settings.endpoint().unwrap_err().contains("stream"));
        settings.set(STREAM, &"not a name".to_value());
        assert!(settings.endpoint().unwrap_err().contains("not a name"));
        settings.set(SOCKET_PATH, &"/tmp/x.sock".to_value());
        assert_eq!(settings.endpoint().unwrap().path(), "/tmp/x.sock");
    }

    #[test]
    fn minus_one_waits_for_ever() {
        let mut settings = Settings::default();
        assert_eq!(settings.connection_timeout(), Some(Duration::from_secs(5)));
        settings.set(CONNECTION_TIMEOUT, &(-1_i64).to_value());
        assert_eq!(settings.connection_timeout(), None);
    }
}
