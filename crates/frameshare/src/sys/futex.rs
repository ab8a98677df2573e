// SPDX-License-Identifier: MIT OR Apache-2.0

//! Wake-ups by futex: one system call wakes all readers of a stream that are of one user.
//!
//! A process with exporters makes one page of futexes for each user of its readers, with one word
//! for each stream. A page is read-only for readers, but each of them can wake its sleepers,
//! requeue them, or add sleepers of its own. So readers of different users never share a page,
//! every sleep is bounded, and a wake-up ends no more sleeps than the stream has readers: a
//! hostile reader delays readers of its own user, and the exporter never.

use super::{
    FutexWords, Interrupt, Mapping, PerProcess, SealedAgainst, Timeout, UntrustedFd, check_memfd,
    is_overflow_uid, memfd, monotonic_ns, peer::is_own_or_root, poll::FineTimer, quiet,
};
use frameshare_protocol::page::WAKE_WORDS;
use rustix::{
    io::Errno,
    thread::futex::{self, ClockId, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags},
};
use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

const PAGE: usize = WAKE_WORDS as usize * 4;

/// The futexes for readers of one user.
#[derive(Debug)]
struct WakePage {
    words: FutexWords,
    fd: Arc<OwnedFd>,
}

impl WakePage {
    fn new() -> io::Result<Self> {
        let fd = memfd("frameshare-wake", PAGE as u64)?;
        let words = Mapping::writable(&fd, PAGE)?.into();
        SealedAgainst::ResizingAndWriting.seal(&fd)?;
        Ok(Self { words, fd: Arc::new(fd) })
    }
}

/// Returns whether the kernel has futex_waitv (Linux 5.16), and lets this process call it.
pub fn has_futex_waitv() -> bool {
    // An empty list is invalid for a kernel that has the call.
    let probed = futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic);
    probed.is_err_and(|error| error == Errno::INVAL)
}

/// The readers of one stream that are of one user. Each of them keeps one reference.
#[derive(Debug)]
pub struct WakeGroup {
    page: Arc<WakePage>,
    word: usize,
}

/// A page in use, and the stream of each of its words.
struct Registered {
    uid: u32,
    page: Weak<WakePage>,
    /// Keeps the page of another user, who may keep the memory of each page that it gets.
    _kept: Option<Arc<WakePage>>,
    groups: Vec<(u64, Weak<WakeGroup>)>,
}

/// The pages of this process. A forked child makes pages of its own, since it would give the same
/// words to other streams.
static PAGES: PerProcess<Mutex<Vec<Registered>>> = PerProcess::new(Mutex::default);

impl WakeGroup {
    /// Returns the group of the readers of user `uid` of a stream of this process. `None` for users
    /// without a number in this user namespace, who cannot be told apart, and while all words of
    /// the page are in use.
    ///
    /// # Errors
    /// The error of a system call, such as a lack of memory or files.
    pub fn of(stream: u64, uid: u32) -> io::Result<Option<Arc<Self>>> {
        if is_overflow_uid(uid) {
            return Ok(None);
        }
        let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|page| page.page.strong_count() > 0);
        let known = pages.iter_mut().find(|page| page.uid == uid);
        let known = known.and_then(|known| known.page.upgrade().map(|page| (known, page)));
        if let Some((known, page)) = known {
            return Ok(known.group(stream, &page));
        }
        let page = Arc::new(WakePage::new()?);
        let mut new = Registered {
            uid,
            page: Arc::downgrade(&page),
            _kept: (!is_own_or_root(uid)).then(|| page.clone()),
            groups: Vec::new(),
        };
        let group = new.group(stream, &page);
        pages.push(new);
        Ok(group)
    }

    /// The page, to be sent to a reader of the group.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.page.fd
    }

    /// The number of its word.
    pub fn word(&self) -> u32 {
        self.word as u32
    }

    /// Number of readers in the group, or more while wake-ups are pending.
    pub fn readers(self: &Arc<Self>) -> u32 {
        Arc::strong_count(self) as u32
    }

    /// Wakes all sleeping readers of the group, `readers` at most: without that limit a reader with
    /// many sleeping threads would keep the exporter busy.
    pub fn wake(&self, readers: u32) {
        quiet::check();
        let word = &self.page.words[self.word];
        // SYNC(futex): a reader that loads this value sees the change that it is woken for.
        word.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(word, Flags::empty(), readers);
    }
}

