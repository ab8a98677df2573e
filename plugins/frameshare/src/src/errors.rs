// SPDX-License-Identifier: MIT OR Apache-2.0

//! Error messages of the element: the failure and its remedy.

use super::{cuda::Takes, way::Way};
use crate::{
    drm,
    meta::{budget::OverBudget, form::Invalid},
};
use frameshare::{
    Endpoint, MemoryKind, Reason,
    reader::{ConfigError, ConnectError, ReadError},
};
use gst::ResourceError;

/// Remedy for a reader that is not permitted to read.
const LET_IN: &str = "run this pipeline as the user of the exporter, or grant access there by \
                      framesharesink's socket-path, socket-mode, allowed-uids, allowed-gids and, for frames \
                      in GPU memory or dma-bufs, trusted-uids; if the kernel lets readers write through \
                      /dev/udmabuf, by allow-udmabuf";

/// Returns the reason for copies, and the remedy.
pub(super) fn of_copying(way: Way, credit: u32, asked: u32) -> (String, &'static str) {
    match way {
        Way::CopiedForLayout => (
            "their rows are padded, and downstream does not announce GstVideoMeta".into(),
            "set video-meta=always if the application reads GstVideoMeta, or layout=compact on framesharesink",
        ),
        _ => (
            format!("downstream holds {credit} of them, as many as it may"),
            if credit < asked { "raise max-held-limit of framesharesink" } else { "raise max-held" },
        ),
    }
}

/// Returns the reason for copies that elements downstream make, and the remedy.
pub(super) fn of_downstream_copies() -> (String, &'static str) {
    (
        "an element downstream writes into them, or copies them, and they are shared read-only".into(),
        "elements that convert frames, such as videoconvert, read them in place",
    )
}

/// Returns the message for a failed connection; none if the wait was interrupted.
pub(super) fn of_connect(error: &ConnectError, endpoint: &Endpoint) -> Option<gst::ErrorMessage> {
    if let ConnectError::Interrupted = error {
        return None;
    }
    let (code, advice) = of_cause(error);
    Some(match error {
        ConnectError::NotThere { waited, .. } => gst::error_msg!(
            code,
            ("No exporter of {} found within {} ms: {}", endpoint, waited.as_millis(), advice)
        ),
        // The engine's text names its own field.
        ConnectError::Config(ConfigError::AbstractOfAnyUser) => gst::error_msg!(
            code,
            ("Cannot read {}: every process can bind an abstract socket; {}", endpoint, advice)
        ),
        _ => gst::error_msg!(code, ("Cannot read {}: {}; {}", endpoint, error, advice)),
    })
}

/// Returns the code and the remedy for a failed connection.
fn of_cause(error: &ConnectError) -> (ResourceError, &'static str) {
    match error {
        ConnectError::NotThere { .. } => (
            ResourceError::NotFound,
            "start framesharesink with this stream or socket-path, or raise connection-timeout",
        ),
        ConnectError::NotAnswering { .. } => {
            (ResourceError::NotFound, "resume or restart that process, or raise connection-timeout")
        }
        ConnectError::WrongUser { .. } => (
            ResourceError::NotAuthorized,
            "if that is the expected exporter, set exporter-uid to its user; otherwise check which process \
             owns the socket",
        ),
        ConnectError::PermissionDenied { .. } => (ResourceError::NotAuthorized, LET_IN),
        ConnectError::Refused { reason, .. } => of_reason(*reason),
        ConnectError::Protocol(_) | ConnectError::Violation(_) => {
            (ResourceError::OpenRead, "both sides need the same version of this plugin")
        }
        ConnectError::GpuNotVisible { .. }
        | ConnectError::GpuOutOfReach { .. }
        | ConnectError::EventsNotShared(_)
        | ConnectError::EventsOfOtherContext => (
            ResourceError::OpenRead,
            "select the exporter's GPU with cuda-device-id, or request system memory with a capsfilter \
             (video/x-raw) behind this element",
        ),
        ConnectError::Driver(_) => (ResourceError::OpenRead, "check the GPU and its driver on both sides"),
        ConnectError::Config(ConfigError::AbstractOfAnyUser) => {
            (ResourceError::Settings, "set exporter-uid to the user that the exporter runs as")
        }
        ConnectError::Config(_) => (ResourceError::Settings, "correct the properties"),
        ConnectError::Io { source, .. } if is_out_of_files(source) => {
            (ResourceError::OpenRead, "raise the limit of open files (ulimit -n) of this process")
        }
        _ => (ResourceError::OpenRead, "check stream or socket-path"),
    }
}

