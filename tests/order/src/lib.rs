// SPDX-License-Identifier: MIT OR Apache-2.0

//! Detector of accesses to GPU memory that have no order.
//!
//! The simulated driver (`tests/simcuda`) appends the operations of all processes to the file that
//! `SIMCUDA_ORDER` names. A [`Checker`] follows them with vector clocks: an operation happens
//! before another one if streams, events, timeline values, waits of the CPU or shared words order
//! them. Two accesses to one range of memory, at least one of them a write, without such an order
//! are a [`Violation`], also if they did not meet in this run.
//!
//! The operations of each stream are one track of a clock, and those of the CPU of a process are
//! one: what one thread has found complete counts as known to all threads, since the trace does not
//! have their locks. So a missing order between two threads of one process is not detected.

mod clock;
mod exceptions;
mod follow;
mod line;
mod shadow;

use clock::{Clock, Track};
use exceptions::{Life, Need};
use line::{Item, Line, Range, What, Who};
use shadow::Shadow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::{Display, Formatter};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::rc::Rc;

pub use follow::{Abort, run};
pub use shadow::Access;

/// A fault of a program, or of its trace.
#[derive(Clone, Debug)]
pub enum Violation {
    /// Two accesses to a range of memory without an order.
    Unordered {
        /// The access whose line comes first.
        earlier: Box<Access>,
        /// The access whose line comes last.
        later: Box<Access>,
        /// The range: file, first byte, and the byte after the last one.
        range: (String, u64, u64),
    },
    /// A line without a meaning, or a file that cannot be read.
    Unreadable {
        /// Number of the line.
        line: u64,
        /// The line, or the error.
        text: String,
    },
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Violation::Unordered { earlier, later, range: (file, start, end) } => write!(
                f,
                "unordered accesses to {} bytes at {file}:{start:x}\n  earlier: {earlier}\n  later:   {later}",
                end - start
            ),
            Violation::Unreadable { line, text } => write!(f, "line {line} of the trace: {text}"),
        }
    }
}

impl std::error::Error for Violation {}

/// Size of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of lines.
    pub lines: u64,
    /// Number of processes.
    pub processes: usize,
    /// Number of accesses to memory.
    pub accesses: u64,
}

/// Checks a trace to its end.
///
/// # Errors
/// The first violation.
pub fn check(path: impl AsRef<Path>) -> Result<Summary, Box<Violation>> {
    let mut checker = Checker::new();
    let unreadable = |line, error: std::io::Error| Violation::Unreadable { line, text: error.to_string() };
    let file = std::fs::File::open(path).map_err(|error| unreadable(0, error))?;
    for line in BufReader::new(file).lines() {
        checker.feed(&line.map_err(|error| unreadable(checker.summary().lines, error))?)?;
    }
    Ok(checker.summary())
}

/// Number of past items of a stream whose clocks are exact; those of older items are rounded up.
const EXACT: usize = 1024;

/// Values that are kept in order, the older ones with gaps. A lookup that meets a gap finds the
/// next later entry, so that no order is missed.
#[derive(Debug)]
struct History<T>(VecDeque<(T, Rc<Clock>)>);

impl<T> History<T> {
    fn push(&mut self, key: T, clock: Clock) {
        self.0.push_back((key, Rc::new(clock)));
        if self.0.len() > 2 * EXACT {
            let recent = self.0.split_off(EXACT);
            let old = std::mem::replace(&mut self.0, recent);
            for entry in old.into_iter().skip(1).step_by(2).collect::<Vec<_>>().into_iter().rev() {
                self.0.push_front(entry);
            }
        }
    }

    fn last(&self) -> Option<&Rc<Clock>> {
        self.0.back().map(|(_, clock)| clock)
    }
}

#[derive(Debug)]
struct Stream {
    track: Track,
    /// Number of the first item.
    first: u64,
    /// Number and clock of the item that began last.
    now: u64,
    clock: Clock,
    past: History<u64>,
    /// Items that have not begun, each with the clock of the CPU and its dependencies.
    queued: VecDeque<(u64, Clock, Vec<Item>)>,
}

impl Stream {
    /// Returns the clock of an item and all items before it.
    fn clock_at(&self, seq: u64) -> Option<Clock> {
        if seq < self.first || self.now == 0 {
            return None;
        }
        if seq >= self.now {
            return Some(self.clock.clone());
        }
        let at = self.past.0.partition_point(|&(number, _)| number < seq);
        let mut clock =
            self.past.0.get(at).map_or_else(|| self.clock.clone(), |(_, clock)| (**clock).clone());
        clock.set(self.track, seq);
        Some(clock)
    }
}

#[derive(Debug)]
struct Process {
    name: Rc<str>,
    pid: u32,
    life: Life,
    track: Track,
    clock: Clock,
    streams: HashMap<u64, Stream>,
}

