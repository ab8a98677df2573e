// SPDX-License-Identifier: MIT OR Apache-2.0

//! The last accesses to each range of memory.

use crate::clock::{Clock, Track};
use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::rc::Rc;

/// An access to memory.
#[derive(Clone, Debug)]
pub struct Access {
    /// The operation: `copy`, `memset`, `kernel`, `CPU`, ...
    pub name: String,
    /// The process and its command.
    pub process: Rc<str>,
    /// Pid of the process.
    pub pid: u32,
    /// Stream and sequence number of the item; none for the CPU.
    pub item: Option<(u64, u64)>,
    /// Whether it writes.
    pub write: bool,
    /// Number of the line in the trace.
    pub line: u64,
    pub(crate) track: Track,
    pub(crate) time: u64,
    pub(crate) owner: usize,
}

impl Display for Access {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {}", if self.write { "write" } else { "read" }, self.name)?;
        if let Some((stream, seq)) = self.item {
            write!(f, ", item {seq} of stream {stream}")?;
        }
        write!(f, ", process {} (line {})", self.process, self.line)
    }
}

impl Access {
    fn is_before(&self, track: Track, clock: &Clock) -> bool {
        self.track == track || clock.time(self.track) >= self.time
    }
}

#[derive(Clone, Debug, Default)]
struct Cell {
    end: u64,
    write: Option<Rc<Access>>,
    /// Reads since, the last one of each track.
    reads: Vec<Rc<Access>>,
}

/// The last accesses to the ranges of one file.
#[derive(Debug, Default)]
pub struct Shadow {
    cells: BTreeMap<u64, Cell>,
}

impl Shadow {
    /// Adds an access. Returns the earlier accesses, with the ranges, that conflict with it and did
    /// not happen before it.
    pub fn access(
        &mut self,
        (start, end): (u64, u64),
        access: &Rc<Access>,
        clock: &Clock,
    ) -> Vec<(Rc<Access>, (u64, u64))> {
        self.split(start);
        self.split(end);
        let unordered = |other: &&Rc<Access>| !other.is_before(access.track, clock);
        let mut conflicts = Vec::new();
        for (&at, cell) in self.cells.range(start..end) {
            let reads = cell.reads.iter().filter(|_| access.write);
            let found = cell.write.iter().chain(reads).filter(unordered);
            conflicts.extend(found.map(|other| (other.clone(), (at, cell.end))));
        }
        if access.write {
            let old: Vec<_> = self.cells.range(start..end).map(|(&at, _)| at).collect();
            old.iter().for_each(|at| drop(self.cells.remove(at)));
            self.cells.insert(start, Cell { end, write: Some(access.clone()), reads: Vec::new() });
            return conflicts;
        }
        self.fill(start, end);
        for (_, cell) in self.cells.range_mut(start..end) {
            // Accesses after this one are also after the reads before it.
            cell.reads.retain(|other| unordered(&other));
            cell.reads.push(access.clone());
        }
        conflicts
    }

    /// Makes a cell end at an address that lies within it.
    fn split(&mut self, at: u64) {
        if let Some((_, cell)) = self.cells.range_mut(..at).next_back()
            && cell.end > at
        {
            let rest = cell.clone();
            cell.end = at;
            self.cells.insert(at, rest);
        }
    }

    /// Adds cells where there are none.
    fn fill(&mut self, start: u64, end: u64) {
        let mut at = start;
        let mut gaps = Vec::new();
        for (&begin, cell) in self.cells.range(start..end) {
            if begin > at {
                gaps.push((at, begin));
            }
            at = cell.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        for (at, end) in gaps {
            self.cells.insert(at, Cell { end, ..Cell::default() });
        }
    }
}
