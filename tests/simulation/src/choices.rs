// SPDX-License-Identifier: MIT OR Apache-2.0

//! Choices: the only source of variety of a run. A run with the same choices is the same run.
//!
//! All choices made are recorded. Not responsible for which runs are tried: see `enumeration`,
//! `shrink` and `runner`.

use crate::{random::Random, seen::Seen};

/// One choice that a run made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The alternative taken, below `of`.
    pub value: u32,
    /// The number of alternatives, at least 2.
    pub of: u32,
}

/// The source of a run's choices, and the record of those made.
///
/// Alternative 0 is always the simplest one: a list of choices that ends early goes on with 0.
#[derive(Debug)]
pub struct Choices {
    source: Source,
    made: Vec<Choice>,
}

#[derive(Debug)]
enum Source {
    Seed(Random),
    List(Vec<u32>),
    /// A list, and the states that earlier runs of an enumeration have reached.
    Branch(Vec<u32>, Seen),
}

impl Choices {
    /// Chooses at random, from a seed.
    pub fn seeded(seed: u64) -> Self {
        Self { source: Source::Seed(Random::new(seed)), made: Vec::new() }
    }

    /// Chooses from a list, and 0 after its end. An alternative that does not exist stands for the
    /// last one that does.
    pub fn listed(list: Vec<u32>) -> Self {
        Self { source: Source::List(list), made: Vec::new() }
    }

    /// Chooses from a list, like `listed`, and cuts the run behind the list where it reaches a
    /// state that was seen before.
    pub(crate) fn branch(list: Vec<u32>, seen: Seen) -> Self {
        Self { source: Source::Branch(list, seen), made: Vec::new() }
    }

    /// Returns a number below `n`; the same probability for each if random.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn choose(&mut self, n: u32) -> u32 {
        assert!(n > 0, "a choice among no alternatives");
        self.pick(n, |random| random.below(n.into()) as u32)
    }

    /// Returns true once in `one_in` times if random, and never if `one_in` is 0.
    pub fn chance(&mut self, one_in: u32) -> bool {
        one_in != 0 && self.pick(2, |random| u32::from(random.below(one_in.into()) == 0)) == 1
    }

    /// Returns one of `items`.
    ///
    /// # Panics
    /// If there are none.
    pub fn among<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.choose(items.len() as u32) as usize]
    }

    /// Returns an index of `weights`; the probability is proportional to the weight if random. An
    /// index of weight 0 is never returned.
    ///
    /// # Panics
    /// If all weights are 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut possible = weights.iter().enumerate().filter(|(_, weight)| **weight > 0);
        let of = possible.clone().count() as u32;
        assert!(of > 0, "a choice among no alternatives");
        let value = self.pick(of, |random| {
            let total = possible.clone().map(|(_, weight)| u64::from(*weight)).sum();
            let mut rest = random.below(total);
            let drawn = possible.clone().position(|(_, weight)| {
                let is_drawn = rest < u64::from(*weight);
                rest = rest.saturating_sub(u64::from(*weight));
                is_drawn
            });
            drawn.expect("the rest is below the sum of the weights") as u32
        });
        possible.nth(value as usize).expect("the value is below the count").0
    }

    /// Returns a number of steps: at random one from 1 to twice the mean. 0, the simplest
    /// alternative, stands for no limit and is not drawn at random.
    pub(crate) fn length(&mut self, mean: u32) -> u32 {
        let of = mean.clamp(1, u32::MAX / 2) * 2;
        self.pick(of, |random| 1 + random.below(u64::from(of) - 1) as u32)
    }

    /// Whether runs are cut at states that were seen before.
    pub(crate) fn cuts_runs(&self) -> bool {
        matches!(&self.source, Source::Branch(_, seen) if seen.is_on())
    }

    /// Whether `is_new_state` has to be asked where the run may be cut.
    pub(crate) fn wants_states(&self) -> bool {
        self.cuts_runs() && matches!(&self.source, Source::Branch(list, _) if self.made.len() >= list.len())
    }

    /// Returns false if the state was reached before, by this run or an earlier one.
    pub(crate) fn is_new_state(&mut self, state: u64) -> bool {
        match &mut self.source {
            Source::Branch(_, seen) => seen.insert(state),
            _ => true,
        }
    }

    /// Returns the choices made.
    pub fn made(&self) -> &[Choice] {
        &self.made
    }

    /// Returns the choices made as a list for `listed`, without trailing zeros.
    pub fn list(&self) -> Vec<u32> {
        let end = self.made.iter().rposition(|choice| choice.value != 0).map_or(0, |last| last + 1);
        self.made[..end].iter().map(|choice| choice.value).collect()
    }

    /// Returns the choices made, and the states seen if this was a branch of an enumeration.
    pub(crate) fn into_parts(self) -> (Vec<Choice>, Option<Seen>) {
        match self.source {
            Source::Branch(_, seen) => (self.made, Some(seen)),
            _ => (self.made, None),
        }
    }

    fn pick(&mut self, of: u32, draw: impl FnOnce(&mut Random) -> u32) -> u32 {
        if of == 1 {
            return 0;
        }
        let value = match &mut self.source {
            Source::Seed(random) => draw(random),
            Source::List(list) | Source::Branch(list, _) => {
                list.get(self.made.len()).map_or(0, |&value| value.min(of - 1))
            }
        };
        self.made.push(Choice { value, of });
        value
    }
}

#[cfg(test)]
mod tests {
    use super::Choices;

    #[test]
    fn recorded_choices_repeat() {
        let draw = |choices: &mut Choices| {
            let letter = *choices.among(&['a', 'b', 'c']);
            (
                choices.choose(10),
                choices.chance(3),
                letter,
                choices.weighted(&[0, 3, 0, 1]),
                choices.length(5),
            )
        };
        for seed in 0..200 {
            let mut seeded = Choices::seeded(seed);
            let mut listed = Choices::listed({
                draw(&mut seeded);
                seeded.list()
            });
            assert_eq!(draw(&mut Choices::seeded(seed)), draw(&mut listed));
            assert_eq!(seeded.made(), listed.made());
        }
    }

    #[test]
    fn exhausted_list_chooses_the_simplest() {
        let mut choices = Choices::listed(vec![9]);
        assert_eq!(choices.choose(3), 2, "the last alternative stands for one that does not exist");
        assert_eq!(choices.choose(3), 0);
        assert!(!choices.chance(1));
        assert_eq!(choices.weighted(&[0, 1, 1]), 1);
        assert_eq!(choices.length(4), 0);
        assert_eq!(choices.list(), [2]);
    }

    #[test]
    fn single_alternative_is_no_choice() {
        let mut choices = Choices::seeded(1);
        assert_eq!((choices.choose(1), choices.chance(0), choices.weighted(&[0, 5])), (0, false, 1));
        assert!(choices.made().is_empty());
    }

    #[test]
    fn random_choices_follow_their_weights() {
        let mut choices = Choices::seeded(3);
        let counts = (0..8_000).fold([0; 3], |mut counts, _| {
            counts[choices.weighted(&[1, 0, 3])] += 1;
            counts
        });
        assert!((1_800..2_200).contains(&counts[0]) && counts[1] == 0, "{counts:?}");
        let lengths: u32 = (0..10_000).map(|_| choices.length(20)).sum();
        assert!((185_000..215_000).contains(&lengths), "{lengths} steps in 10,000 lengths of mean 20");
        let hits = (0..10_000).filter(|_| choices.chance(10)).count();
        assert!((850..1_150).contains(&hits), "{hits} of 10,000 with a chance of one in 10");
    }
}
