// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by the wake sockets, and by the wake-up page that the readers of one user share.

use super::{Fate, cut_off, take};
use crate::Result;
use frameshare::Policy;
use frameshare_protocol::page::WAKE_WORDS;
use frameshare_tests::raw::{Page, RawReader, hello};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
    net::{SendFlags, Shutdown, send, shutdown},
    thread::futex::{self, ClockId, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags},
    time::clock_gettime,
};
use std::{
    path::Path,
    sync::atomic::Ordering::SeqCst,
    thread,
    time::{Duration, Instant},
};

/// Duration of an attack by the wake-up page.
const ATTACK: Duration = Duration::from_millis(500);
/// Sleepers in a crowd: threads, and futexes in the one call of each, which are all the same.
const CROWD: usize = 80;
const MAX_WAITERS: usize = 128;

/// Joins as a lossless reader at its credit limit, which the exporter must wait for.
fn lossless(path: &Path) -> Result<RawReader> {
    let reader = RawReader::join(path, hello(Policy::Lossless, 2))?;
    take(&reader)?;
    take(&reader)?;
    Ok(reader)
}

fn fill_up(reader: &RawReader) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    while send(&reader.fds[3], &[1; 4096], flags).is_ok() {}
}

/// Fills the wake socket, never drains its own, and exceeds the reader timeout.
pub fn fill(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    for _ in 0..50 {
        fill_up(&reader);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(Fate::Left)
}

/// The exporter does not wait for a reader whose wake socket is closed.
pub fn close(path: &Path) -> Result<Fate> {
    let mut reader = lossless(path)?;
    drop(reader.fds.remove(3));
    cut_off(&reader)?;
    Ok(Fate::Left)
}

/// A half-closed socket stays readable.
pub fn half_close(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    shutdown(&reader.fds[3], Shutdown::Write)?;
    cut_off(&reader)?;
    Ok(Fate::Left)
}

/// Clears O_NONBLOCK on all shared sockets, then fills the wake socket.
pub fn blocking(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    for fd in &reader.fds {
        let flags = fcntl_getfl(fd)?;
        fcntl_setfl(fd, flags - OFlags::NONBLOCK)?;
    }
    let flags = fcntl_getfl(&reader.channel)?;
    fcntl_setfl(&reader.channel, flags - OFlags::NONBLOCK)?;
    fill_up(&reader);
    thread::sleep(Duration::from_millis(50));
    Ok(Fate::Left)
}

/// Joins, and calls `attack` with the page and the number of its futex for some time.
fn on_page(path: &Path, attack: impl Fn(&Page, u32) -> Result<()>) -> Result<Fate> {
    let reader = RawReader::join(path, hello(Policy::Latest, 2))?;
    let word = reader.welcome.wake_word.ok_or("the exporter offers no futex")?;
    let fd = reader.fds.last().ok_or("the exporter sent no page")?;
    // With a writable mapping it could end every sleep at once.
    if Page::writable(fd, WAKE_WORDS as usize * 4).is_ok() {
        return Err("the wake-up page can be mapped writable".into());
    }
    let page = Page::read_only(fd, WAKE_WORDS as usize * 4)?;
    let end = Instant::now() + ATTACK;
    while Instant::now() < end {
        attack(&page, word)?;
    }
    Ok(Fate::Left)
}

/// Wakes all sleepers all the time.
pub fn storm(path: &Path) -> Result<Fate> {
    on_page(path, |page, word| {
        futex::wake(page.futex(word), Flags::empty(), i32::MAX as u32)?;
        Ok(())
    })
}

/// Moves all sleepers to a futex that no exporter wakes.
pub fn divert(path: &Path) -> Result<Fate> {
    on_page(path, |page, word| {
        let (from, to) = (page.futex(word), page.futex(WAKE_WORDS - 1));
        match futex::cmp_requeue(from, Flags::empty(), 0, i32::MAX as u32, to, from.load(SeqCst)) {
            // The exporter has woken them meanwhile.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}

/// Adds 10,000 sleepers, and again when they are woken.
pub fn crowd(path: &Path) -> Result<Fate> {
    on_page(path, |page, word| {
        let now = clock_gettime(ClockId::Monotonic);
        let end = Timespec { tv_sec: now.tv_sec + 1, ..now };
        let until = Instant::now() + ATTACK;
        let sleep = || {
            let mut waiter = Wait::new();
            waiter.uaddr = WaitPtr::new(page.futex(word).as_ptr().cast());
            waiter.flags = WaitFlags::SIZE_U32;
            while Instant::now() < until {
                waiter.val = page.futex(word).load(SeqCst).into();
                let _ =
                    futex::waitv(&[waiter; MAX_WAITERS], WaitvFlags::empty(), Some(&end), ClockId::Monotonic);
            }
        };
        thread::scope(|scope| (0..CROWD).for_each(|_| drop(scope.spawn(sleep))));
        Ok(())
    })
}
