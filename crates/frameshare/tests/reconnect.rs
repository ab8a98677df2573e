// SPDX-License-Identifier: MIT OR Apache-2.0

//! A reader's timeouts and its search for an exporter, as an application sees them.

use frameshare::{
    Endpoint, Event, Format, Interrupt, Policy, Reason, Sequence, Wait,
    exporter::{self, Exporter, Frame, Purpose},
    fence::Written,
    reader::{Config, ConnectError, Item, ReadError, Reader},
};
use frameshare_protocol::message::ToReader;
use rustix::{
    event::{Timespec, epoll},
    io::ioctl_fionbio,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen,
        recv, send, socket_with,
    },
};
use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than a call with a timeout of some milliseconds takes on a loaded machine, shorter than
/// any other timeout here.
const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

struct Stream {
    _folder: tempfile::TempDir,
    endpoint: Endpoint,
    interrupt: Interrupt,
}

impl Stream {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
        Self { _folder: folder, endpoint, interrupt: Interrupt::new().unwrap() }
    }

    fn exporter(&self) -> Exporter {
        self.exporter_with(exporter::Config::default())
    }

    fn exporter_with(&self, config: exporter::Config) -> Exporter {
        Exporter::bind(&self.endpoint, config, |_| ()).unwrap()
    }

    fn connect(&self, config: Config) -> Result<Reader, ConnectError> {
        Reader::connect(&self.endpoint, config, &self.interrupt)
    }

    /// Listens without accepting, as a stopped exporter does.
    fn silent_listener(&self, backlog: i32) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(self.endpoint.path()).unwrap()).unwrap();
        listen(&listener, backlog).unwrap();
        listener
    }
}

fn publish(exporter: &Exporter, size: u64, value: u8) -> Sequence {
    let slot = exporter.acquire(size, Purpose::Copy, Wait::No).unwrap();
    fill(slot.as_ptr().unwrap().as_ptr(), size, value);
    exporter.publish(Frame { size, ..Frame::new(&slot, size, Written::Cpu) }, Wait::Forever).unwrap()
}

#[expect(unsafe_code, reason = "writing a slot that was just acquired")]
fn fill(start: *mut u8, size: u64, value: u8) {
    // SAFETY: the slot has at least `size` bytes, and nothing else refers to it.
    unsafe { start.write_bytes(value, size as usize) };
}

fn reconnecting() -> Config {
    Config::default().reconnect(true).connection_timeout(Some(PATIENCE))
}

/// Calls `next` until it yields an item or an error.
fn poll_until_some(mut next: impl FnMut() -> Result<Option<Item>, ReadError>) -> Result<Item, ReadError> {
    let deadline = Instant::now() + SOON;
    loop {
        assert!(Instant::now() < deadline, "no item within {SOON:?}");
        match next() {
            Ok(None) => thread::sleep(Duration::from_micros(200)),
            Ok(Some(item)) => return Ok(item),
            Err(error) => return Err(error),
        }
    }
}

fn stopped(result: &Result<Item, ReadError>) -> bool {
    matches!(result, Err(ReadError::Stopped(_)))
}

/// An event loop, which gets the reader's descriptor once, and the edges of its readiness only.
struct EventLoop(OwnedFd);

impl EventLoop {
    fn new(reader: &Reader) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, reader, epoll::EventData::new_u64(0), flags).unwrap();
        Self(epoll)
    }

    /// Returns the next item, asking the reader only when its descriptor becomes readable.
    fn next(&self, reader: &mut Reader, calls: &mut u32) -> Result<Item, ReadError> {
        let limit = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        loop {
            *calls += 1;
            if let Some(item) = reader.try_next()? {
                return Ok(item);
            }
            let mut events = Vec::with_capacity(1);
            epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&limit)).unwrap();
            assert!(!events.is_empty(), "no item within {SOON:?}");
        }
    }
}

