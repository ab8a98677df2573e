// SPDX-License-Identifier: MIT OR Apache-2.0

//! One page: a WebSocket, on which the page gets what it has asked for and can take.

use super::{
    focus::{Focus, Output},
    media::{Picture, Subscription},
    protocol::{Kind, Request, binary},
    state::Wall,
};
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};

/// Maximum time for a page to receive a message.
const LIMIT: Duration = Duration::from_secs(20);

/// The tile of one camera, as this page sees it.
struct Tile {
    camera: usize,
    newest: watch::Receiver<Option<Picture>>,
    /// The page has not drawn the last one yet.
    is_under_way: bool,
    _subscription: Subscription,
}

/// State of a page.
struct Session {
    wall: Arc<Wall>,
    socket: WebSocket,
    tiles: Vec<Tile>,
    focus: Focus,
}

/// The end of a session, for a reason that the page may be told.
struct End(Option<&'static str>);

/// Serves a page until its connection ends.
pub async fn serve(wall: Arc<Wall>, socket: WebSocket) {
    let mut session = Session { wall, socket, tiles: Vec::new(), focus: Focus::default() };
    let Err(End(why)) = session.run().await;
    if let Some(reason) = why {
        let frame = CloseFrame { code: close_code::POLICY, reason: reason.into() };
        // The page may be gone.
        let _ = timeout(LIMIT, session.socket.send(Message::Close(Some(frame)))).await;
    }
}

/// No value: a session ends with a reason only.
enum Never {}

impl Session {
    async fn run(&mut self) -> Result<Never, End> {
        let wall = Arc::clone(&self.wall);
        let mut figures = wall.figures.subscribe();
        let mut site = wall.control.subscribe();
        let mut drawn = wall.drawn.subscribe();
        let mut newest = wall.newest.clone();
        newest.mark_unchanged();
        let (_results, mut results) = wall.results.subscribe();
        self.text(wall.hello()).await?;
        self.text(wall.history()).await?;
        site.mark_changed();
        loop {
            tokio::select! {
                message = self.socket.recv() => {
                    let message = message.and_then(Result::ok).ok_or(End(None))?;
                    self.receive(&message).await?;
                }
                Ok(()) = drawn.changed() => self.send_tiles().await?,
                // The page connects again, and gets the new zones.
                Ok(()) = newest.changed() => return Err(End(Some("the configuration has changed"))),
                output = self.focus.next() => self.send_focus(output).await?,
                Ok(result) = results.recv() => self.text(result).await?,
                Ok(()) = figures.changed() => {
                    let text = figures.borrow_and_update().clone();
                    self.text(text).await?;
                }
                Ok(()) = site.changed() => {
                    site.mark_unchanged();
                    self.text(wall.site()).await?;
                }
            }
        }
    }

    async fn receive(&mut self, message: &Message) -> Result<(), End> {
        let Message::Text(text) = message else { return Ok(()) };
        let request = serde_json::from_str(text).map_err(|_| End(Some("invalid request")))?;
        let count = self.wall.cameras.len();
        match request {
            Request::Watch { cameras } if cameras.iter().all(|camera| *camera < count) => {
                self.watch(&cameras);
                self.send_tiles().await
            }
            Request::Drawn { camera } => {
                if let Some(tile) = self.tiles.iter_mut().find(|tile| tile.camera == camera) {
                    tile.is_under_way = false;
                    self.wall.cameras[camera].tiles.want();
                }
                self.send_tiles().await
            }
            Request::Taken { focus, count } => {
                self.focus.taken(focus, count);
                Ok(())
            }
            Request::Focus { focus, camera, mode } if camera.is_none_or(|camera| camera < count) => {
                self.focus = Focus::open(focus, camera.map(|camera| &self.wall.cameras[camera]), mode);
                Ok(())
            }
            Request::Watch { .. } | Request::Focus { .. } => Err(End(Some("no camera has this number"))),
        }
    }

    /// Subscribes to the tiles of these cameras, and no others.
    fn watch(&mut self, cameras: &[usize]) {
        self.tiles.retain(|tile| cameras.contains(&tile.camera));
        for camera in cameras {
            if !self.tiles.iter().any(|tile| tile.camera == *camera) {
                let (subscription, mut newest) = self.wall.cameras[*camera].tiles.subscribe();
                // The last picture is old if no page has watched.
                newest.mark_unchanged();
                self.tiles.push(Tile {
                    camera: *camera,
                    newest,
                    is_under_way: false,
                    _subscription: subscription,
                });
            }
        }
    }

    async fn send_tiles(&mut self) -> Result<(), End> {
        for index in 0..self.tiles.len() {
            let tile = &mut self.tiles[index];
            if tile.is_under_way || !tile.newest.has_changed().unwrap_or(false) {
                continue;
            }
            let Some(Picture { identity, jpeg }) = tile.newest.borrow_and_update().clone() else { continue };
            tile.is_under_way = true;
            let channel = u16::try_from(tile.camera).unwrap_or(u16::MAX);
            self.send(Message::Binary(binary(Kind::Tile, 0, channel, identity, &jpeg))).await?;
        }
        Ok(())
    }

    async fn send_focus(&mut self, output: Output) -> Result<(), End> {
        match output {
            Output::Text(text) => self.text(text).await,
            Output::Binary(bytes) => self.send(Message::Binary(bytes)).await,
        }
    }

    async fn text(&mut self, text: Utf8Bytes) -> Result<(), End> {
        self.send(Message::Text(text)).await
    }

    /// Sends a message. A page that takes none for long is closed: it comes again if it lives.
    async fn send(&mut self, message: Message) -> Result<(), End> {
        match timeout(LIMIT, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End(None)),
        }
    }
}
