// SPDX-License-Identifier: MIT OR Apache-2.0

//! dma-bufs shared in place: identity, fences of devices, trust. Most tests need the kernel module
//! vgem, and run in guests (tests/guests/dmabuf).

mod devices;

use devices::{Buffer, Bytes, Fence, Vgem, skip, udmabuf};
use frameshare::{
    Endpoint, Interrupt, MemoryKind, Reason, Wait,
    exporter::{self, Exporter, Frame, PublishError, Purpose, Slot},
    fence::Written,
    memory::importer,
    reader::{self, ConnectError, Item, ReadError, Reader},
};
use rustix::{
    process::{Uid, geteuid},
    thread::set_thread_res_uid,
};
use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a frame to arrive that does not wait.
const MOMENT: Duration = Duration::from_millis(300);
const NOBODY: u32 = 65534;

/// A stream, and a dma-buf of a device to publish in it.
struct Stream {
    endpoint: Endpoint,
    exporter: Exporter,
    interrupt: Interrupt,
    _folder: tempfile::TempDir,
}

impl Stream {
    fn new(config: exporter::Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, config, drop).unwrap();
        Self { endpoint, exporter, interrupt: Interrupt::new().unwrap(), _folder: folder }
    }

    fn reader(&self, config: reader::Config) -> Reader {
        Reader::connect(&self.endpoint, config, &self.interrupt).unwrap()
    }

    fn publish(&self, slot: &Slot, keep: Option<Dropped>) -> Result<(), PublishError> {
        let frame = Frame::new(slot, slot.size(), Written::Cpu);
        let keep = keep.map(|keep| Box::new(keep) as Box<dyn std::any::Any + Send>);
        self.exporter.publish(Frame { keep, ..frame }, Wait::Forever).map(drop)
    }

    fn take(&self, reader: &mut Reader) -> reader::Frame {
        match reader.next(Some(PATIENCE), &self.interrupt).unwrap() {
            Some(Item::Frame(frame)) => frame,
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether a frame arrives within a moment.
    fn has_frame(&self, reader: &mut Reader) -> bool {
        reader.next(Some(MOMENT), &self.interrupt).unwrap().is_some()
    }
}

/// Guard in the place of upstream's buffer.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn guard() -> (Option<Dropped>, Arc<AtomicBool>) {
    let is_dropped = Arc::new(AtomicBool::new(false));
    (Some(Dropped(is_dropped.clone())), is_dropped)
}

/// A buffer of a device, its descriptor, and its bytes.
fn exported(device: &Vgem) -> (Buffer, OwnedFd, Bytes) {
    let buffer = device.make(4);
    (buffer, device.export(buffer, true), device.map(buffer))
}

/// Releases a frame of which the reader's device still reads `size` bytes.
fn read_by_device(theirs: &Vgem, frame: reader::Frame, size: u64) -> Fence<'_> {
    theirs.attach(theirs.import(frame.dma_buf().unwrap().0, size), false)
}

fn holds(frame: &reader::Frame, value: u8) -> bool {
    !frame.is_empty() && frame.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == value)
}

fn until(condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "it did not come about");
        thread::sleep(Duration::from_millis(1));
    }
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn file_that_is_no_dma_buf_is_not_shared() {
    let stream = Stream::new(exporter::Config::default());
    let file = fs::File::open("/dev/null").unwrap();
    let error = stream.exporter.adopt_dma_buf(file.as_fd()).unwrap_err().to_string();
    assert_eq!(error, "cannot share dmabuf memory: the descriptor is no dma-buf");
}

#[test]
fn descriptor_of_other_kind_or_size_is_not_imported() {
    let import = |fd: &OwnedFd, size| {
        let importer = importer(MemoryKind::DmaBuf, None, None).unwrap();
        importer.import(size, &[], Some(fd.as_fd())).map(drop).map_err(|error| error.to_string())
    };
    let file = fs::File::open("/dev/null").unwrap().into();
    let refused = import(&file, 4096).unwrap_err();
    assert_eq!(refused, "cannot import 4096 bytes of dmabuf memory: the descriptor is no dma-buf");
    let Some(device) = Vgem::open("descriptor_of_other_kind_or_size_is_not_imported") else { return };
    let (buffer, fd, _) = exported(&device);
    assert_eq!(import(&fd, buffer.size), Ok(()));
    for size in [buffer.size - 4096, buffer.size + 4096] {
        let refused = import(&fd, size).unwrap_err();
        assert!(
            refused.ends_with(&format!("the dma-buf has {} bytes instead of {size}", buffer.size)),
            "{refused}"
        );
    }
}