#[test]
fn short_timeouts_deliver_events_end_and_close() {
    for spin in [0, 50, 100] {
        for timeout in [Duration::ZERO, Duration::from_micros(100)] {
            let stream = Stream::new();
            let exporter = stream.exporter();
            let mut reader = stream.connect(Config::default().spin(spin)).unwrap();
            let mut next = || poll_until_some(|| reader.next(Some(timeout), &stream.interrupt));
            exporter.set_format(Format { caps: "test".into(), video: None });
            assert!(matches!(next(), Ok(Item::Format(_))));
            exporter.send_event(Event { kind: 7, sticky: false, payload: vec![1] }).unwrap();
            assert!(matches!(next(), Ok(Item::Event(event)) if event.kind == 7));
            publish(&exporter, 100, 1);
            assert!(matches!(next(), Ok(Item::Frame(_))));
            exporter.end_of_stream();
            assert!(matches!(next(), Ok(Item::EndOfStream)));
            drop(exporter);
            let end = next();
            assert!(stopped(&end), "{end:?}");
        }
    }
}

#[test]
fn one_call_without_timeout_delivers_what_has_arrived() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.connect(Config::default()).unwrap();
    exporter.send_event(Event { kind: 7, sticky: false, payload: vec![1] }).unwrap();
    let item = reader.next(Some(Duration::ZERO), &stream.interrupt);
    assert!(matches!(item, Ok(Some(Item::Event(_)))), "{item:?}");
}

#[test]
fn timeout_holds_while_reconnecting() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.connect(reconnecting()).unwrap();
    publish(&exporter, 100, 1);
    assert!(matches!(reader.next(Some(SOON), &stream.interrupt), Ok(Some(Item::Frame(_)))));
    let before = reader.stats();
    drop(exporter);
    for timeout in [Duration::ZERO, SHORT, SHORT] {
        let begin = Instant::now();
        let item = reader.next(Some(timeout), &stream.interrupt);
        assert!(matches!(item, Ok(None)), "{item:?}");
        assert!(begin.elapsed() < SOON, "a call of {timeout:?} took {:?}", begin.elapsed());
    }
    let between = reader.stats();
    assert_eq!((between.received, between.session, between.held), (1, before.session, 0));
    let exporter = stream.exporter();
    let item = poll_until_some(|| reader.next(Some(Duration::ZERO), &stream.interrupt));
    assert!(matches!(item, Ok(Item::Reconnected)), "{item:?}");
    publish(&exporter, 100, 2);
    assert!(matches!(reader.next(Some(SOON), &stream.interrupt), Ok(Some(Item::Frame(_)))));
    let after = reader.stats();
    assert_eq!((after.received, after.reconnects), (2, 1));
}

#[test]
fn reconnecting_wait_can_be_interrupted_and_resumed() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.connect(reconnecting()).unwrap();
    drop(exporter);
    let silent = stream.silent_listener(8);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            stream.interrupt.set();
        });
        let begin = Instant::now();
        assert!(matches!(reader.next(None, &stream.interrupt), Err(ReadError::Interrupted)));
        assert!(begin.elapsed() < SOON);
    });
    stream.interrupt.clear();
    std::fs::remove_file(stream.endpoint.path()).unwrap();
    let _exporter = stream.exporter();
    assert!(matches!(reader.next(Some(SOON), &stream.interrupt), Ok(Some(Item::Reconnected))));
    drop(silent);
}

