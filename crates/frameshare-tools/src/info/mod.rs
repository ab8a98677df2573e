// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare info`.

mod json;
mod text;

use crate::{
    error::Error,
    output::{Page, print_json},
    stream,
};

/// Shows the state of a stream.
pub fn info(name: &str, json: bool) -> Result<(), Error> {
    let endpoint = stream::find(name)?;
    let measured = stream::measure(&endpoint, stream::TIMEOUT)?;
    if json {
        return print_json(&json::stream(&endpoint, &measured));
    }
    let mut page = Page::new();
    text::stream(&mut page, &endpoint, &measured);
    page.print()
}