/// Returns whether the process or the system is out of file descriptors: EMFILE and ENFILE of
/// open(2).
fn is_out_of_files(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Returns the message for a connection that ended.
pub(super) fn of_read(error: &ReadError, endpoint: &Endpoint) -> gst::ErrorMessage {
    let (code, advice) = match error {
        ReadError::Stopped(_) | ReadError::Gone { .. } | ReadError::Stalled { .. } => {
            return gst::error_msg!(
                ResourceError::Read,
                (
                    "The exporter of {} stopped without ending the stream: {}; set on-disconnect=wait to wait \
                     for its successor, or on-disconnect=eos to end the stream then",
                    endpoint,
                    error
                )
            );
        }
        ReadError::CutOff { reason: Reason::Failed, .. } => (
            ResourceError::Read,
            "see the error of framesharesink, and set on-disconnect=wait to wait for its successor",
        ),
        ReadError::CutOff { reason, .. } => of_reason(*reason),
        ReadError::NotBack(error) | ReadError::Gpu(error) => of_cause(error),
        ReadError::TooMuchMetadata { .. } => {
            (ResourceError::Read, "raise max-metadata-bytes if the exporter is trusted")
        }
        ReadError::Violation(_) => (ResourceError::Read, "both sides need the same version of this plugin"),
        ReadError::Fence(_) => (ResourceError::Failed, "check the GPU and its driver"),
        ReadError::Memory(error) if error.kind != MemoryKind::Host => (
            ResourceError::OpenRead,
            "check that both sides have the same driver and see the same GPU, or select another kind of \
             memory with framesharesink's memory property",
        ),
        _ => (ResourceError::Read, "check this process's limits of open files and of memory"),
    };
    gst::error_msg!(code, ("Cannot continue reading {}: {}; {}", endpoint, error, advice))
}

/// Returns the message for an exporter whose metadata exceeds the limit.
pub(super) fn of_budget(error: OverBudget, endpoint: &Endpoint) -> gst::ErrorMessage {
    gst::error_msg!(
        ResourceError::Read,
        (
            "Cannot continue reading {}: {}; raise max-metadata-bytes if the exporter is trusted",
            endpoint,
            error
        )
    )
}

/// Returns the message for unusable caps of an exporter.
pub(super) fn of_caps(error: Invalid, caps: &str, endpoint: &Endpoint) -> gst::ErrorMessage {
    match error {
        Invalid::OverBudget(error) => of_budget(error, endpoint),
        error => gst::error_msg!(
            gst::StreamError::WrongType,
            ("The exporter of {} sent invalid caps {:?}: {}", endpoint, caps, error)
        ),
    }
}

/// Returns the message for a downstream element that takes CUDA memory only, if CUDA cannot be
/// used.
pub(super) fn of_cuda(why: &str, endpoint: &Endpoint) -> gst::ErrorMessage {
    gst::error_msg!(
        ResourceError::NotFound,
        (
            "Cannot read {} in CUDA memory, which downstream requires: {}; reading in system memory needs no \
             GPU",
            endpoint,
            why
        )
    )
}

/// Returns the message for a downstream element that refuses the frames.
pub(super) fn of_negotiation(caps: &gst::Caps, on_gpu: bool, takes: Takes) -> gst::ErrorMessage {
    if let Some(decoder) = decoder(caps) {
        return gst::error_msg!(
            gst::CoreError::Negotiation,
            (
                "Downstream does not accept {}: the stream is encoded; insert a decoder after framesharesrc ({})",
                caps,
                decoder
            )
        );
    }
    let advice = match (on_gpu, takes) {
        _ if drm::is_drm(caps) => {
            "devices alone know the layout of the frames: insert an element of a device, such as vapostproc or glupload, \
             after framesharesrc"
        }
        (true, Takes::System) => "insert cudadownload after framesharesrc",
        (true, _) => "insert a converter such as cudaconvertscale after framesharesrc",
        (false, Takes::Cuda) => {
            "the frames are in system memory, or the exporter does not trust this user with its GPU: insert \
             cudaupload after framesharesrc"
        }
        (false, _) => "insert a converter such as videoconvert after framesharesrc",
    };
    gst::error_msg!(gst::CoreError::Negotiation, ("Downstream does not accept {}: {}", caps, advice))
}

/// Returns a decoder for encoded media, with its parser; none for raw media.
fn decoder(caps: &gst::CapsRef) -> Option<&'static str> {
    Some(match caps.structure(0)?.name().as_str() {
        "video/x-raw" | "video/x-bayer" | "audio/x-raw" => return None,
        "video/x-h264" => "h264parse ! avdec_h264, or decodebin",
        "video/x-h265" => "h265parse ! avdec_h265, or decodebin",
        "image/jpeg" => "jpegdec, or decodebin",
        "audio/x-opus" => "opusparse ! opusdec, or decodebin",
        _ => "decodebin",
    })
}

