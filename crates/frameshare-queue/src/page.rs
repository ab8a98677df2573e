// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pages of atomic words: std's in the engine, loom's while the memory orderings are model-checked.

use std::sync::atomic::Ordering;

/// A word of a page that two processes share. Its methods are those of
/// [`AtomicU64`](std::sync::atomic::AtomicU64).
pub trait Word {
    /// Returns the value.
    fn load(&self, ordering: Ordering) -> u64;

    /// Replaces the value.
    fn store(&self, value: u64, ordering: Ordering);

    /// Replaces the value, and returns the former one.
    fn swap(&self, value: u64, ordering: Ordering) -> u64;

    /// Replaces the value if it is `current`, and returns the former one.
    ///
    /// # Errors
    /// The value, if it is another one.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;

    /// Adds to the value, and returns the former one.
    fn fetch_add(&self, value: u64, ordering: Ordering) -> u64;

    /// A fence between accesses to words of this kind.
    fn fence(ordering: Ordering);
}

/// The words of a page.
///
/// The two announcements are for memory that does not see the accesses to words itself, such as the
/// simulated driver's. They do nothing unless a page overrides them.
pub trait Page {
    /// The kind of the words.
    type Word: Word;

    /// Returns all words.
    fn words(&self) -> &[Self::Word];

    /// Announces a store to a word of the page, before it: the other side relies on what precedes
    /// the store.
    #[inline]
    fn before_store(&self, word: &Self::Word) {
        let _ = word;
    }

    /// Announces that a load of a word of the page found such a store.
    #[inline]
    fn after_load(&self, word: &Self::Word) {
        let _ = word;
    }
}

/// A borrowed page.
impl<P: Page + ?Sized> Page for &P {
    type Word = P::Word;

    #[inline]
    fn words(&self) -> &[P::Word] {
        (**self).words()
    }

    #[inline]
    fn before_store(&self, word: &P::Word) {
        (**self).before_store(word);
    }

    #[inline]
    fn after_load(&self, word: &P::Word) {
        (**self).after_load(word);
    }
}

/// Implements [`Word`] for the atomic of a library, with its own fence.
macro_rules! word {
    ($word:ty, $fence:path) => {
        impl Word for $word {
            #[inline]
            fn load(&self, ordering: Ordering) -> u64 {
                <$word>::load(self, ordering)
            }

            #[inline]
            fn store(&self, value: u64, ordering: Ordering) {
                <$word>::store(self, value, ordering);
            }

            #[inline]
            fn swap(&self, value: u64, ordering: Ordering) -> u64 {
                <$word>::swap(self, value, ordering)
            }

            #[inline]
            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                <$word>::compare_exchange(self, current, new, success, failure)
            }

            #[inline]
            fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
                <$word>::fetch_add(self, value, ordering)
            }

            #[inline]
            fn fence(ordering: Ordering) {
                $fence(ordering);
            }
        }
    };
}

word!(std::sync::atomic::AtomicU64, std::sync::atomic::fence);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU64, loom::sync::atomic::fence);