impl Process {
    /// Returns the clock of the CPU for an operation that others may be ordered behind.
    fn tick(&mut self) -> Clock {
        let clock = self.clock.clone();
        self.clock.set(self.track, clock.time(self.track) + 1);
        clock
    }

    fn clock_at(&self, (stream, seq): Item) -> Option<Clock> {
        self.streams.get(&stream)?.clock_at(seq)
    }

    /// Returns the clock of an operation that others may be ordered behind.
    fn clock_of(&mut self, who: Who) -> Clock {
        match who {
            Who::Cpu => self.tick(),
            Who::Item((stream, _)) => {
                self.streams.get(&stream).map(|stream| stream.clock.clone()).unwrap_or_default()
            }
        }
    }

    fn join(&mut self, who: Who, clock: &Clock) {
        match who {
            Who::Cpu => self.clock.join(clock),
            Who::Item((stream, _)) => {
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.clock.join(clock);
                }
            }
        }
    }
}

/// Whether a value is at least another one, as CUDA compares them.
fn at_least(value: u64, target: u64) -> bool {
    value.wrapping_sub(target).cast_signed() >= 0
}

/// Stores of a word: the value, if the trace has it, and the clock of all stores so far.
type Word = History<Option<u64>>;

/// Follows a trace line by line.
#[derive(Debug, Default)]
pub struct Checker {
    processes: Vec<Process>,
    by_name: HashMap<String, usize>,
    tracks: Track,
    words: HashMap<String, Word>,
    /// Completed records of each interprocess event.
    events: HashMap<String, BTreeMap<u64, Rc<Clock>>>,
    memory: HashMap<String, Shadow>,
    /// Violations if the process of the earlier access is still alive, by that process.
    suspected: Vec<(usize, Box<Violation>)>,
    summary: Summary,
}

impl Checker {
    /// Returns a checker at the beginning of a trace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the size of the trace so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Follows whole lines. After a violation it can be called further.
    ///
    /// # Errors
    /// The first violation in these lines.
    pub fn feed(&mut self, lines: &str) -> Result<(), Box<Violation>> {
        let mut first = Ok(());
        for line in lines.lines() {
            let result = self.feed_line(line);
            if first.is_ok() {
                first = result;
            }
        }
        first
    }

    fn feed_line(&mut self, text: &str) -> Result<(), Box<Violation>> {
        self.summary.lines += 1;
        let unreadable = || Violation::Unreadable { line: self.summary.lines, text: text.to_owned() };
        let Line { process: name, what } = line::parse(text).ok_or_else(unreadable)?;
        let at = self.process(name);
        let result = self.follow(at, name, what);
        let is_last_line = self.processes[at].life != Life::Running;
        let (mine, others) =
            std::mem::take(&mut self.suspected).into_iter().partition::<Vec<_>, _>(|&(owner, _)| owner == at);
        self.suspected = others;
        match mine.into_iter().next() {
            Some((_, violation)) if !is_last_line => result.and(Err(violation)),
            _ => result,
        }
    }

    fn follow(&mut self, at: usize, name: &str, what: What<'_>) -> Result<(), Box<Violation>> {
        let process = &mut self.processes[at];
        match what {
            What::Begin(command) => process.name = format!("{name} `{command}`").into(),
            What::Enqueue((number, seq), dependencies) => {
                let clock = process.tick();
                let stream = process.streams.entry(number).or_insert_with(|| {
                    self.tracks += 1;
                    Stream {
                        track: self.tracks,
                        first: seq,
                        now: 0,
                        clock: Clock::default(),
                        past: History(VecDeque::new()),
                        queued: VecDeque::new(),
                    }
                });
                stream.queued.push_back((seq, clock, dependencies));
            }
            What::Run(item, name, ranges) => {
                self.begin(at, item);
                return self.access(at, Who::Item(item), name, &ranges);
            }
            What::Access(who, name, ranges) => return self.access(at, who, name, &ranges),
            What::Release(who, word, value) => {
                let mut clock = process.clock_of(who);
                let word = self.words.entry(word.to_owned()).or_insert_with(|| History(VecDeque::new()));
                if let Some(last) = word.last() {
                    clock.join(last);
                }
                let smaller = |&(old, _): &(Option<u64>, _)| {
                    old.zip(value).is_some_and(|(old, new)| !at_least(new, old))
                };
                if word.0.iter().any(smaller) {
                    // The word starts anew.
                    word.0.clear();
                }
                word.push(value, clock);
            }
            What::Acquire(who, word, target) => {
                if let Some(word) = self.words.get(word) {
                    let reaches = |&(value, _): &&(Option<u64>, _)| {
                        value.zip(target).is_some_and(|(value, target)| at_least(value, target))
                    };
                    // A wait is ordered behind the first store that ends it, whichever it has seen.
                    let found = word.0.iter().find(reaches).or(word.0.back());
                    if let Some((_, clock)) = found {
                        process.join(who, clock);
                    }
                }
            }
            What::Signal(who, event, value) => {
                let mut clock = process.clock_of(who);
                let records = self.events.entry(event.to_owned()).or_default();
                if let Some((_, last)) = records.range(..value).next_back() {
                    clock.join(last);
                }
                records.insert(value, clock.into());
                if records.len() > 2 * EXACT {
                    records.pop_first();
                }
            }
            What::Wait(who, event, value) => {
                let record = self.events.get(event).and_then(|records| records.range(value..).next());
                if let Some((_, clock)) = record {
                    process.join(who, clock);
                }
            }
            What::Synced(item) | What::Enter(item) => {
                if let Some(clock) = process.clock_at(item) {
                    process.clock.join(&clock);
                }
            }
            What::Leave(item) => {
                let clock = process.tick();
                process.join(Who::Item(item), &clock);
            }
            What::Exits => {}
            What::Dying => process.life = Life::Dying,
            What::Ended => {
                process.life = Life::Ended;
                process.streams.clear();
            }
        }
        Ok(())
    }

