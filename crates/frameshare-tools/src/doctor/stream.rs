// SPDX-License-Identifier: MIT OR Apache-2.0

//! Expectations of a reader of this process's user, as the exporter of a stream reports them.

use super::Check;
use crate::{
    error::Error,
    stream::{TIMEOUT, describe_copies, find, time_ago},
};
use frameshare::{
    Endpoint, FenceKind, MemoryKind,
    cuda::Device,
    observer::{
        Expectation, Incident, LosslessAllowed, ObserveError, Observer, Rights, Snapshot, expectation,
    },
};
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Age of the last frame in ns from which the stream counts as silent.
const SILENCE: u64 = 2_000_000_000;

/// Mean wait of frames for their publication from which it is named.
const NOTICEABLE: Duration = Duration::from_millis(1);

/// Returns the checks of a stream, and the error if it cannot be observed.
pub fn checks(name: &str) -> Result<(Vec<Check>, Option<Error>), Error> {
    let endpoint = find(name)?;
    let mut checks = file(&endpoint);
    let observer = match Observer::connect(&endpoint, TIMEOUT) {
        Ok(observer) => observer,
        Err(error) => {
            let has_file = !checks.is_empty();
            checks.push(Check::error("stream", error.to_string(), remedy(&error, has_file)));
            if matches!(error, ObserveError::NotThere { .. }) {
                checks.extend(elsewhere(&endpoint, Path::new("/run/user"), Path::new("/run/frameshare")));
            }
            return Ok((checks, Some(error.into())));
        }
    };
    let (snapshot, rights) = (observer.latest(), observer.rights());
    checks.extend(exporter(snapshot, rights));
    checks.push(namespace(snapshot.exporter.pid, listener(&observer)));
    checks.push(frames(snapshot));
    checks.extend(waits(snapshot));
    checks.extend(backpressure(snapshot));
    checks.push(credit(snapshot, rights));
    checks.push(lossless(snapshot, rights));
    checks.extend(memory(snapshot, rights));
    checks.extend(copies(snapshot));
    checks.extend(incidents(snapshot, rights));
    Ok((checks, None))
}

/// Describes the socket's file, if there is one that this user sees.
fn file(endpoint: &Endpoint) -> Vec<Check> {
    let found = fs::metadata(endpoint.path()).ok();
    let describe = |found: fs::Metadata| {
        let text = format!("socket {endpoint}: user {}, mode 0{:o}", found.uid(), found.mode() & 0o7777);
        Check::ok("stream", text)
    };
    found.map(describe).into_iter().collect()
}

fn remedy(error: &ObserveError, has_file: bool) -> String {
    match error {
        ObserveError::NotThere { .. } if has_file => {
            "its exporter has ended and left the file, which the next exporter replaces: start one"
        }
        ObserveError::NotThere { .. } => {
            "start the exporter as this user and with the same XDG_RUNTIME_DIR, or give the socket's path"
        }
        ObserveError::NotAnswering { .. } => "its process is stopped, or hangs: inspect it with ps and a debugger",
        ObserveError::WrongUser { .. } => {
            "set exporter-uid of the reader to that user, or move the socket to a folder that others cannot write"
        }
        ObserveError::PermissionDenied { .. } => {
            "run the reader as the exporter's user, or set socket-mode and allowed-uids of the exporter"
        }
        ObserveError::Refused { .. } => "a reader of this user is refused, too, until the exporter admits it",
        ObserveError::Protocol(_) => "use one release of frameshare on both sides",
        _ => "",
    }
    .to_owned()
}

