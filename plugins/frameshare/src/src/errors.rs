//! The engine's errors, as a user of the element reads them: what happened, and what to do.

use super::cuda::Takes;
use crate::meta::{budget::OverBudget, form::Invalid};
use frameshare::{
    Endpoint, MemoryKind, Reason,
    reader::{ConnectError, ReadError},
};
use gst::ResourceError;

/// What somebody can do who may not read.
const LET_IN: &str = "run this pipeline as the user who shares the stream, or be let in there: framesharesink has socket-path, \
                      socket-mode, allowed-uids, allowed-gids and, for frames in GPU memory, trusted-uids; where the kernel \
                      lets readers write through /dev/udmabuf, allow-udmabuf";

/// The message for a connection that did not come about; none where the wait was cut short.
pub(super) fn of_connect(error: &ConnectError, endpoint: &Endpoint) -> Option<gst::ErrorMessage> {
    if let ConnectError::Interrupted = error {
        return None;
    }
    let (code, advice) = of_cause(error);
    Some(match error {
        ConnectError::NotThere { waited, .. } => gst::error_msg!(
            code,
            ("Nobody shares {} ({} ms waited): {}", endpoint, waited.as_millis(), advice)
        ),
        _ => gst::error_msg!(code, ("Cannot read {}: {}; {}", endpoint, error, advice)),
    })
}

/// What to do where a connection does not come about.
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
            "if that is the user to read from, set exporter-uid to it; else see which process took the socket's place",
        ),
        ConnectError::PermissionDenied { .. } => (ResourceError::NotAuthorized, LET_IN),
        ConnectError::Refused { reason, .. } => of_reason(*reason),
        ConnectError::Protocol(_) | ConnectError::Violation(_) => {
            (ResourceError::OpenRead, "both sides need the same version of this plugin")
        }
        ConnectError::Gpu(_) | ConnectError::GpuOutOfReach { .. } => (
            ResourceError::OpenRead,
            "choose the exporter's GPU by cuda-device-id, or have the frames in system memory by a capsfilter \
             (video/x-raw) behind this element",
        ),
        ConnectError::Driver(_) => (ResourceError::OpenRead, "check the GPU and its driver on both sides"),
        ConnectError::Config(_) => (ResourceError::Settings, "correct the properties"),
        ConnectError::Io { source, .. } if is_out_of_files(source) => {
            (ResourceError::OpenRead, "raise the limit of open files (ulimit -n) of this process")
        }
        ConnectError::Io { .. } | ConnectError::Interrupted => {
            (ResourceError::OpenRead, "check stream or socket-path")
        }
    }
}

