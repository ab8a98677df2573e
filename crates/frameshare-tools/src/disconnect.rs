// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare disconnect`.

use crate::{
    error::Error,
    output::{Page, print_json},
    stream::{TIMEOUT, find},
};
use frameshare::observer::Observer;
use serde_json::json;

/// Disconnects a reader, given by its number, or by a name that only one reader has.
pub fn disconnect(stream: &str, reader: &str, json: bool) -> Result<(), Error> {
    let mut observer = Observer::connect(&find(stream)?, TIMEOUT)?;
    let id = match reader.parse() {
        Ok(id) => id,
        Err(_) => {
            let readers = observer.latest().readers.iter();
            let ids: Vec<u64> = readers.filter(|found| found.name == reader).map(|found| found.id).collect();
            match ids[..] {
                [id] => id,
                _ => return Err(Error::Reader { reader: reader.to_owned(), ids }),
            }
        }
    };
    observer.disconnect_reader(id)?;
    if json {
        return print_json(&json!({ "disconnected": id }));
    }
    let mut page = Page::new();
    page.line(&format!("reader {id} of {stream} is disconnected"));
    page.print()
}
