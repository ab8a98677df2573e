// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory budget for metadata from a peer: each item is charged before it is built.
//!
//! A [`Charge`] is attached to the buffer or event that carries the metadata and ends with that
//! object. Names that glib interns for the life of the process stay charged until the source stops.

use crate::ffi::mini_object;
use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes charged for each meta, tag, structure or value, besides its payload: more than GStreamer
/// 1.22 and 1.26 allocate for any of them.
pub(crate) const ITEM: usize = 256;
/// Bytes charged for an interned name, besides its text. GLib leaks its table of names each time
/// that it grows, by 2,048 names at a time: N names take N² / 512 bytes besides their texts
/// (`g_quark_new` of GLib 2.74). The charge keeps N so small that this stays below what is charged
/// for them, up to a limit of 8 GiB.
const NAME: usize = 4096;
/// Key of the attached [`Charge`].
static KEY: LazyLock<glib::Quark> = LazyLock::new(|| glib::Quark::from_str("frameshare-charge"));

/// The budget is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the exporter's metadata takes more than {limit} bytes of memory")]
pub(crate) struct OverBudget {
    /// Bytes.
    pub limit: u64,
}

/// Limit on the memory that one source spends on metadata of its exporter.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<State>);

#[derive(Debug)]
struct State {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(State { limit, used: AtomicU64::new(0) }))
    }

    /// A charge of nothing, to be added to.
    pub fn charge(&self) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }

    fn take(&self, bytes: u64) -> Result<(), OverBudget> {
        let State { limit, used } = &*self.0;
        let add = |used: u64| used.checked_add(bytes).filter(|sum| sum <= limit);
        used.fetch_update(Relaxed, Relaxed, add).map(drop).map_err(|_| OverBudget { limit: *limit })
    }

    /// Bytes that are charged now.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }
}

/// A part of a [`Budget`], returned when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// Charges one item with `payload` bytes of its own.
    pub fn item(&mut self, payload: usize) -> Result<(), OverBudget> {
        let bytes = ITEM.saturating_add(payload) as u64;
        self.budget.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Charges a name that GStreamer interns for the life of the process, if it is new to the
    /// process. The text must not contain NUL.
    pub fn name(&mut self, name: &str) -> Result<(), OverBudget> {
        if glib::Quark::try_from_str(name).is_none() {
            self.budget.take((NAME + name.len()) as u64)?;
            // GStreamer 1.26 interns fewer names than 1.22: without this a name would be charged
            // again each time.
            glib::Quark::from_str(name);
        }
        Ok(())
    }

    /// Returns the charge when `object` is freed. An object carries one charge.
    pub fn attach(self, object: &mut gst::MiniObjectRef) {
        mini_object::attach(object, *KEY, self);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charge_ends_with_the_object() {
        gst::init().unwrap();
        let budget = Budget::new(1000);
        let mut charge = budget.charge();
        charge.item(100).unwrap();
        let mut event = gst::event::Eos::new();
        charge.attach(event.make_mut().upcast_mut());
        assert_eq!(budget.used(), 356);
        assert_eq!(budget.charge().item(500), Err(OverBudget { limit: 1000 }));
        drop(event);
        assert_eq!(budget.used(), 0);
        assert_eq!(budget.charge().item(usize::MAX), Err(OverBudget { limit: 1000 }));
    }

    #[test]
    fn interned_name_is_charged_once_and_stays() {
        gst::init().unwrap();
        let budget = Budget::new(5000);
        for _ in 0..2 {
            budget.charge().name("frameshare-test-never-seen-before").unwrap();
        }
        assert_eq!(budget.used(), 4096 + 33);
        let long = "frameshare-test-long".repeat(50);
        assert!(budget.charge().name(&long).is_err());
        assert!(glib::Quark::try_from_str(&long).is_none(), "it is not interned");
    }
}
