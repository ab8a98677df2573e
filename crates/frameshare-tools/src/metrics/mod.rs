// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare metrics`.

mod ages;
mod registry;
mod server;

use crate::{
    error::Error,
    output::{Page, print_json},
    stream::{TIMEOUT, observe_all},
};
use frameshare::observer::Observer;
use serde_json::json;
use std::net::SocketAddr;

/// Serves the metrics of all streams until SIGINT or SIGTERM.
pub fn metrics(listen: SocketAddr, json: bool) -> Result<(), Error> {
    let server = server::Server::bind(listen)?;
    let address = server.address().to_string();
    if json {
        print_json(&json!({ "listening": address }))?;
    } else {
        let mut page = Page::new();
        page.line(&format!("metrics of all streams: http://{address}/metrics"));
        page.print()?;
    }
    server.run(|| {
        let snapshot = |endpoint: &_| Ok(Observer::connect(endpoint, TIMEOUT)?.latest().clone());
        Ok(registry::text(&observe_all(snapshot)?))
    })
}