/// Returns the code and the remedy for a rejection or an eviction.
fn of_reason(reason: Reason) -> (ResourceError, &'static str) {
    match reason {
        Reason::PermissionDenied => (ResourceError::NotAuthorized, LET_IN),
        Reason::NoCreditLeft => {
            (ResourceError::Busy, "raise framesharesink's max-slots, or stop another reader")
        }
        Reason::LosslessNotGranted => {
            (ResourceError::NotAuthorized, "use policy=latest, or set framesharesink's lossless-readers")
        }
        Reason::NothingInCommon => (ResourceError::OpenRead, "exporter and reader share no kind of memory"),
        Reason::TooSlow => (
            ResourceError::Read,
            "use policy=latest, or raise framesharesink's reader-timeout, max-queued-bytes or max-queued-time",
        ),
        Reason::Disconnected => (ResourceError::Read, "an operator of the exporter has disconnected it"),
        Reason::LimitExceeded => (ResourceError::Read, "hold fewer frames, or raise framesharesink's limits"),
        _ => (ResourceError::Read, "see the error of framesharesink"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare::reader::TrustedUsers;

    fn text(message: &gst::ErrorMessage) -> String {
        format!("{message}")
    }

    #[test]
    fn error_messages_name_stream_and_remedy() {
        gst::init().unwrap();
        let endpoint = Endpoint::at("/tmp/cam0.sock").unwrap();
        let waited = std::time::Duration::from_secs(5);
        let not_there = ConnectError::NotThere { endpoint: endpoint.clone(), waited };
        let message = text(&of_connect(&not_there, &endpoint).unwrap());
        for part in ["/tmp/cam0.sock", "5000 ms", "framesharesink", "connection-timeout"] {
            assert!(message.contains(part), "{message}");
        }
        let refused = ConnectError::Refused {
            reason: Reason::LosslessNotGranted,
            text: "no lossless readers here".into(),
        };
        let message = text(&of_connect(&refused, &endpoint).unwrap());
        assert!(
            message.contains("no lossless readers here") && message.contains("policy=latest"),
            "{message}"
        );
        let message = text(&of_read(&ReadError::Gone { torn: 0, lost: 0 }, &endpoint));
        assert!(message.contains("without ending") && message.contains("on-disconnect=wait"), "{message}");
        assert!(of_connect(&ConnectError::Interrupted, &endpoint).is_none());
        let stopped = text(&of_read(&ReadError::Stopped("the exporter has stopped".into()), &endpoint));
        assert_eq!(stopped.matches("has stopped").count(), 1, "{stopped}");
        let expected = TrustedUsers::User(1000);
        let other = ConnectError::WrongUser { endpoint: endpoint.clone(), found: 65534, expected };
        let message = text(&of_connect(&other, &endpoint).unwrap());
        for part in ["65534", "1000", "exporter-uid", "/tmp/cam0.sock"] {
            assert!(message.contains(part), "{message}");
        }
        let any_user = ConnectError::Config(ConfigError::AbstractOfAnyUser);
        let message = text(&of_connect(&any_user, &Endpoint::at("@cam0").unwrap()).unwrap());
        assert!(message.contains("set exporter-uid") && !message.contains("exporter_uid"), "{message}");
        for (error, advice) in [(24, "ulimit -n"), (2, "socket-path")] {
            let source = std::io::Error::from_raw_os_error(error);
            let failed = ConnectError::Io { endpoint: endpoint.clone(), source };
            let message = text(&of_connect(&failed, &endpoint).unwrap());
            assert!(message.contains(advice), "{message}");
        }
        let tiled = "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format=NV12:0x1, width=64, height=48";
        let message = text(&of_negotiation(&tiled.parse().unwrap(), false, Takes::System));
        assert!(message.contains("insert an element of a device, such as vapostproc"), "{message}");
        // A reader rejected by the next exporter gets the remedy, too.
        let message = text(&of_read(&ReadError::NotBack(refused), &endpoint));
        assert!(message.contains("no next one found") && message.contains("policy=latest"), "{message}");
    }
}
