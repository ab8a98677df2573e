// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare metrics`.

mod ages;
mod plain;
mod registry;
mod server;

use crate::{
    error::Error,
    output::{Page, print_json},
    signals,
    stream::observe_all,
};
use frameshare::observer::Observer;
use frameshare_http::Server;
use serde_json::json;
use std::net::SocketAddr;

/// Serves the metrics of all streams until SIGINT or SIGTERM. Besides its addresses, the server has
/// these names.
pub fn metrics(listen: SocketAddr, hosts: &[String], json: bool) -> Result<(), Error> {
    let failed = |source| Error::Listen { address: listen, source };
    let server = Server::bind(listen, hosts.iter().cloned()).map_err(failed)?;
    let (address, interrupt) = (server.address().to_string(), signals::interrupt()?);
    if json {
        print_json(&json!({ "listening": address }))?;
    } else {
        let mut page = Page::new();
        page.line(&format!("metrics of all streams: http://{address}/metrics"));
        page.print()?;
    }
    server::run(server, interrupt, || {
        let snapshot = |endpoint: &_, limit| Ok(Observer::connect(endpoint, limit)?.latest().clone());
        Ok(registry::text(&observe_all(snapshot)?))
    })
}
