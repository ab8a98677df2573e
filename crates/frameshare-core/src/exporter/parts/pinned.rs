// SPDX-License-Identifier: MIT OR Apache-2.0

//! Resources pinned until GPU work completes, such as the sources of copies.

use crate::exporter::system::Work;
use std::any::Any;

/// Owns resources that GPU work uses. It does not know which work that is.
#[derive(Debug)]
pub struct Pinned<W>(Vec<(W, Box<dyn Any + Send>)>);

impl<W> Default for Pinned<W> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<W: Work> Pinned<W> {
    /// Returns whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of pinned resources.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Pins a resource until the work is done.
    pub fn hold(&mut self, until: W, what: Box<dyn Any + Send>) {
        self.0.push((until, what));
    }

    /// Takes out the resources that no work uses any more, each with the work.
    pub fn collect(&mut self) -> Vec<(W, Box<dyn Any + Send>)> {
        self.0.extract_if(.., |(work, _)| work.is_done()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake;

    #[test]
    fn resource_is_pinned_until_its_work_is_done() {
        let mut pinned = Pinned::default();
        assert!(pinned.is_empty());
        for is_done in [false, true] {
            pinned.hold(fake::Work(is_done), Box::new(is_done));
        }
        assert_eq!((pinned.len(), pinned.is_empty()), (2, false));
        let unused = pinned.collect();
        assert_eq!((unused.len(), pinned.len()), (1, 1));
        assert!(unused[0].0.is_done() && *unused[0].1.downcast_ref::<bool>().unwrap());
    }
}