#[test]
fn event_loop_reconnects_without_blocking() {
    let stream = Stream::new();
    let mut exporter = stream.exporter();
    let mut reader = stream.connect(reconnecting()).unwrap();
    let events = EventLoop::new(&reader);
    for round in 0..5 {
        drop(exporter);
        thread::sleep(SHORT);
        let begin = Instant::now();
        assert!(matches!(reader.try_next(), Ok(None)), "round {round}");
        assert!(begin.elapsed() < SOON);
        exporter = thread::scope(|scope| {
            let next = scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                stream.exporter()
            });
            let mut calls = 0;
            let item = events.next(&mut reader, &mut calls);
            assert!(matches!(item, Ok(Item::Reconnected)), "{item:?}");
            assert!(calls < 1000, "the event loop spins: {calls} calls");
            next.join().unwrap()
        });
        assert_eq!(reader.stats().reconnects, round + 1);
        publish(&exporter, 100, 1);
        let item = events.next(&mut reader, &mut 0);
        assert!(matches!(item, Ok(Item::Frame(_))), "{item:?}");
    }
}

#[test]
fn search_ends_with_connection_timeout() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reconnecting().connection_timeout(Some(Duration::from_millis(200)));
    let mut reader = stream.connect(config).unwrap();
    drop(exporter);
    let end = poll_until_some(|| reader.next(Some(SHORT), &stream.interrupt));
    assert!(matches!(end, Err(ReadError::NotBack(ConnectError::NotThere { .. }))), "{end:?}");
    // A caller that asks again all the same finds an exporter that has come late.
    let _exporter = stream.exporter();
    let late = poll_until_some(|| match reader.next(Some(SHORT), &stream.interrupt) {
        Err(ReadError::NotBack(_)) => Ok(None),
        next => next,
    });
    assert!(matches!(late, Ok(Item::Reconnected)), "{late:?}");
}

#[test]
fn silent_exporter_ends_connect_after_its_own_timeout() {
    let stream = Stream::new();
    let silent = stream.silent_listener(8);
    let timeout = Duration::from_millis(300);
    let begin = Instant::now();
    let error = stream.connect(Config::default().connection_timeout(Some(timeout))).unwrap_err();
    // The old limit for an answer was 5 s.
    assert!((timeout..Duration::from_secs(4)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let text = error.to_string();
    assert!(text.contains("answer") && text.contains("s.sock"), "{text}");
    // It is asked once: a stopped exporter's backlog does not fill up.
    accept(&silent).unwrap();
    let flags = rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&silent, flags).unwrap();
    assert!(accept(&silent).is_err(), "it connected more than once");
}

#[test]
fn reader_of_silent_exporter_finds_its_successor() {
    let stream = Stream::new();
    let silent = stream.silent_listener(8);
    let config = Config::default().connection_timeout(None);
    thread::scope(|scope| {
        let reader = scope.spawn(|| stream.connect(config));
        // Longer than the old limit for an answer.
        thread::sleep(Duration::from_millis(5500));
        // As a new exporter does in the place of a dead one, whose forked child keeps the listener.
        std::fs::remove_file(stream.endpoint.path()).unwrap();
        let _exporter = stream.exporter();
        let reader = reader.join().unwrap();
        assert!(reader.is_ok(), "{reader:?}");
    });
    drop(silent);
}

#[test]
fn connect_waits_for_room_in_full_backlog() {
    let stream = Stream::new();
    let silent = stream.silent_listener(0);
    let connected = |flags| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(stream.endpoint.path()).unwrap()).map(|()| socket)
    };
    let mut crowd = Vec::new();
    while let Ok(socket) = connected(SocketFlags::NONBLOCK) {
        crowd.push(socket);
    }
    let timeout = Some(Duration::from_millis(200));
    let error = stream.connect(Config::default().connection_timeout(timeout)).unwrap_err();
    assert!(error.to_string().contains("answer"), "{error}");
    thread::scope(|scope| {
        let config = Config::default().connection_timeout(Some(PATIENCE));
        let reader = scope.spawn(|| stream.connect(config));
        thread::sleep(Duration::from_millis(100));
        drop(silent);
        std::fs::remove_file(stream.endpoint.path()).unwrap();
        let _exporter = stream.exporter();
        reader.join().unwrap().unwrap();
    });
}

