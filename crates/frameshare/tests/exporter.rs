// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that readers leave unread, with readers as threads of one process. Tests that need
//! limits or users of their own are in the workspace's `tests`.

use frameshare::{
    Endpoint, Event, Interrupt, Policy, Reason,
    exporter::{self, Exporter, Notice},
    reader::{self, Item, ReadError, Reader},
};
use std::{
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

/// Longer than any step takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// An exporter in a folder of its own, and what it says of readers.
struct Stream {
    endpoint: Endpoint,
    exporter: Exporter,
    notices: Receiver<Notice>,
    interrupt: Interrupt,
    _folder: tempfile::TempDir,
}

impl Stream {
    fn new(config: exporter::Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
        let (sender, notices) = channel();
        let exporter = Exporter::bind(&endpoint, config, move |notice| drop(sender.send(notice))).unwrap();
        Self { endpoint, exporter, notices, interrupt: Interrupt::new().unwrap(), _folder: folder }
    }

    fn reader(&self, policy: Policy, max_held: u32) -> Reader {
        let config = reader::Config::default().policy(policy).max_held(max_held);
        Reader::connect(&self.endpoint, config, &self.interrupt).unwrap()
    }

    fn next(&self, reader: &mut Reader) -> Result<Item, ReadError> {
        let item = reader.next(Some(PATIENCE), &self.interrupt)?;
        Ok(item.expect("nothing came in time"))
    }

    fn send(&self, bytes: usize) {
        self.exporter.send_event(Event { kind: 7, sticky: false, payload: vec![7; bytes] }).unwrap();
    }

    /// Waits for the removal of a reader.
    fn removal(&self) -> (Reason, String) {
        loop {
            if let Notice::ReaderRemoved { reason, why, .. } = self.notices.recv_timeout(PATIENCE).unwrap() {
                return (reason, why);
            }
        }
    }
}

/// Sends until the exporter has to keep messages for a reader that takes none.
fn fill_backlog(stream: &Stream, messages: usize) {
    (0..messages).for_each(|_| stream.send(0));
}

#[test]
fn reader_with_backlog_reads_the_end_of_the_stream() {
    let stream = Stream::new(exporter::Config::default());
    let mut reader = stream.reader(Policy::Latest, 4);
    fill_backlog(&stream, 400);
    stream.exporter.end_of_stream();
    let Stream { exporter, interrupt, _folder, .. } = stream;
    drop(exporter);
    let mut events = 0;
    loop {
        match reader.next(Some(PATIENCE), &interrupt).expect("the end is delivered first") {
            Some(Item::Event(_)) => events += 1,
            Some(Item::EndOfStream) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events, 400);
    let error = reader.next(Some(PATIENCE), &interrupt).unwrap_err();
    assert!(error.to_string().contains("the exporter has stopped"), "{error}");
}

#[test]
fn evicted_reader_without_frames_reads_the_reason() {
    let stream = Stream::new(exporter::Config::default());
    let mut reader = stream.reader(Policy::Latest, 4);
    while stream.exporter.reader_count() > 0 {
        stream.send(0);
    }
    let error = loop {
        match stream.next(&mut reader) {
            Ok(item) => assert!(matches!(item, Item::Event(_)), "{item:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::CutOff { reason: Reason::LimitExceeded, .. }), "{error}");
}

/// A stopped exporter waits for no reader, whatever it has left unread.
#[test]
fn exporter_beside_blocked_reader_stops_at_once() {
    let stream = Stream::new(exporter::Config::default());
    let _deaf = stream.reader(Policy::Latest, 4);
    fill_backlog(&stream, 400);
    let (done, stopped) = channel();
    let exporter = stream.exporter;
    thread::spawn(move || {
        drop(exporter);
        done.send(()).unwrap();
    });
    // Less than it waits for a reader that takes what was sent.
    stopped.recv_timeout(Duration::from_secs(4)).expect("it waits for the reader");
}

#[test]
fn reader_with_too_many_bytes_unread_is_evicted() {
    let stream = Stream::new(exporter::Config::default());
    let _deaf = stream.reader(Policy::Latest, 4);
    let sent = (0..200).take_while(|_| {
        stream.send(2 << 20);
        stream.exporter.reader_count() > 0
    });
    assert!(sent.count() < 100, "more than 200 MB wait for one reader");
    let (reason, why) = stream.removal();
    assert_eq!(reason, Reason::LimitExceeded);
    assert!(why.contains("bytes"), "{why}");
}

/// A large payload exists once, however many readers it waits for.
#[test]
fn large_payload_has_one_file_for_all_readers() {
    let stream = Stream::new(exporter::Config::default());
    let readers: Vec<_> = (0..6).map(|_| stream.reader(Policy::Latest, 2)).collect();
    fill_backlog(&stream, 400);
    (0..20).for_each(|_| stream.send(100_123));
    assert_eq!(payload_files(100_123), 20);
    drop(readers);
}

/// How many payloads of this length this process has open.
fn payload_files(length: u64) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_payload = |fd: &std::path::Path| {
        let target = std::fs::read_link(fd)
            .is_ok_and(|target| target.to_string_lossy().contains("frameshare-payload"));
        target && std::fs::metadata(fd).is_ok_and(|file| file.len() == length)
    };
    fds.filter(|fd| fd.as_ref().is_ok_and(|fd| is_payload(&fd.path()))).count()
}
