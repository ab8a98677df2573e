// SPDX-License-Identifier: MIT OR Apache-2.0

//! The camera that a page shows alone: its units, or JPEG pictures of its frames.

use super::{
    media::{Picture, Subscription, Unit, Units},
    protocol::{KEY, Kind, Mode, binary},
    state::CameraView,
};
use axum::{body::Bytes, extract::ws::Utf8Bytes};
use serde_json::json;
use std::{future::pending, sync::Arc};
use tokio::sync::watch;

/// Units that the page has not taken yet. Later ones wait at the server, which then skips to the
/// next key unit.
const MAX_UNITS: u32 = 90;
/// Pictures that the page has not taken yet.
const MAX_PICTURES: u32 = 1;

/// The camera in focus, as one page gets it.
#[derive(Default)]
pub struct Focus {
    /// The page's number of it.
    number: u16,
    content: Content,
    /// Binary messages that the page has not taken yet.
    under_way: u32,
}

#[derive(Default)]
enum Content {
    #[default]
    None,
    Units(Units),
    Pictures {
        camera: Arc<CameraView>,
        newest: watch::Receiver<Option<Picture>>,
        _subscription: Subscription,
    },
}

/// A message for the page.
pub enum Output {
    Text(Utf8Bytes),
    Binary(Bytes),
}

impl Focus {
    pub fn open(number: u16, camera: Option<&Arc<CameraView>>, mode: Mode) -> Self {
        let content = match (camera, mode) {
            (None, _) => Content::None,
            (Some(camera), Mode::Units) => Content::Units(Units::open(&camera.camera.encoded())),
            (Some(camera), Mode::Pictures) => {
                let (subscription, mut newest) = camera.pictures.subscribe();
                newest.mark_unchanged();
                Content::Pictures { camera: Arc::clone(camera), newest, _subscription: subscription }
            }
        };
        Self { number, content, under_way: 0 }
    }

    /// Counts messages that the page has taken.
    pub fn taken(&mut self, number: u16, count: u32) {
        if number == self.number {
            self.under_way = self.under_way.saturating_sub(count);
            if let Content::Pictures { camera, .. } = &self.content {
                camera.pictures.want();
            }
        }
    }

    /// Returns the next message once the page can take it. Nothing is lost if the future is
    /// dropped.
    pub async fn next(&mut self) -> Output {
        let number = self.number;
        match &mut self.content {
            Content::Units(units) if self.under_way < MAX_UNITS => match units.receiver.recv().await {
                Some(Unit::Data { identity, is_key, bytes }) => {
                    self.under_way += 1;
                    let flags = if is_key { KEY } else { 0 };
                    Output::Binary(binary(Kind::Unit, flags, number, identity, &bytes))
                }
                Some(Unit::Format { media, codec, width, height }) => Output::Text(text(&json!({
                    "type": "format", "focus": number, "media": media, "codec": codec,
                    "width": width, "height": height,
                }))),
                Some(Unit::Failed(why)) => {
                    Output::Text(text(&json!({ "type": "failed", "focus": number, "why": why })))
                }
                None => pending().await,
            },
            Content::Pictures { newest, .. } if self.under_way < MAX_PICTURES => loop {
                if newest.changed().await.is_err() {
                    pending::<()>().await;
                }
                if let Some(Picture { identity, jpeg }) = newest.borrow_and_update().clone() {
                    self.under_way += 1;
                    return Output::Binary(binary(Kind::Picture, 0, number, identity, &jpeg));
                }
            },
            _ => pending().await,
        }
    }
}

fn text(message: &serde_json::Value) -> Utf8Bytes {
    message.to_string().into()
}