#[test]
fn refusal_without_credit_is_retried_on_reconnect() {
    let stream = Stream::new();
    let config = || exporter::Config::default().max_slots(6);
    let exporter = stream.exporter_with(config());
    let mut reader = stream.connect(reconnecting()).unwrap();
    drop(exporter);
    // Another reader comes first, and takes all credit of the successor.
    let exporter = stream.exporter_with(config());
    let greedy = stream.connect(Config::default().max_held(8)).unwrap();
    assert_eq!(greedy.credit(), 4);
    for _ in 0..20 {
        let item = reader.next(Some(SHORT), &stream.interrupt);
        assert!(matches!(item, Ok(None)), "{item:?}");
    }
    drop(greedy);
    let item = reader.next(Some(SOON), &stream.interrupt);
    assert!(matches!(item, Ok(Some(Item::Reconnected))), "{item:?}");
    drop(exporter);
}

#[test]
fn lasting_refusal_is_the_final_error() {
    let stream = Stream::new();
    let _exporter = stream.exporter_with(exporter::Config::default().max_slots(6));
    let _greedy = stream.connect(Config::default().max_held(8)).unwrap();
    for reconnect in [false, true] {
        let connection_timeout = Some(Duration::from_secs(2));
        let config = Config::default().reconnect(reconnect).connection_timeout(connection_timeout);
        let error = stream.connect(config).unwrap_err();
        assert!(matches!(error, ConnectError::Refused { reason: Reason::NoCreditLeft, .. }), "{error}");
    }
}