/// Whether this process or the system can open no more files: EMFILE and ENFILE of open(2).
fn is_out_of_files(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// The message for a connection that ended.
pub(super) fn of_read(error: &ReadError, endpoint: &Endpoint) -> gst::ErrorMessage {
    let (code, advice) = match error {
        ReadError::Stopped(_) | ReadError::Gone { .. } | ReadError::Stalled { .. } => {
            return gst::error_msg!(
                ResourceError::Read,
                (
                    "{} broke off without ending the stream: {}; set reconnect=true to wait for its successor",
                    endpoint,
                    error
                )
            );
        }
        ReadError::CutOff { reason: Reason::Failed, .. } => (
            ResourceError::Read,
            "see what framesharesink reported, and set reconnect=true to wait for its successor",
        ),
        ReadError::CutOff { reason, .. } => of_reason(*reason),
        ReadError::NotBack(error) | ReadError::Gpu(error) => of_cause(error),
        ReadError::TooMuchMetadata { .. } => {
            (ResourceError::Read, "raise max-metadata-bytes if the exporter is to be trusted")
        }
        ReadError::Violation(_) => (ResourceError::Read, "both sides need the same version of this plugin"),
        ReadError::Fence(_) => (ResourceError::Failed, "check the GPU and its driver"),
        ReadError::Memory(error) if error.kind != MemoryKind::Host => (
            ResourceError::OpenRead,
            "check that both sides have the same driver and see the same GPU, or choose another kind of memory by \
             framesharesink's memory",
        ),
        ReadError::Memory(_) | ReadError::Io(_) | ReadError::Interrupted => {
            (ResourceError::Read, "check the limits of this process, of open files and of memory")
        }
    };
    gst::error_msg!(code, ("Cannot go on reading {}: {}; {}", endpoint, error, advice))
}

/// The message for an exporter whose metadata takes too much memory.
pub(super) fn of_budget(error: OverBudget, endpoint: &Endpoint) -> gst::ErrorMessage {
    gst::error_msg!(
        ResourceError::Read,
        (
            "Cannot go on reading {}: {}; raise max-metadata-bytes if the exporter is to be trusted",
            endpoint,
            error
        )
    )
}

/// The message for caps of an exporter that cannot be used.
pub(super) fn of_caps(error: Invalid, caps: &str, endpoint: &Endpoint) -> gst::ErrorMessage {
    match error {
        Invalid::OverBudget(error) => of_budget(error, endpoint),
        error => gst::error_msg!(
            gst::StreamError::WrongType,
            ("The exporter of {} sends invalid caps {:?}: {}", endpoint, caps, error)
        ),
    }
}

/// The message where downstream takes nothing but CUDA memory, and there is none.
pub(super) fn of_cuda(why: &str, endpoint: &Endpoint) -> gst::ErrorMessage {
    gst::error_msg!(
        ResourceError::NotFound,
        (
            "Cannot read {} in CUDA memory, as what follows this element asks for: {}; in system memory it can be read \
             without",
            endpoint,
            why
        )
    )
}

/// The message where downstream does not take the frames as they are.
pub(super) fn of_negotiation(caps: &gst::Caps, on_gpu: bool, takes: Takes) -> gst::ErrorMessage {
    let advice = match (on_gpu, takes) {
        (true, Takes::System) => "put cudadownload between them",
        (true, _) => "put a converter (cudaconvertscale, say) between them",
        (false, Takes::Cuda) => {
            "the exporter shares them in system memory, or does not trust this user with its GPU: put cudaupload between \
             them"
        }
        (false, _) => "put a converter (videoconvert, say) between them",
    };
    gst::error_msg!(
        gst::CoreError::Negotiation,
        ("What follows this element does not take {}: {}", caps, advice)
    )
}

/// What to do about an exporter that does not want this reader.
fn of_reason(reason: Reason) -> (ResourceError, &'static str) {
    match reason {
        Reason::PermissionDenied => (ResourceError::NotAuthorized, LET_IN),
        Reason::NoCreditLeft => {
            (ResourceError::Busy, "raise framesharesink's max-slots, or stop another reader")
        }
        Reason::LosslessNotGranted => {
            (ResourceError::NotAuthorized, "use policy=latest, or set framesharesink's lossless-readers")
        }
        Reason::NothingInCommon => (ResourceError::OpenRead, "the two share no kind of memory"),
        Reason::TooSlow => {
            (ResourceError::Read, "use policy=latest, or raise framesharesink's reader-timeout")
        }
        Reason::LimitExceeded => (ResourceError::Read, "hold fewer frames, or raise framesharesink's limits"),
        Reason::Stopped | Reason::Violation | Reason::Failed => {
            (ResourceError::Read, "see what framesharesink reported")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(message: &gst::ErrorMessage) -> String {
        format!("{message}")
    }

    #[test]
    fn every_sentence_names_the_stream_and_says_what_to_do() {
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
        assert!(message.contains("without ending") && message.contains("reconnect=true"), "{message}");
        assert!(of_connect(&ConnectError::Interrupted, &endpoint).is_none());
        let stopped = text(&of_read(&ReadError::Stopped("the exporter has stopped".into()), &endpoint));
        assert_eq!(stopped.matches("has stopped").count(), 1, "{stopped}");
        let expected = "user 1000".into();
        let other = ConnectError::WrongUser { endpoint: endpoint.clone(), found: 65534, expected };
        let message = text(&of_connect(&other, &endpoint).unwrap());
        for part in ["65534", "1000", "exporter-uid", "/tmp/cam0.sock"] {
            assert!(message.contains(part), "{message}");
        }
        for (error, advice) in [(24, "ulimit -n"), (2, "socket-path")] {
            let source = std::io::Error::from_raw_os_error(error);
            let failed = ConnectError::Io { endpoint: endpoint.clone(), source };
            let message = text(&of_connect(&failed, &endpoint).unwrap());
            assert!(message.contains(advice), "{message}");
        }
        // Who wants the next exporter, and is not let in there, is told how to be.
        let message = text(&of_read(&ReadError::NotBack(refused), &endpoint));
        assert!(message.contains("no next one found") && message.contains("policy=latest"), "{message}");
    }
}
