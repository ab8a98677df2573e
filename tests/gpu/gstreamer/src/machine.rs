//! A peer as whoever isolates it sees it.

use std::time::Duration;

use anyhow::Result;

use crate::job::{Command, Reply};
use crate::link::Link;

pub use crate::worker::serve;

/// Answers the first job of a peer that could not be isolated.
pub fn refuse(socket: &str, why: &str) -> Result<()> {
    let link = Link::inherited(socket)?;
    // What a peer that died was asked has no answer yet, and nothing more may come.
    link.set_patience(Duration::from_secs(1))?;
    let _ = link.receive::<Command>();
    link.send(&Reply::Failed { text: why.to_owned() }, &[])
}