/// Connects for 2 s to an exporter that refuses each reader for a time, and then answers none.
fn refused_for(time: Duration) -> ConnectError {
    let stream = Stream::new();
    let listener = stream.silent_listener(8);
    let refusal =
        ToReader::Refused { reason: Reason::NoCreditLeft, text: "no credit".into() }.encode().unwrap();
    ioctl_fionbio(&listener, true).unwrap();
    let end = Instant::now() + time;
    thread::scope(|scope| {
        let refusing = scope.spawn(|| {
            while Instant::now() < end {
                match accept(&listener) {
                    Ok(reader) => {
                        recv(&reader, &mut [0; 4096], RecvFlags::empty()).unwrap();
                        // The reader may have given up.
                        let _ = send(&reader, &refusal, SendFlags::NOSIGNAL);
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let config = Config::default().reconnect(true).connection_timeout(Some(Duration::from_secs(2)));
        let error = stream.connect(config).unwrap_err();
        refusing.join().unwrap();
        error
    })
}

/// Returns the error of [`refused_for`]: the first that is right, or the last one. A thread that is
/// late changes which one it is.
fn refused_once_for(time: Duration, is_right: impl Fn(&ConnectError) -> bool) -> ConnectError {
    (0..4).map(|_| refused_for(time)).find(&is_right).unwrap_or_else(|| refused_for(time))
}

/// The last attempt began a moment before the end.
#[test]
fn unanswered_attempt_hides_no_refusal() {
    let is_refusal = |error: &ConnectError| matches!(error, ConnectError::Refused { .. });
    let error = refused_once_for(Duration::from_millis(1800), is_refusal);
    assert!(is_refusal(&error), "{error}");
}

#[test]
fn exporter_that_falls_silent_is_reported_as_silent() {
    let is_silence = |error: &ConnectError| matches!(error, ConnectError::NotAnswering { .. });
    let error = refused_once_for(Duration::from_millis(500), is_silence);
    assert!(is_silence(&error), "{error}");
}

/// The kernel reports that in several ways, which depend on the moment.
#[test]
fn connection_closed_before_the_hello_is_retried() {
    let stream = Stream::new();
    let listener = stream.silent_listener(64);
    ioctl_fionbio(&listener, true).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(accept(&listener));
            }
        });
        let config = Config::default().connection_timeout(Some(Duration::ZERO));
        let failed = (0..20_000).map(|_| stream.connect(config.clone()).unwrap_err()).find(|error| {
            !matches!(error, ConnectError::NotThere { .. } | ConnectError::NotAnswering { .. })
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
fn evicted_reader_does_not_come_back() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.connect(reconnecting()).unwrap();
    publish(&exporter, 100, 1);
    let held = reader.next(Some(SOON), &stream.interrupt).unwrap();
    assert!(matches!(held, Some(Item::Frame(_))));
    let deadline = Instant::now() + PATIENCE;
    while exporter.reader_count() > 0 {
        assert!(Instant::now() < deadline, "it is not evicted");
        let _ = exporter.send_event(Event { kind: 7, sticky: false, payload: Vec::new() });
    }
    let mut end = None;
    while end.is_none() {
        match reader.next(Some(SOON), &stream.interrupt) {
            Ok(Some(Item::Event(_))) => {}
            other => end = Some(other),
        }
    }
    for _ in 0..3 {
        assert!(matches!(end, Some(Err(ReadError::CutOff { reason: Reason::LimitExceeded, .. }))), "{end:?}");
        end = Some(reader.next(Some(SHORT), &stream.interrupt));
    }
    assert_eq!(exporter.stats().readers_total, 1);
}

#[test]
fn paused_latest_reader_survives_200_format_changes() {
    for (max_held, changes) in [(4, 200_u64), (64, 100)] {
        let stream = Stream::new();
        let exporter = stream.exporter_with(exporter::Config::default().max_held_limit(64).max_slots(128));
        let config = Config::default().policy(Policy::Latest).max_held(max_held);
        let mut reader = stream.connect(config).unwrap();
        let change = |number: u64| {
            let caps = format!("video/x-raw, format=NV12, width={number}, height=1080, framerate=30/1");
            exporter.set_format(Format { caps, video: None });
            publish(&exporter, 4096 * (1 + number % 3), number as u8)
        };
        for number in 0..changes {
            change(number);
        }
        let mut caps = String::new();
        // The number of the next frame within the timeout, which has to be whole and of its own
        // format.
        let mut read = |reader: &mut Reader, timeout| loop {
            match reader.next(Some(timeout), &stream.interrupt).unwrap()? {
                Item::Format(format) => caps = format.caps.clone(),
                Item::Frame(frame) => {
                    let number = frame.descriptor().sequence.0 - 1;
                    assert!(caps.contains(&format!("width={number},")), "frame {number} has caps {caps}");
                    assert_eq!(frame.len() as u64, 4096 * (1 + number % 3));
                    let mut bytes = frame.bytes().iter();
                    assert!(bytes.all(|byte| byte.load(Ordering::Relaxed) == number as u8));
                    return Some(number);
                }
                _ => {}
            }
        };
        let mut frames = 0;
        while read(&mut reader, Duration::from_millis(500)).is_some() {
            frames += 1;
        }
        assert!(frames > 0, "nothing is left of the time of the pause");
        // The first frame may be lost to messages that are still on their way.
        let mut number = changes;
        change(number);
        while read(&mut reader, Duration::from_millis(500)) != Some(number) {
            number += 1;
            assert!(number < changes + 20, "no frame comes any more");
            change(number);
        }
        for number in number + 1..number + 100 {
            change(number);
            assert_eq!(read(&mut reader, SOON), Some(number));
        }
    }
}

#[test]
fn stopped_exporter_is_reported_once() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.connect(Config::default()).unwrap();
    drop(exporter);
    let error = reader.next(Some(SOON), &stream.interrupt).unwrap_err();
    assert_eq!(error.to_string().matches("has stopped").count(), 1, "{error}");
}

#[test]
fn fence_timeout_of_zero_is_refused() {
    let stream = Stream::new();
    let _exporter = stream.exporter();
    let error = stream.connect(Config::default().fence_timeout(Duration::ZERO)).unwrap_err();
    assert!(
        matches!(error, ConnectError::Config(_)) && error.to_string().contains("fence_timeout"),
        "{error}"
    );
}
