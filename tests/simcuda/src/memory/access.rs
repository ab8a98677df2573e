// SPDX-License-Identifier: MIT OR Apache-2.0

//! Accesses to memory, and words in it, as the trace of operations names them.

use super::place::{Place, Range, of_host};
use crate::order;
use std::fmt::{Display, Formatter};

/// An access to memory: addresses of this process.
#[derive(Clone, Copy)]
pub struct Access {
    pub range: Range,
    pub write: bool,
}

/// Splits a range into parts whose places are contiguous. Stops at memory that is not mapped.
fn places((start, len): Range) -> impl Iterator<Item = (Place, usize)> {
    let end = start.saturating_add(len);
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let known = super::find(at).map(|region| {
            let place = region.place.unwrap_or(Place::anonymous(region.start));
            (place.plus(at - region.start), region.end() - at)
        });
        let (place, left) = known.or_else(|| of_host(at))?;
        let len = left.min(end - at);
        at += len;
        Some((place, len))
    })
}

/// The ranges of accesses, in a line of the trace.
pub struct Ranges<'a>(pub &'a [Access]);

impl Display for Ranges<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for access in self.0 {
            for (place, len) in places(access.range) {
                write!(f, " {}={place}+{len:x}", if access.write { 'w' } else { 'r' })?;
            }
        }
        Ok(())
    }
}

/// Traces an access by the CPU, or by the item that this thread executes.
pub fn accessed(name: &str, range: Range, write: bool) {
    order::accessed(name, Ranges(&[Access { range, write }]));
}

/// Calls `run` with the place of an address, while operations are traced.
fn with_place(address: usize, run: impl FnOnce(Place)) {
    if order::is_on()
        && let Some((place, _)) = places((address, 1)).next()
    {
        run(place);
    }
}

/// Traces that a word is about to be stored.
pub fn releases(address: usize, value: Option<u64>) {
    with_place(address, |word| order::releases(word, value));
}

/// Traces that a word was loaded; for a wait for at least `value`, that it has ended.
pub fn acquired(address: usize, value: Option<u64>) {
    with_place(address, |word| order::acquired(word, value));
}

/// Traces that memory of a pool is freed, and can be allocated again behind that.
pub fn freed(range: Range) {
    accessed("free", range, true);
    with_place(range.0, |place| order::releases(format_args!("pool.{place}"), None));
}

/// Traces that memory of a pool is allocated. The driver orders the allocation behind the last free
/// of the memory.
pub fn allocated(range: Range) {
    with_place(range.0, |place| order::acquired(format_args!("pool.{place}"), None));
    accessed("allocation", range, true);
}
