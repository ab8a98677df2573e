// SPDX-License-Identifier: MIT OR Apache-2.0

//! Vector clocks.

/// A stream, or the CPU of a process.
pub type Track = u32;

/// For each track, the last of its operations that happened before. Absent tracks have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Vec<(Track, u64)>);

impl Clock {
    /// Returns the time of an track, 0 if the clock covers none of its operations.
    pub fn time(&self, track: Track) -> u64 {
        match self.0.binary_search_by_key(&track, |&(track, _)| track) {
            Ok(at) => self.0[at].1,
            Err(_) => 0,
        }
    }

    /// Sets the time of an track, also to an earlier one.
    pub fn set(&mut self, track: Track, time: u64) {
        match self.0.binary_search_by_key(&track, |&(track, _)| track) {
            Ok(at) => self.0[at].1 = time,
            Err(at) => self.0.insert(at, (track, time)),
        }
    }

    /// Adds all that happened before `other`.
    pub fn join(&mut self, other: &Clock) {
        if other.0.iter().all(|&(track, time)| self.time(track) >= time) {
            return;
        }
        let mut joined = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut own, mut others) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&(mine, at)), Some(&&(theirs, then))) = (own.peek(), others.peek()) {
            joined.push((
                mine.min(theirs),
                if mine == theirs {
                    at.max(then)
                } else if mine < theirs {
                    at
                } else {
                    then
                },
            ));
            if mine <= theirs {
                own.next();
            }
            if theirs <= mine {
                others.next();
            }
        }
        joined.extend(own.chain(others));
        self.0 = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_takes_the_later_time_of_each_track() {
        let clock = |times: &[(Track, u64)]| Clock(times.to_vec());
        let mut joined = clock(&[(1, 5), (3, 2), (9, 1)]);
        joined.join(&clock(&[(0, 4), (1, 3), (3, 7), (12, 1)]));
        assert_eq!(joined, clock(&[(0, 4), (1, 5), (3, 7), (9, 1), (12, 1)]));
    }
}
