// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sections of code that must not send wake-ups. Builds with debug assertions check that.

#[cfg(debug_assertions)]
thread_local! {
    static SECTIONS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Guard of a section of this thread without wake-ups: one that holds a lock.
#[derive(Debug)]
pub struct Quiet(std::marker::PhantomData<*const ()>);

impl Quiet {
    pub fn begin() -> Self {
        #[cfg(debug_assertions)]
        SECTIONS.set(SECTIONS.get() + 1);
        Self(std::marker::PhantomData)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        SECTIONS.set(SECTIONS.get() - 1);
    }
}

/// Panics within such a section.
pub fn check() {
    #[cfg(debug_assertions)]
    assert_eq!(SECTIONS.get(), 0, "a wake-up is sent with the state locked");
}
