// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of all streams and their readers, once a second, and their history.

mod history;
mod observed;
mod stream;

pub use stream::{Copies, ReaderFigures, StreamFigures};

use crate::config::Camera;
use axum::extract::ws::Utf8Bytes;
use frameshare::StreamInfo;
use history::History;
use observed::Observed;
use serde::Serialize;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tokio::sync::watch;

const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two searches for streams that are missing.
const SEARCH: Duration = Duration::from_secs(2);

/// Figures of one camera.
#[derive(Clone, Debug, Serialize)]
pub struct CameraFigures {
    pub camera: String,
    /// Why the page gets no tiles of it.
    pub tiles: Option<String>,
    pub streams: Vec<StreamFigures>,
    /// The newest entry of the history.
    pub sample: history::Sample,
}

/// The figures of all cameras.
pub struct Figures {
    text: watch::Sender<Utf8Bytes>,
    newest: Mutex<Arc<Vec<CameraFigures>>>,
    history: Mutex<Vec<History>>,
}

/// The streams of one camera.
struct Watched {
    camera: Camera,
    streams: Vec<Observed>,
}

impl Figures {
    /// Observes the streams of these cameras from now on. `problem` returns why a camera has no
    /// tiles.
    pub fn observe(
        cameras: &[Camera],
        problem: impl Fn(usize) -> Option<String> + Send + 'static,
    ) -> Arc<Self> {
        let figures = Arc::new(Self {
            text: watch::Sender::new(Utf8Bytes::default()),
            newest: Mutex::default(),
            history: Mutex::new(cameras.iter().map(|_| History::default()).collect()),
        });
        let mut watched: Vec<_> = cameras.iter().map(Watched::of).collect();
        let made = Arc::clone(&figures);
        thread::spawn(move || {
            let mut next = Instant::now();
            let mut search = Instant::now();
            loop {
                if search <= Instant::now() && watched.iter().any(Watched::misses) {
                    connect(&mut watched);
                    search = Instant::now() + SEARCH;
                }
                made.update(&mut watched, &problem);
                next = (next + INTERVAL).max(Instant::now());
                thread::sleep(next - Instant::now());
            }
        });
        figures
    }

    /// Each new state, as a message for the page.
    pub fn subscribe(&self) -> watch::Receiver<Utf8Bytes> {
        self.text.subscribe()
    }

    pub fn newest(&self) -> Arc<Vec<CameraFigures>> {
        Arc::clone(&self.newest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The history of all cameras, as a message for the page.
    pub fn history(&self) -> Utf8Bytes {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        json!({ "type": "history", "interval": INTERVAL.as_secs(), "cameras": *history }).to_string().into()
    }

    fn update(&self, watched: &mut [Watched], problem: &impl Fn(usize) -> Option<String>) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let cameras = watched.iter_mut().zip(history.iter_mut()).enumerate();
        let cameras: Vec<_> = cameras
            .map(|(index, (watched, history))| {
                let streams: Vec<_> = watched.streams.iter_mut().filter_map(Observed::figures).collect();
                let sample = history.add(&streams);
                CameraFigures { camera: watched.camera.name.clone(), tiles: problem(index), streams, sample }
            })
            .collect();
        let text = json!({ "type": "figures", "cameras": cameras }).to_string();
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(cameras);
        self.text.send_replace(text.into());
    }
}

impl Watched {
    fn of(camera: &Camera) -> Self {
        let sub = camera.sub.as_ref().map(|_| Observed::new("sub", camera.encoded_sub()));
        let motion = camera.motion.then(|| Observed::new("motion", camera.motion_results()));
        let model = camera.model.then(|| Observed::new("model", camera.model_results()));
        let always = [Observed::new("video", camera.encoded()), Observed::new("frames", camera.frames())];
        let audio = Observed::optional("audio", camera.audio());
        let streams = always.into_iter().chain(sub).chain([audio]).chain(motion).chain(model).collect();
        Self { camera: camera.clone(), streams }
    }

    fn misses(&self) -> bool {
        self.streams.iter().any(|stream| !stream.is_connected())
    }
}

/// Connects to the missing streams that are there now.
fn connect(watched: &mut [Watched]) {
    let present = match frameshare::streams() {
        Ok(present) => present,
        Err(error) => return eprintln!("cannot list streams: {error}"),
    };
    let present: HashMap<_, StreamInfo> =
        present.into_iter().map(|stream| (stream.name.to_string(), stream)).collect();
    for stream in watched.iter_mut().flat_map(|watched| &mut watched.streams) {
        if !stream.is_connected() {
            stream.connect(present.get(stream.name()).map(|stream| &stream.endpoint));
        }
    }
}