#[test]
fn dma_buf_is_imported_once_and_read_in_place() {
    let Some(device) = Vgem::open("dma_buf_is_imported_once_and_read_in_place") else { return };
    let stream = Stream::new(exporter::Config::default());
    let mut reader = stream.reader(reader::Config::default());
    let (buffer, fd, bytes) = exported(&device);
    let mut addresses = Vec::new();
    for value in 1..=3 {
        bytes.fill(value);
        // Another descriptor each time: the inode is the same.
        let again = device.export(buffer, true);
        let slot = stream.exporter.adopt_dma_buf(again.as_fd()).unwrap();
        stream.publish(&slot, None).unwrap();
        let frame = stream.take(&mut reader);
        assert!(holds(&frame, value));
        let (found, offset) = frame.dma_buf().unwrap();
        let inode = |fd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!((inode(found), offset), (inode(fd.as_fd()), 0));
        // The reader sees later writes of the device in place.
        bytes.fill(value + 100);
        assert!(holds(&frame, value + 100));
        addresses.push((slot.address(), frame.address()));
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 1, "it was mapped again");
    let stats = stream.exporter.stats().dma_bufs;
    assert_eq!((stats.frames, stats.fenced), (3, 0));
}

#[test]
fn dma_buf_of_memory_file_is_read_in_place() {
    const SIZE: u64 = 64 << 10;
    let Some((fd, bytes)) = udmabuf("dma_buf_of_memory_file_is_read_in_place", SIZE) else { return };
    let stream = Stream::new(exporter::Config::default());
    let mut readers = [stream.reader(reader::Config::default()), stream.reader(reader::Config::default())];
    for value in 1..=3 {
        bytes.fill(value);
        stream.publish(&stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap(), None).unwrap();
        for reader in &mut readers {
            let frame = stream.take(reader);
            assert!(frame.dma_buf().is_some() && frame.len() as u64 == SIZE && holds(&frame, value));
        }
    }
}

#[test]
fn frame_is_delivered_after_write_fence() {
    let Some(device) = Vgem::open("frame_is_delivered_after_write_fence") else { return };
    let stream = Stream::new(exporter::Config::default());
    let config = || reader::Config::default().fence_timeout(PATIENCE);
    let (mut reader, mut other) = (stream.reader(config()), stream.reader(config()));
    let (buffer, fd, bytes) = exported(&device);
    bytes.fill(1);
    let fence = device.attach(buffer, true);
    let slot = stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap();
    stream.publish(&slot, None).unwrap();
    assert!(!stream.has_frame(&mut reader) && other.try_next().unwrap().is_none());
    assert!(bytes.holds(1), "control: a reader that does not wait reads what was there before");
    bytes.fill(2);
    fence.signal();
    assert!(holds(&stream.take(&mut reader), 2) && holds(&stream.take(&mut other), 2));
    let stats = stream.exporter.stats().dma_bufs;
    assert_eq!((stats.frames, stats.fenced), (1, 1));
    drop(other);
    // A device that works on several frames at a time: each is pending when the next one comes.
    let buffers: Vec<_> = (0..4).map(|_| exported(&device)).collect();
    let mut fences = Vec::new();
    for (buffer, fd, bytes) in &buffers {
        bytes.fill(5);
        fences.push(device.attach(*buffer, true));
        stream.publish(&stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap(), None).unwrap();
        assert!(!stream.has_frame(&mut reader));
    }
    fences.into_iter().for_each(Fence::signal);
    let first = stream.take(&mut reader).descriptor().sequence.0;
    let next = stream.take(&mut reader).descriptor().sequence.0;
    assert_eq!((first, next), (2, 5), "the one that was waited for, then the newest");
    // A fence of a device that only reads delays no reader.
    let fence = device.attach(buffer, false);
    stream.publish(&slot, None).unwrap();
    assert!(holds(&stream.take(&mut reader), 2));
    fence.signal();
}

#[test]
fn late_write_fence_ends_connection() {
    let Some(device) = Vgem::open("late_write_fence_ends_connection") else { return };
    let stream = Stream::new(exporter::Config::default());
    let mut reader = stream.reader(reader::Config::default().fence_timeout(MOMENT));
    let (buffer, fd, _) = exported(&device);
    let fence = device.attach(buffer, true);
    stream.publish(&stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap(), None).unwrap();
    let error = reader.next(Some(PATIENCE), &stream.interrupt).unwrap_err();
    assert!(matches!(error, ReadError::Stalled { limit: MOMENT, .. }), "{error}");
    fence.signal();
}

