// SPDX-License-Identifier: MIT OR Apache-2.0

//! HTTP server that answers one request at a time.

use crate::{error::Error, signals};
use frameshare::Interrupt;
use std::{net::SocketAddr, sync::mpsc, thread, time::Duration};
use tiny_http::{Header, Method, Request, Response};

/// Limit for a client to receive an answer. Then the next one is served.
const LIMIT: Duration = Duration::from_secs(5);
/// Time between two checks for a signal.
const CHECK: Duration = Duration::from_millis(200);
/// Content type of the OpenMetrics text format.
const TYPE: &str = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A bound server.
pub struct Server {
    http: tiny_http::Server,
    address: SocketAddr,
    interrupt: Interrupt,
}

impl Server {
    /// Binds the address.
    pub fn bind(listen: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: listen, source };
        let interrupt = signals::interrupt()?;
        let http = tiny_http::Server::http(listen).map_err(failed)?;
        let address = http.server_addr().to_ip().unwrap_or(listen);
        Ok(Self { http, address, interrupt })
    }

    /// The address, with the port that the system has chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers each request for `/metrics` with a new text.
    pub fn run(&self, text: impl Fn() -> Result<String, Error>) -> Result<(), Error> {
        while !self.interrupt.is_set() {
            let failed =
                |source: std::io::Error| Error::Listen { address: self.address, source: source.into() };
            let Some(request) = self.http.recv_timeout(CHECK).map_err(failed)? else { continue };
            let (status, body) = match (request.method(), request.url()) {
                (Method::Get, "/metrics") => match text() {
                    Ok(text) => (200, text),
                    Err(error) => (500, format!("{error}\n")),
                },
                (Method::Get, _) => (404, "the metrics are at /metrics\n".to_owned()),
                _ => (405, "only GET is supported\n".to_owned()),
            };
            respond(request, status, body);
        }
        Ok(())
    }
}

/// Sends an answer. A client that does not receive it within the limit is left to a thread.
fn respond(request: Request, status: u16, body: String) {
    let content = if status == 200 { TYPE } else { "Content-Type: text/plain; charset=utf-8" };
    let header = content.parse::<Header>().ok();
    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        let mut response = Response::from_string(body).with_status_code(status);
        if let Some(header) = header {
            response.add_header(header);
        }
        // A client that has closed its connection needs no answer.
        let _ = request.respond(response);
        let _ = done.send(());
    });
    let _ = finished.recv_timeout(LIMIT);
}