impl Registered {
    fn group(&mut self, stream: u64, page: &Arc<WakePage>) -> Option<Arc<WakeGroup>> {
        let known = self.groups.iter().find(|(of, _)| *of == stream);
        if let Some(group) = known.and_then(|(_, group)| group.upgrade()) {
            return Some(group);
        }
        let free = self.groups.iter().position(|(_, group)| group.strong_count() == 0);
        let word = free.unwrap_or(self.groups.len());
        if word >= WAKE_WORDS as usize {
            return None;
        }
        let group = Arc::new(WakeGroup { page: page.clone(), word });
        let entry = (stream, Arc::downgrade(&group));
        match self.groups.get_mut(word) {
            Some(free) => *free = entry,
            None => self.groups.push(entry),
        }
        Some(group)
    }
}

/// The end of a sleep on a futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// By a wake-up, a change of the word, an interrupt, or for no reason.
    Woken,
    /// By the timeout.
    TimedOut,
    /// The kernel has no futex_waitv (Linux 5.16), or forbids it to this process.
    Unsupported,
}

/// A reader's futex.
#[derive(Debug)]
pub struct WakeWord {
    words: FutexWords,
    word: usize,
}

impl WakeWord {
    /// Maps the page of an exporter.
    ///
    /// # Errors
    /// The reason, if it is not a sealed page, or has no such word.
    pub fn open(fd: &UntrustedFd, word: u32) -> io::Result<Self> {
        if word >= WAKE_WORDS {
            let text = format!("a wake-up page has {WAKE_WORDS} words, and none of number {word}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        check_memfd(fd, PAGE as u64, SealedAgainst::ResizingAndWriting)?;
        Ok(Self { words: Mapping::read_only(fd, PAGE)?.into(), word: word as usize })
    }

    /// Returns its value, to sleep with if a check after this finds nothing.
    pub fn value(&self) -> u32 {
        // SYNC(futex): against the exporter's wake-up.
        self.words[self.word].load(Ordering::Acquire)
    }

    /// Sleeps while the futex has this value, until a wake-up, an interrupt, or the timeout.
    pub fn sleep(&self, value: u32, interrupt: Option<&Interrupt>, timeout: Timeout) -> Slept {
        let word = waiter(&self.words[self.word], value, WaitFlags::empty());
        match interrupt {
            None => sleep_on(&[word], timeout),
            Some(interrupt) => {
                let sleep =
                    |flag: &AtomicU32| sleep_on(&[word, waiter(flag, 0, WaitFlags::PRIVATE)], timeout);
                interrupt.sleep(sleep).unwrap_or(Slept::Woken)
            }
        }
    }
}

fn waiter(word: &AtomicU32, value: u32, flags: WaitFlags) -> Wait {
    let mut waiter = Wait::new();
    waiter.val = value.into();
    waiter.uaddr = WaitPtr::new(word.as_ptr().cast());
    waiter.flags = flags | WaitFlags::SIZE_U32;
    waiter
}

fn sleep_on(waiters: &[Wait], timeout: Timeout) -> Slept {
    let left = timeout.left();
    let _fine = FineTimer::if_short(left);
    let end = left.map(|left| {
        let end = u128::from(monotonic_ns()) + left.as_nanos();
        let second = 1_000_000_000;
        Timespec { tv_sec: (end / second).min(i64::MAX as u128) as i64, tv_nsec: (end % second) as _ }
    });
    match futex::waitv(waiters, WaitvFlags::empty(), end.as_ref(), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Slept::Woken,
        Err(Errno::TIMEDOUT) => Slept::TimedOut,
        Err(_) => Slept::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        thread,
        time::{Duration, Instant},
    };

    const UID: u32 = 4_000_001;
    const PATIENCE: Duration = Duration::from_secs(60);

    fn open(group: &WakeGroup) -> WakeWord {
        let fd = UntrustedFd::received(group.fd().try_clone().unwrap(), UID);
        WakeWord::open(&fd, group.word()).unwrap()
    }

    fn in_a_minute() -> Timeout {
        Timeout::after(Some(PATIENCE))
    }

    /// Returns whether the kernel has futex_waitv (Linux 5.16). If not, a sleep has to say so, and
    /// the test is reported as skipped.
    fn can_sleep(test: &str, word: &WakeWord) -> bool {
        let slept = word.sleep(word.value().wrapping_add(1), None, in_a_minute());
        if slept == Slept::Unsupported {
            let line = format!("SKIP {test}: no futex_waitv, and a sleep returns so\n");
            io::Write::write_all(&mut io::stdout(), line.as_bytes()).unwrap();
        }
        slept != Slept::Unsupported
    }

    #[test]
    fn one_wake_up_ends_all_sleeps_of_a_group() {
        let group = WakeGroup::of(1, UID).unwrap().unwrap();
        if !can_sleep("one_wake_up_ends_all_sleeps_of_a_group", &open(&group)) {
            return;
        }
        let start = Instant::now();
        thread::scope(|scope| {
            let sleepers: Vec<_> = (0..8)
                .map(|_| {
                    let (word, member) = (open(&group), group.clone());
                    let value = word.value();
                    scope.spawn(move || (word.sleep(value, None, in_a_minute()), drop(member)).0)
                })
                .collect();
            thread::sleep(Duration::from_millis(20));
            group.wake(group.readers());
            for sleeper in sleepers {
                assert_eq!(sleeper.join().unwrap(), Slept::Woken);
            }
        });
        assert!(start.elapsed() < PATIENCE);
    }

    #[test]
    fn sleep_ends_by_timeout_interrupt_and_changed_word() {
        let group = WakeGroup::of(2, UID).unwrap().unwrap();
        let (word, interrupt) = (open(&group), Interrupt::new().unwrap());
        if !can_sleep("sleep_ends_by_timeout_interrupt_and_changed_word", &word) {
            return;
        }
        let short = Timeout::after(Some(Duration::from_millis(5)));
        assert_eq!(word.sleep(word.value(), Some(&interrupt), short), Slept::TimedOut);
        let before = word.value();
        group.wake(1);
        assert_eq!(word.sleep(before, Some(&interrupt), in_a_minute()), Slept::Woken);
        // Set before the sleep, and during it.
        for pause in [0, 20] {
            interrupt.clear();
            thread::scope(|scope| {
                let setting = scope.spawn(|| {
                    thread::sleep(Duration::from_millis(pause));
                    interrupt.set();
                });
                assert_eq!(word.sleep(word.value(), Some(&interrupt), in_a_minute()), Slept::Woken);
                setting.join().unwrap();
            });
        }
    }

    #[test]
    fn users_share_no_page_and_streams_no_word() {
        let group = |stream, uid| WakeGroup::of(stream, uid).unwrap().unwrap();
        let (ours, same, second, other) = (group(3, UID), group(3, UID), group(4, UID), group(3, UID + 1));
        assert!(Arc::ptr_eq(&ours, &same));
        assert!(Arc::ptr_eq(&ours.page, &second.page) && ours.word != second.word);
        assert!(!Arc::ptr_eq(&ours.page, &other.page));
        let unmapped = super::super::overflow_uid();
        assert!(unmapped.is_none_or(|uid| WakeGroup::of(3, uid).unwrap().is_none()));
    }

    #[test]
    fn words_of_ended_streams_are_used_again() {
        let uid = UID + 2;
        let kept = WakeGroup::of(0, uid).unwrap().unwrap();
        let all: Vec<_> =
            (1..u64::from(WAKE_WORDS)).map(|stream| WakeGroup::of(stream, uid).unwrap().unwrap()).collect();
        assert!(WakeGroup::of(5000, uid).unwrap().is_none());
        drop(all);
        let again = WakeGroup::of(5000, uid).unwrap().unwrap();
        assert!(again.word != kept.word && again.word < WAKE_WORDS as usize);
    }

    #[test]
    fn invalid_pages_and_words_are_refused() {
        let received = |fd| UntrustedFd::received(fd, UID);
        let group = WakeGroup::of(6, UID).unwrap().unwrap();
        let page = received(group.fd().try_clone().unwrap());
        assert!(WakeWord::open(&page, WAKE_WORDS).is_err());
        let short = memfd("test", 8).unwrap();
        SealedAgainst::ResizingAndWriting.seal(&short).unwrap();
        assert!(WakeWord::open(&received(short), 0).is_err());
        assert!(WakeWord::open(&received(memfd("test", PAGE as u64).unwrap()), 0).is_err());
        // A reader can neither map the page writable nor write it.
        assert!(Mapping::writable(&page, PAGE).is_err());
        assert!(rustix::io::pwrite(&page, &[1], 0).is_err());
    }
}
