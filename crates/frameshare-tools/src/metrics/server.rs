// SPDX-License-Identifier: MIT OR Apache-2.0

//! Answers to scrapes, in the format that the client prefers.

use super::plain;
use crate::{error::Error, signals};
use frameshare::Interrupt;
use frameshare_http::{
    Server,
    http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header},
};
use std::{convert::Infallible, io, thread, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// Scrapes that wait for the next collection. Further ones wait before.
const WAITING: usize = 64;
/// Interval of checks for a signal, by a thread that waits for it.
const LONG: Duration = Duration::from_secs(3600);

/// Content type of the OpenMetrics text format, and its name in the header Accept.
const OPEN: (&str, &str) =
    ("application/openmetrics-text; version=1.0.0; charset=utf-8", "application/openmetrics-text");
/// The same of Prometheus' text format.
const PLAIN: (&str, &str) = ("text/plain; version=0.0.4; charset=utf-8", "text/plain");

/// A scrape that waits for the text of all metrics, or the reason why there is none.
type Scrape = oneshot::Sender<Result<String, String>>;

/// Answers requests for `/metrics` until the interrupt is set.
pub fn run(
    server: Server,
    interrupt: Interrupt,
    collect: impl Fn() -> Result<String, Error> + Send + 'static,
) -> Result<(), Error> {
    let address = server.address();
    let failed = |source: io::Error| Error::Listen { address, source };
    let stopped = stopped(interrupt);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (scrapes, waiting) = mpsc::channel(WAITING);
    let ended = runtime.block_on(async {
        let collector = tokio::task::spawn_blocking(move || answer_scrapes(waiting, &collect));
        tokio::select! {
            result = server.run(move |request| answer(request, scrapes.clone())) => match result {
                Ok(never) => match never {},
                Err(error) => Err(failed(error)),
            },
            ended = collector => {
                let why = ended.err().map(|error| error.to_string()).unwrap_or_default();
                Err(failed(io::Error::other(format!("the metrics are not collected anymore: {why}"))))
            }
            _ = stopped => Ok(()),
        }
    });
    // A collection that is under way is not waited for.
    runtime.shutdown_background();
    ended
}

/// Completes when the interrupt is set.
fn stopped(interrupt: Interrupt) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        while !signals::wait(&interrupt, LONG) {}
        let _ = sender.send(());
    });
    receiver
}

/// Collects the metrics for scrapes: once for all that have arrived, so that many clients cause no
/// more work than one that scrapes without a pause.
fn answer_scrapes(mut waiting: mpsc::Receiver<Scrape>, collect: &impl Fn() -> Result<String, Error>) {
    while let Some(first) = waiting.blocking_recv() {
        let mut scrapes = vec![first];
        while let Ok(scrape) = waiting.try_recv() {
            scrapes.push(scrape);
        }
        scrapes.retain(|scrape| !scrape.is_closed());
        if scrapes.is_empty() {
            continue;
        }
        let text = collect().map_err(|error| error.to_string());
        for scrape in scrapes {
            // A client that has closed its connection needs no answer.
            let _ = scrape.send(text.clone());
        }
    }
}

async fn answer<B>(
    request: Request<B>,
    scrapes: mpsc::Sender<Scrape>,
) -> Result<Response<String>, Infallible> {
    let (kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let (scrape, collected) = oneshot::channel();
            let _ = scrapes.send(scrape).await;
            match collected.await.unwrap_or_else(|_| Err("the metrics are not collected anymore".into())) {
                Ok(text) if prefers_plain(request.headers()) => (PLAIN.0, plain::of_open_metrics(&text)),
                Ok(text) => (OPEN.0, text),
                Err(why) => return Ok(refused(StatusCode::INTERNAL_SERVER_ERROR, why)),
            }
        }
        (&Method::GET, _) => return Ok(refused(StatusCode::NOT_FOUND, "the metrics are at /metrics".into())),
        _ => return Ok(refused(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported".into())),
    };
    Ok(response(StatusCode::OK, kind, text))
}

fn refused(status: StatusCode, why: String) -> Response<String> {
    response(status, "text/plain; charset=utf-8", why + "\n")
}

fn response(status: StatusCode, kind: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns whether the client prefers Prometheus' text format. One that names none gets
/// OpenMetrics.
fn prefers_plain(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<_> = values.flat_map(|value| value.split(',')).filter_map(accepted).collect();
    quality(&accepted, PLAIN.1) > quality(&accepted, OPEN.1)
}

/// Returns type and quality of an element of the header Accept.
fn accepted(element: &str) -> Option<(&str, f32)> {
    let mut parameters = element.split(';').map(str::trim);
    let kind = parameters.next().filter(|kind| !kind.is_empty())?;
    let quality = parameters.find_map(|parameter| parameter.strip_prefix("q=")?.parse().ok());
    Some((kind, quality.unwrap_or(1.0)))
}

/// Returns the quality of a type: of its own name, else of its family, else of any.
fn quality(accepted: &[(&str, f32)], kind: &str) -> f32 {
    let family = format!("{}/*", kind.split('/').next().unwrap_or_default());
    let named = [kind, &family, "*/*"].into_iter().find_map(|name| {
        let same = accepted.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        same.map(|(_, quality)| *quality).max_by(f32::total_cmp)
    });
    named.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_that_which_the_client_prefers() {
        let prefers = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::ACCEPT, HeaderValue::from_static(value));
            }
            prefers_plain(&headers)
        };
        // Prometheus, with and without OpenMetrics; VictoriaMetrics.
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;\
                          version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert!(!prefers(&[prometheus]));
        assert!(prefers(&["text/plain;version=0.0.4;q=0.5,*/*;q=0.1"]));
        assert!(prefers(&["text/plain"]) && prefers(&["TEXT/PLAIN ; charset=utf-8"]) && prefers(&["text/*"]));
        assert!(prefers(&["application/openmetrics-text;q=0.3", "text/plain;q=0.4"]));
        for other in
            ["*/*", "", "text/html", "application/openmetrics-text", "text/plain;q=0", "*/*, text/plain"]
        {
            assert!(!prefers(&[other]), "{other}");
        }
        assert!(!prefers(&[]));
    }
}