#[test]
fn buffer_returns_after_readers_fence() {
    let Some(device) = Vgem::open("buffer_returns_after_readers_fence") else { return };
    let stream = Stream::new(exporter::Config::default().fence_timeout(PATIENCE));
    let mut reader = stream.reader(reader::Config::default());
    let (_, fd, _) = exported(&device);
    let slot = stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap();
    let (keep, is_returned) = guard();
    stream.publish(&slot, keep).unwrap();
    let theirs = Vgem::open("").unwrap();
    let fence = read_by_device(&theirs, stream.take(&mut reader), slot.size());
    until(|| stream.exporter.stats().readers[0].held == 0);
    thread::sleep(MOMENT);
    stream.exporter.reclaim();
    assert!(!is_returned.load(Ordering::SeqCst), "the reader's device still reads it");
    fence.signal();
    // Nothing but the service thread looks.
    until(|| is_returned.load(Ordering::SeqCst));
    // Control: without a fence it returns with the last lease.
    let (keep, is_returned) = guard();
    stream.publish(&slot, keep).unwrap();
    drop(stream.take(&mut reader));
    stream.exporter.reclaim();
    assert!(is_returned.load(Ordering::SeqCst));
}

#[test]
fn buffer_with_late_readers_fence_returns_after_timeout() {
    let Some(device) = Vgem::open("buffer_with_late_readers_fence_returns_after_timeout") else { return };
    let stream = Stream::new(exporter::Config::default().fence_timeout(MOMENT));
    let mut reader = stream.reader(reader::Config::default());
    let (_, fd, _) = exported(&device);
    let slot = stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap();
    let (keep, is_returned) = guard();
    stream.publish(&slot, keep).unwrap();
    let theirs = Vgem::open("").unwrap();
    let fence = read_by_device(&theirs, stream.take(&mut reader), slot.size());
    until(|| is_returned.load(Ordering::SeqCst));
    fence.signal();
}

#[test]
fn reader_without_dma_bufs_needs_copy() {
    let Some(device) = Vgem::open("reader_without_dma_bufs_needs_copy") else { return };
    let stream = Stream::new(exporter::Config::default());
    let (_, fd, _) = exported(&device);
    let slot = stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap();
    assert_eq!(stream.exporter.can_adopt_dma_bufs(), Ok(()));
    let mut reader = stream.reader(reader::Config::default().dma_bufs(false));
    let why = stream.exporter.can_adopt_dma_bufs().unwrap_err();
    assert_eq!(why.why, "it takes no dma-bufs");
    assert_eq!(stream.publish(&slot, None), Err(PublishError::NotForAll(why)));
    assert!(!stream.has_frame(&mut reader));
    drop(reader);
    until(|| stream.exporter.can_adopt_dma_bufs().is_ok());
    stream.publish(&slot, None).unwrap();
}

/// Connects as another user: the kernel reports the user of the thread.
fn try_reader_of(uid: u32, stream: &Stream) -> Result<Reader, ConnectError> {
    thread::scope(|scope| {
        let connect = || {
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(uid, uid, uid).unwrap();
            Reader::connect(&stream.endpoint, reader::Config::default(), &stream.interrupt)
        };
        scope.spawn(connect).join().unwrap()
    })
}

fn reader_of(uid: u32, stream: &Stream) -> Reader {
    try_reader_of(uid, stream).unwrap()
}

#[test]
fn other_users_get_no_dma_bufs_unless_trusted() {
    const TEST: &str = "other_users_get_no_dma_bufs_unless_trusted";
    let Some(device) = Vgem::open(TEST) else { return };
    if !geteuid().is_root() {
        return skip(TEST, "root is needed");
    }
    let config = || {
        let config = exporter::Config::default().allowed_uids(vec![NOBODY]).socket_mode(0o666);
        config.allow_udmabuf(true)
    };
    let buffer = device.make(4);
    for is_writable in [true, false] {
        let fd = device.export(buffer, is_writable);
        let stream = Stream::new(config());
        let mut reader = reader_of(NOBODY, &stream);
        let slot = stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap();
        let Err(PublishError::NotForAll(why)) = stream.publish(&slot, None) else { panic!("it is shared") };
        assert_eq!(why.why, "it is not of the exporter's user, nor of a trusted one");
        assert!(!stream.has_frame(&mut reader));

        let trusting = Stream::new(config().trusted_uids(vec![NOBODY]));
        let mut reader = reader_of(NOBODY, &trusting);
        let slot = trusting.exporter.adopt_dma_buf(fd.as_fd()).unwrap();
        trusting.publish(&slot, None).unwrap();
        assert!(trusting.take(&mut reader).dma_buf().is_some());
    }
}

