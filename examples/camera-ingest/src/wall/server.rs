// SPDX-License-Identifier: MIT OR Apache-2.0

//! Answers: files of the page, WebSocket, commands, metrics, events.

use super::{
    assets::{ASSETS, POLICY},
    events,
    guard::Refusal,
    metrics::{self, PageFigures},
    session,
    state::Wall,
};
use crate::state::Command;
use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State, WebSocketUpgrade},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use frameshare_http::Client;
use serde::Deserialize;
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// Maximum length of a request of a page, as body or message.
const MAX_REQUEST: usize = 4096;

/// Headers of all answers.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

pub fn router(wall: Arc<Wall>) -> Router {
    let mut router = Router::new();
    for (path, kind, text) in ASSETS {
        router = router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }));
    }
    router
        .route("/socket", get(socket))
        .route("/kill", post(kill))
        .route("/metrics", get(metrics))
        .route("/events", get(events))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .layer(map_response(add_headers))
        .with_state(wall)
}

async fn add_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn socket(
    State(wall): State<Arc<Wall>>,
    Extension(Client(address)): Extension<Client>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    wall.guard.check_origin(&headers)?;
    let upgrade = upgrade.max_message_size(MAX_REQUEST).max_frame_size(MAX_REQUEST);
    Ok(upgrade.on_upgrade(async move |socket| {
        let seat = wall.pages.take(address);
        session::serve(wall, socket, seat).await;
    }))
}

/// Body of a request to kill a process.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kill {
    process: String,
}

/// Kills a process of the site. Outside demo mode there is no such path.
async fn kill(State(wall): State<Arc<Wall>>, headers: HeaderMap, body: Bytes) -> Result<Response, Refusal> {
    let Some(state) = wall.control.state().filter(|state| state.demo) else {
        return Ok((StatusCode::NOT_FOUND, "the site does not run in demo mode\n").into_response());
    };
    wall.guard.check_token(&headers)?;
    let Ok(Kill { process }) = serde_json::from_slice(&body) else {
        return Ok((StatusCode::BAD_REQUEST, "expected {\"process\":NAME}\n").into_response());
    };
    if !state.processes.iter().any(|known| known.name == process) {
        return Ok((StatusCode::NOT_FOUND, "no process has this name\n").into_response());
    }
    Ok(match wall.control.send(&Command::Kill { process }) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}\n")).into_response(),
    })
}

async fn metrics(State(wall): State<Arc<Wall>>) -> impl IntoResponse {
    let tiles = wall.cameras.iter();
    let tiles = tiles.map(|view| (view.camera.name.clone(), view.made.tiles.load(Relaxed))).collect();
    let page = PageFigures { pages: wall.pages.count(), tiles };
    let text = metrics::text(&wall.figures.newest(), wall.control.state().as_deref(), &page);
    ([(header::CONTENT_TYPE, metrics::TYPE)], text)
}

async fn events(State(wall): State<Arc<Wall>>) -> Response {
    if !wall.control.is_supervised() {
        let text = "no events: this page runs without a supervisor\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    let lines = Body::from_stream(events::lines(wall.control.subscribe()));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
}