/// Finds sockets of the same name in the folders of other users and environments.
fn elsewhere(endpoint: &Endpoint, runtime: &Path, shared: &Path) -> Vec<Check> {
    let Some(name) = endpoint.path().file_name() else { return Vec::new() };
    let entries =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = entries(runtime).map(|user| user.join("frameshare"));
    let folders = folders.chain(entries(shared)).chain([shared.to_owned()]);
    let sockets = folders.map(|folder| folder.join(name));
    let sockets = sockets.filter(|socket| socket != endpoint.path() && is_socket(socket));
    let check = |socket: PathBuf| {
        let remedy = format!("read it with socket-path={}", socket.display());
        Check::warning("stream", format!("another one of this name: {}", socket.display()), remedy)
    };
    sockets.map(check).collect()
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn exporter(snapshot: &Snapshot, rights: Rights) -> Vec<Check> {
    let (exporter, own) = (&snapshot.exporter, rustix::process::geteuid().as_raw());
    let seen = match rights.uid == own {
        true => String::new(),
        false => format!(", in its user namespace; this user, {own}, is {} there", rights.uid),
    };
    let mut checks = vec![Check::ok(
        "exporter",
        format!(
            "process {} ({}) of user {}{seen}; frameshare {}, protocol {}",
            exporter.pid, exporter.program, exporter.uid, exporter.engine, exporter.protocol
        ),
    )];
    if exporter.engine != env!("CARGO_PKG_VERSION") {
        let text = format!("the version here is {}: the protocol is the same", env!("CARGO_PKG_VERSION"));
        checks.push(Check::ok("exporter", text));
    }
    checks
}

/// Returns the exporter's process as it is numbered here; `None` if it has no number.
fn listener(observer: &Observer) -> Option<u32> {
    let peer = rustix::net::sockopt::socket_peercred(observer).ok()?;
    u32::try_from(peer.pid.as_raw_pid()).ok().filter(|pid| *pid > 0)
}

/// Compares the numbers of the exporter's process in its PID namespace and in this one.
fn namespace(there: u32, here: Option<u32>) -> Check {
    const CROSSES: &str = "all kinds of memory and timeline fences work between them, event fences with a shared \
        /dev/shm only";
    let text = match here {
        Some(here) if here == there => "the exporter is in this PID namespace".to_owned(),
        Some(here) => {
            format!(
                "the exporter is in another PID namespace, as process {there}, which is {here} here: {CROSSES}"
            )
        }
        None => format!(
            "the exporter is in another PID namespace, as process {there}, and has no number here: {CROSSES}"
        ),
    };
    Check::ok("namespace", text)
}

fn frames(snapshot: &Snapshot) -> Check {
    let counters = &snapshot.counters;
    let silence = snapshot.time.saturating_sub(counters.last_published);
    let remedy = "check the exporter's source: the stream is open, and no frame arrives";
    if counters.ended {
        return Check::warning("frames", "the stream has ended for now", "readers wait until it resumes");
    }
    match counters.last_published {
        0 => Check::warning("frames", "none yet", remedy),
        last if silence > SILENCE => {
            Check::warning("frames", format!("the last one {}", time_ago(snapshot, last)), remedy)
        }
        _ => Check::ok("frames", format!("{} so far, and they come now", counters.published)),
    }
}

/// Names the mean time that frames wait for their publication, if it is noticeable.
fn waits(snapshot: &Snapshot) -> Option<Check> {
    let counters = &snapshot.counters;
    let mean = Duration::from_nanos(counters.waited.checked_div(counters.published)?);
    (mean > NOTICEABLE).then(|| {
        let text = format!(
            "they wait {:.1} ms on average in the exporter before they are published",
            mean.as_secs_f64() * 1000.0
        );
        let remedy = "if its source is live, do not set sync=true on framesharesink; frames of a file wait for their time";
        Check::warning("frames", text, remedy)
    })
}

fn backpressure(snapshot: &Snapshot) -> Vec<Check> {
    let waiting = snapshot.readers.iter().filter(|reader| reader.waiting > 0);
    waiting
        .map(|reader| {
            Check::warning(
                "frames",
                format!(
                    "{} wait for lossless reader {} {} of process {}, which holds {} of {}",
                    reader.waiting, reader.id, reader.name, reader.pid, reader.held, reader.credit
                ),
                "let it release frames faster, or make it latest; slow-readers and reader-timeout bound the wait",
            )
        })
        .collect()
}

fn credit(snapshot: &Snapshot, rights: Rights) -> Check {
    let promised: u32 = snapshot.readers.iter().map(|reader| reader.credit).sum();
    let text = format!(
        "a reader here may hold {} frames; {promised} of {} slots are promised to {} readers",
        rights.credit,
        snapshot.limits.max_slots,
        snapshot.readers.len()
    );
    match rights.credit {
        0 => Check::error(
            "credit",
            format!("refused: none is left: {text}"),
            "end a reader, let readers hold fewer frames (max-held), or raise max-slots of the exporter",
        ),
        _ => Check::ok("credit", text),
    }
}

fn lossless(snapshot: &Snapshot, rights: Rights) -> Check {
    let text = match (rights.may_be_lossless, snapshot.limits.lossless_readers) {
        (true, _) => "a reader here may be lossless or latest",
        (false, LosslessAllowed::None) => {
            "latest only: the exporter admits no lossless reader (lossless-readers)"
        }
        (false, _) => "latest only: lossless is for the exporter's user and root (lossless-readers=all)",
    };
    Check::ok("policy", text)
}

/// One check for a reader without a GPU, then one for each GPU of this machine.
fn memory(snapshot: &Snapshot, rights: Rights) -> Vec<Check> {
    let why = match snapshot.memory_why.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    let mut checks = vec![Check::ok("memory", format!("frames are in {} memory{why}", snapshot.memory))];
    if snapshot.memory == MemoryKind::Host {
        checks.push(Check::ok("memory", "a reader here gets them in place"));
        return checks;
    }
    let devices = Device::all().unwrap_or_default();
    checks.push(reader(snapshot, rights, None));
    checks.extend(devices.iter().map(|device| reader(snapshot, rights, Some(device))));
    checks
}

/// The copies that the exporter made so far, if it made any.
fn copies(snapshot: &Snapshot) -> Option<Check> {
    let copies = &snapshot.counters.copies;
    let text = format!("the exporter has copied frames: {}", describe_copies(copies));
    (!copies.is_empty()).then(|| Check::ok("memory", text))
}

fn reader(snapshot: &Snapshot, rights: Rights, device: Option<&Device>) -> Check {
    let who = match device {
        None => "a reader without a GPU".to_owned(),
        Some(device) => format!("a reader on GPU {} {device}", device.ordinal()),
    };
    match expectation(snapshot, rights, device) {
        Expectation::InPlace(fence) if fence.kind == FenceKind::Event => Check::ok(
            "memory",
            format!(
                "{who} gets them in place, with event fences ({}), if exporter and reader have one /dev/shm",
                fence.why
            ),
        ),
        Expectation::InPlace(fence) => {
            let fence = match fence.kind {
                FenceKind::None => "no fence".to_owned(),
                kind => format!("{kind} fences ({})", fence.why),
            };
            Check::ok("memory", format!("{who} gets them in place, with {fence}"))
        }
        Expectation::Copied(why) if device.is_none() => {
            Check::ok("memory", format!("{who} gets copies in host memory: {why}"))
        }
        Expectation::Copied(why) => {
            let remedy = match rights.may_have_gpu_memory {
                true => "choose the exporter's GPU (cuda-device-id)",
                false => "set trusted-uids of the exporter, or run the reader as the exporter's user",
            };
            Check::warning("memory", format!("{who} gets copies in host memory: {why}"), remedy)
        }
        Expectation::Refused(lacking) => {
            Check::error("memory", format!("{who} is refused: {lacking}"), "set fence=auto on both sides")
        }
        _ => Check::ok("memory", format!("{who}: unknown to this version")),
    }
}

/// The last refusals and evictions of this user's processes, newest last.
fn incidents(snapshot: &Snapshot, rights: Rights) -> Vec<Check> {
    let own: Vec<&Incident> = snapshot.incidents.iter().filter(|one| one.uid == rights.uid).collect();
    let last = &own[own.len().saturating_sub(3)..];
    let describe = |incident: &&Incident| {
        let what = match incident.reader {
            Some(id) => format!("reader {id} {} was evicted", incident.name),
            None => "a connection was refused".to_owned(),
        };
        let ago = time_ago(snapshot, incident.time);
        Check::ok("incident", format!("{ago}, process {}: {what}: {}", incident.pid, incident.text))
    };
    last.iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn exporter_in_other_namespace_is_recognized() {
        let text = |here| namespace(7, here).text;
        assert_eq!(text(Some(7)), "the exporter is in this PID namespace");
        assert!(text(Some(812)).contains("as process 7, which is 812 here"), "{}", text(Some(812)));
        assert!(text(None).contains("has no number here"), "{}", text(None));
    }

    #[test]
    fn sockets_of_other_folders_are_named() {
        let run = tempfile::tempdir().unwrap();
        let bind = |folder: &str| {
            let folder = run.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            UnixListener::bind(folder.join("cam0.sock")).unwrap()
        };
        let _sockets = ["user/1000/frameshare", "frameshare/7", "frameshare"].map(bind);
        fs::create_dir_all(run.path().join("user/9/frameshare/cam0.sock")).unwrap();
        let own = run.path().join("frameshare/cam0.sock");
        let endpoint = Endpoint::at(&own).unwrap();
        let found = elsewhere(&endpoint, &run.path().join("user"), &run.path().join("frameshare"));
        let texts: Vec<_> = found.iter().map(|check| check.text.as_str()).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        for (text, folder) in texts.iter().zip(["user/1000/frameshare", "frameshare/7"]) {
            assert!(text.ends_with(&format!("{folder}/cam0.sock")), "{text}");
        }
    }
}
