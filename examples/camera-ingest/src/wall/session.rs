// SPDX-License-Identifier: MIT OR Apache-2.0

//! One page: a WebSocket, on which the page gets what it has asked for and can take.

use super::{
    focus::{Focus, Output},
    media::{Picture, Subscription},
    protocol::{Kind, Mode, Request, binary},
    state::Wall,
};
use axum::{
    body::Bytes,
    extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code},
};
use frameshare_http::Seat;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

/// Maximum time for a page to receive a message.
const LIMIT: Duration = Duration::from_secs(20);
/// Time without a message of the page after which it gets a ping, and after which it is closed.
const SILENCE: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(45)];
/// Minimum time between two changes of what a page watches: each can start and end pipelines.
const CHANGE: Duration = Duration::from_millis(250);
const SECOND: Duration = Duration::from_secs(1);
/// Maximum number of messages of a page in a second. Further ones are received in the next one.
const MAX_MESSAGES: u32 = 2000;

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
    seat: Seat,
    tiles: Vec<Tile>,
    focus: Focus,
    wanted: Wanted,
    /// Begin of the second in which messages are counted, and their number.
    received: (Instant, u32),
}

/// Requests of a page that wait for the next change. Of several, only the last ones count.
struct Wanted {
    cameras: Option<Vec<usize>>,
    focus: Option<(u16, Option<usize>, Mode)>,
    /// Earliest time of the next change.
    next: Instant,
}

/// The end of a session, for a reason that the page may be told.
struct End(Option<&'static str>);

/// Serves a page until its connection ends.
pub async fn serve(wall: Arc<Wall>, socket: WebSocket, seat: Seat) {
    let now = Instant::now();
    let (tiles, focus) = (Vec::new(), Focus::default());
    let wanted = Wanted { cameras: None, focus: None, next: now };
    let mut session = Session { wall, socket, seat, tiles, focus, wanted, received: (now, 0) };
    let lost = session.seat.lost();
    let Err(End(why)) = tokio::select! {
        end = session.run() => end,
        () = lost => Err(End(Some("too many pages are open, and others are more active"))),
    };
    if let Some(reason) = why {
        let frame = CloseFrame { code: close_code::POLICY, reason: reason.into() };
        // The page may be gone.
        let _ = timeout(LIMIT, session.socket.send(Message::Close(Some(frame)))).await;
    }
}

/// No value: a session ends with a reason only.
enum Never {}

impl Wanted {
    fn is_some(&self) -> bool {
        self.cameras.is_some() || self.focus.is_some()
    }
}

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
        let [ping, end] = SILENCE;
        let (mut last, mut is_asked) = (Instant::now(), false);
        loop {
            let (begin, count) = self.received;
            tokio::select! {
                message = self.socket.recv(), if count < MAX_MESSAGES => {
                    let message = message.and_then(Result::ok).ok_or(End(None))?;
                    (last, is_asked) = (Instant::now(), false);
                    self.seat.touch();
                    self.count(last);
                    self.receive(&message).await?;
                }
                () = sleep_until(begin + SECOND), if count >= MAX_MESSAGES => self.count(Instant::now()),
                () = sleep_until(last + if is_asked { end } else { ping }) => match is_asked {
                    true => return Err(End(Some("the page does not answer"))),
                    false => {
                        is_asked = true;
                        self.send(Message::Ping(Bytes::new())).await?;
                    }
                },
                () = sleep_until(self.wanted.next), if self.wanted.is_some() => self.change().await?,
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
                self.wanted.cameras = Some(cameras);
                Ok(())
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
                self.wanted.focus = Some((focus, camera, mode));
                Ok(())
            }
            Request::Watch { .. } | Request::Focus { .. } => Err(End(Some("no camera has this number"))),
        }
    }

    /// Counts a message, or begins the next second.
    fn count(&mut self, now: Instant) {
        let (begin, count) = &mut self.received;
        match now < *begin + SECOND {
            true => *count += 1,
            false => self.received = (now, 1),
        }
    }

    /// Shows what the page has asked for last.
    async fn change(&mut self) -> Result<(), End> {
        self.wanted.next = Instant::now() + CHANGE;
        if let Some((focus, camera, mode)) = self.wanted.focus.take() {
            self.focus = Focus::open(focus, camera.map(|camera| &self.wall.cameras[camera]), mode);
        }
        if let Some(cameras) = self.wanted.cameras.take() {
            self.watch(&cameras);
        }
        self.send_tiles().await
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