    fn process(&mut self, name: &str) -> usize {
        if let Some(&at) = self.by_name.get(name) {
            return at;
        }
        self.tracks += 1;
        let mut clock = Clock::default();
        clock.set(self.tracks, 1);
        self.processes.push(Process {
            name: name.into(),
            pid: name.split('.').next().and_then(|pid| pid.parse().ok()).unwrap_or(0),
            life: Life::Running,
            track: self.tracks,
            clock,
            streams: HashMap::new(),
        });
        self.summary.processes = self.processes.len();
        self.by_name.insert(name.to_owned(), self.processes.len() - 1);
        self.processes.len() - 1
    }

    /// Begins an item: it is ordered behind its stream, the CPU that queued it, and its
    /// dependencies.
    fn begin(&mut self, process: usize, (number, seq): Item) {
        let process = &mut self.processes[process];
        let mut clocks = Vec::new();
        let Some(stream) = process.streams.get_mut(&number) else { return };
        // Items before it that have not begun were skipped, after an error of their context.
        while stream.queued.front().is_some_and(|&(queued, ..)| queued < seq) {
            stream.queued.pop_front();
        }
        if stream.queued.front().is_some_and(|&(queued, ..)| queued == seq)
            && let Some((_, clock, dependencies)) = stream.queued.pop_front()
        {
            clocks.extend(dependencies.iter().filter_map(|&item| process.clock_at(item)));
            clocks.push(clock);
        }
        let Some(stream) = process.streams.get_mut(&number) else { return };
        if stream.now > 0 {
            stream.past.push(stream.now, stream.clock.clone());
        }
        clocks.iter().for_each(|clock| stream.clock.join(clock));
        stream.now = seq;
        stream.clock.set(stream.track, seq);
    }

    fn access(
        &mut self,
        at: usize,
        who: Who,
        name: &str,
        ranges: &[Range<'_>],
    ) -> Result<(), Box<Violation>> {
        let process = &self.processes[at];
        let (track, clock, item) = match who {
            Who::Cpu => (process.track, &process.clock, None),
            Who::Item(item) => {
                let Some(stream) = process.streams.get(&item.0) else { return Ok(()) };
                (stream.track, &stream.clock, Some(item))
            }
        };
        let mut first = Ok(());
        for range in ranges.iter().filter(|range| range.start < range.end) {
            self.summary.accesses += 1;
            let file =
                if range.file == "anon" { format!("anon.{}", process.name) } else { range.file.to_owned() };
            let access = Rc::new(Access {
                name: name.to_owned(),
                process: process.name.clone(),
                pid: process.pid,
                item,
                write: range.write,
                line: self.summary.lines,
                track,
                time: clock.time(track),
                owner: at,
            });
            let shadow = self.memory.entry(file.clone()).or_default();
            for (earlier, (start, end)) in shadow.access((range.start, range.end), &access, clock) {
                let owner = earlier.owner;
                let need = exceptions::need(&earlier, self.processes[owner].life, &access);
                let violation = || {
                    Box::new(Violation::Unordered {
                        earlier: Box::new((*earlier).clone()),
                        later: Box::new((*access).clone()),
                        range: (file.clone(), start, end),
                    })
                };
                match need {
                    Need::Order if first.is_ok() => first = Err(violation()),
                    Need::OrderInLife => self.suspected.push((owner, violation())),
                    _ => {}
                }
            }
        }
        first
    }
}