#[test]
fn required_dma_bufs_exclude_readers_that_get_none() {
    let stream = Stream::new(exporter::Config::default());
    let mut readers = [true, false].map(|takes| stream.reader(reader::Config::default().dma_bufs(takes)));
    until(|| stream.exporter.reader_count() == 2);
    let slot = stream.exporter.acquire(16, Purpose::Copy, Wait::No).unwrap();
    stream.publish(&slot, None).unwrap();
    let held = readers.each_mut().map(|reader| stream.take(reader));
    stream.exporter.require_dma_bufs(true);
    assert_eq!(stream.exporter.can_adopt_dma_bufs(), Ok(()));
    assert_eq!(stream.exporter.reader_count(), 1);
    assert!(held.iter().all(|frame| holds(frame, 0)), "frames that are held stay readable");
    let [taking, other] = &mut readers;
    let cut_off = other.next(Some(PATIENCE), &stream.interrupt).unwrap_err();
    let ReadError::CutOff { reason, text } = cut_off else { panic!("{cut_off:?}") };
    let expected = "the stream's frames are in dma-bufs that cannot be copied: it takes no dma-bufs";
    assert_eq!((reason, text.as_str()), (Reason::NothingInCommon, expected));
    assert!(!stream.has_frame(taking), "it goes on");

    let connect = |takes| {
        let config = reader::Config::default().dma_bufs(takes);
        Reader::connect(&stream.endpoint, config, &stream.interrupt)
    };
    let ConnectError::Refused { reason, text } = connect(false).unwrap_err() else { panic!("not refused") };
    assert_eq!((reason, text.as_str()), (Reason::NothingInCommon, expected));
    drop(connect(true).unwrap());
    stream.exporter.require_dma_bufs(false);
    drop(connect(false).unwrap());
}

#[test]
fn required_dma_bufs_exclude_untrusted_users() {
    const TEST: &str = "required_dma_bufs_exclude_untrusted_users";
    if !geteuid().is_root() {
        return skip(TEST, "root is needed");
    }
    let config = || {
        let config = exporter::Config::default().allowed_uids(vec![NOBODY]).socket_mode(0o666);
        config.allow_udmabuf(true)
    };
    let stream = Stream::new(config());
    stream.exporter.require_dma_bufs(true);
    let ConnectError::Refused { reason, text } = try_reader_of(NOBODY, &stream).unwrap_err() else {
        panic!("not refused")
    };
    assert_eq!(reason, Reason::PermissionDenied, "{text}");
    assert!(text.ends_with("it is not of the exporter's user, nor of a trusted one"), "{text}");
    let trusting = Stream::new(config().trusted_uids(vec![NOBODY]));
    trusting.exporter.require_dma_bufs(true);
    drop(try_reader_of(NOBODY, &trusting).unwrap());
}

/// The reason why other users get no dma-bufs that are exported for reading only, either: a device
/// that imports one does not check the mode.
#[test]
fn descriptor_for_reading_only_is_written_through_device() {
    let Some(device) = Vgem::open("descriptor_for_reading_only_is_written_through_device") else { return };
    let buffer = device.make(4);
    let (fd, bytes) = (device.export(buffer, false), device.map(buffer));
    bytes.fill(1);
    assert!(Bytes::map(fd.as_fd(), buffer.size, 0).is_err(), "it is for reading only");
    let other = Vgem::open("").unwrap();
    other.map(other.import(fd.as_fd(), buffer.size)).fill(2);
    assert!(bytes.holds(2));
}

/// A producer that makes a new dma-buf for each frame.
#[test]
fn descriptors_of_ever_new_dma_bufs_are_bounded() {
    let Some(device) = Vgem::open("descriptors_of_ever_new_dma_bufs_are_bounded") else { return };
    let stream = Stream::new(exporter::Config::default());
    let mut reader = stream.reader(reader::Config::default());
    let before = open_files();
    for value in 0..200 {
        let (_, fd, bytes) = exported(&device);
        bytes.fill(value);
        stream.publish(&stream.exporter.adopt_dma_buf(fd.as_fd()).unwrap(), None).unwrap();
        assert!(holds(&stream.take(&mut reader), value));
    }
    assert!(reader.try_next().unwrap().is_none());
    // Two generations of 64 on each side, and a few descriptors that are being closed.
    until(|| {
        stream.exporter.reclaim();
        open_files() < before + 2 * 2 * 64 + 20
    });
}
