// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kept units of a connection: their limit, and the reader's place in them.

use super::violation::Violation;
use frameshare_protocol::{Sequence, kept::RECORD};

/// The units of one file that are not delivered yet. `F` is the file, which is read elsewhere.
#[derive(Debug)]
pub struct KeptUnits<F> {
    file: F,
    /// Length of the file in words.
    words: usize,
    /// Position of the next record in words.
    at: usize,
    left: u32,
    /// The first frame after the units.
    before: Sequence,
}

impl<F> KeptUnits<F> {
    /// `count` units in a file of `words` words, all from before frame `before`.
    pub fn new(file: F, words: usize, count: u32, before: Sequence) -> Self {
        Self { file, words, at: 0, left: count, before }
    }

    /// The violation of a file that ends elsewhere than its units.
    fn end(&self) -> Violation {
        Violation::KeptUnitsEnd { size: 8 * self.words as u64, end: 8 * self.at as u64 }
    }
}

/// Owns the limit of kept units, and the place in those that are delivered before the next frame.
/// It neither maps nor reads their files: it says where the next record is, and is told what is in
/// it.
///
/// The order, for each message: [`Kept::count`] on its arrival, [`Kept::begin`] in its place among
/// the frames, then for each unit [`Kept::next_record`] and [`Kept::pass`], until none is left.
#[derive(Debug)]
pub struct Kept<F> {
    /// Limit of the bytes of all units.
    limit: u64,
    /// Bytes of all units so far.
    counted: u64,
    /// Units that are due.
    due: Option<KeptUnits<F>>,
    /// The last delivered unit.
    last: Sequence,
}

impl<F> Kept<F> {
    /// No units yet, and at most `limit` bytes of them.
    pub fn new(limit: u64) -> Self {
        Self { limit, counted: 0, due: None, last: Sequence(0) }
    }

    /// Counts a file of `size` bytes, before it is mapped.
    ///
    /// # Errors
    /// [`Violation::TooManyKeptUnits`] beyond the limit.
    pub fn count(&mut self, size: u64) -> Result<(), Violation> {
        self.counted = self.counted.saturating_add(size);
        if self.counted > self.limit {
            return Err(Violation::TooManyKeptUnits { size: self.counted, limit: self.limit });
        }
        Ok(())
    }

    /// Delivers these units next. Earlier ones have been delivered.
    pub fn begin(&mut self, units: KeptUnits<F>) {
        self.due = Some(units);
    }

    /// Returns whether units are due, or the end of their file is to be checked.
    pub fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Returns the place of the next record, which is wholly in its file: the file, and the
    /// position in words; `None` if no unit is left.
    ///
    /// # Errors
    /// [`Violation::KeptUnitsEnd`] if the file ends elsewhere than its units.
    pub fn next_record(&mut self) -> Result<Option<(&F, usize)>, Violation> {
        drop(self.due.take_if(|units| units.left == 0 && units.at == units.words));
        let Some(units) = &self.due else { return Ok(None) };
        let end = units.at.checked_add(RECORD).filter(|end| units.left > 0 && *end <= units.words);
        end.ok_or_else(|| units.end())?;
        Ok(Some((&units.file, units.at)))
    }

    /// Passes the unit at that place, whose successor's record is at word `next`. Returns whether a
    /// live frame follows it.
    ///
    /// # Errors
    /// [`Violation::FrameOrder`] if it is not between the last unit and the frame after
    /// all units.
    pub fn pass(&mut self, sequence: Sequence, next: usize) -> Result<bool, Violation> {
        let Some(units) = &mut self.due else { return Ok(false) };
        if sequence <= self.last || sequence >= units.before {
            let after = if sequence <= self.last { self.last } else { units.before };
            return Err(Violation::FrameOrder { sequence, after });
        }
        (units.at, units.left) = (next, units.left.saturating_sub(1));
        self.last = sequence;
        Ok(sequence.next() == units.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kept units with `count` records before frame 10, in a file of three.
    fn kept(count: u32) -> Kept<()> {
        let mut kept = Kept::new(100);
        kept.begin(KeptUnits::new((), 3 * RECORD, count, Sequence(10)));
        kept
    }

    #[test]
    fn units_are_passed_in_order_up_to_the_end_of_their_file() {
        let mut kept = kept(3);
        for (unit, sequence) in [4, 8, 9].into_iter().enumerate() {
            assert_eq!(kept.next_record().unwrap(), Some((&(), unit * RECORD)));
            let is_last = kept.pass(Sequence(sequence), (unit + 1) * RECORD).unwrap();
            assert_eq!(is_last, sequence == 9, "{sequence}");
        }
        assert!(kept.is_due());
        assert_eq!(kept.next_record().unwrap(), None);
        assert!(!kept.is_due());
    }

    #[test]
    fn units_that_do_not_fill_their_file_are_a_violation() {
        for count in [2, 4] {
            let mut kept = kept(count);
            for unit in 0..count.min(3) {
                assert!(kept.next_record().unwrap().is_some());
                kept.pass(Sequence(u64::from(unit) + 1), (unit as usize + 1) * RECORD).unwrap();
            }
            let error = kept.next_record().unwrap_err();
            // The file is read in words of 8 bytes, and errors count bytes.
            let record = 8 * RECORD as u64;
            let end = record * u64::from(count.min(3));
            assert_eq!(error, Violation::KeptUnitsEnd { size: 3 * record, end }, "{count}");
        }
    }

    #[test]
    fn units_out_of_order_are_a_violation() {
        let mut kept = kept(3);
        kept.pass(Sequence(5), RECORD).unwrap();
        for (sequence, bound) in [(5, 5), (4, 5), (10, 10)] {
            let error = kept.pass(Sequence(sequence), 2 * RECORD).unwrap_err();
            let Violation::FrameOrder { after, .. } = error else { panic!("{error}") };
            assert_eq!(after, Sequence(bound), "{sequence}");
        }
        // A later file goes on after the last unit.
        kept.begin(KeptUnits::new((), 3 * RECORD, 1, Sequence(20)));
        assert!(kept.pass(Sequence(5), RECORD).is_err());
        assert!(!kept.pass(Sequence(6), RECORD).unwrap());
    }

    #[test]
    fn all_files_together_are_limited() {
        let mut kept = kept(1);
        kept.count(60).unwrap();
        kept.count(40).unwrap();
        let error = kept.count(1).unwrap_err();
        assert!(matches!(error, Violation::TooManyKeptUnits { size: 101, limit: 100 }), "{error}");
    }
}
