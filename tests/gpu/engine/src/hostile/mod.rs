//! Peers that mean harm: they speak the protocol by hand, with a GPU.

pub mod exporter;
pub mod reader;

use std::time::Duration;

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where among the descriptors of a welcome the timeline page is.
const TIMELINE: usize = 4;
