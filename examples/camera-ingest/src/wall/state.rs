// SPDX-License-Identifier: MIT OR Apache-2.0

//! State that the server and all pages share, and its messages for a page.

use super::{
    control::Control,
    figures::Figures,
    guard::Guard,
    media::{Pictures, Results, Size},
};
use crate::{config::Camera, roles::Newest};
use axum::extract::ws::Utf8Bytes;
use frameshare_http::Seats;
use serde_json::{Value, json};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tokio::sync::watch;

/// Maximum number of pages.
const MAX_PAGES: usize = 32;

/// The state.
pub struct Wall {
    pub guard: Guard,
    pub cameras: Vec<Arc<CameraView>>,
    /// The configuration of the same cameras, whose zones change.
    pub newest: Newest,
    pub results: Results,
    pub figures: Arc<Figures>,
    pub control: Arc<Control>,
    /// Changes with each new tile.
    pub drawn: watch::Sender<u64>,
    /// The open pages.
    pub pages: Arc<Seats>,
}

/// A camera on the page.
pub struct CameraView {
    pub camera: Camera,
    pub tiles: Pictures,
    pub pictures: Pictures,
    pub made: Arc<Made>,
}

/// Tiles of a camera so far, and the reason why there are none now.
#[derive(Default)]
pub struct Made {
    pub tiles: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl Wall {
    pub fn new(cameras: &[Camera], newest: Newest, guard: Guard) -> Self {
        let drawn = watch::Sender::new(0);
        let views: Vec<_> = cameras.iter().map(|camera| Arc::new(CameraView::new(camera, &drawn))).collect();
        let results = cameras.iter().enumerate().flat_map(|(index, camera)| {
            let motion = camera.motion.then(|| (index, "motion", camera.motion_results()));
            motion.into_iter().chain(camera.model.then(|| (index, "model", camera.model_results())))
        });
        let made: Vec<_> = views.iter().map(|view| Arc::clone(&view.made)).collect();
        let figures = Figures::observe(cameras, move |camera| made[camera].problem());
        Self {
            guard,
            newest,
            results: Results::new(results),
            figures,
            control: Control::of_environment(),
            drawn,
            pages: Seats::new(MAX_PAGES),
            cameras: views,
        }
    }

    /// The first message for a page.
    pub fn hello(&self) -> Utf8Bytes {
        let cameras: Vec<_> = self.newest.borrow().1.iter().map(describe).collect();
        let version = env!("CARGO_PKG_VERSION");
        json!({ "type": "hello", "version": version, "cameras": cameras }).to_string().into()
    }

    pub fn history(&self) -> Utf8Bytes {
        self.figures.history()
    }

    /// The state of the site, as a message for the page.
    pub fn site(&self) -> Utf8Bytes {
        let is_supervised = self.control.is_supervised();
        let site = match self.control.state() {
            Some(state) => json!({
                "type": "site", "supervised": is_supervised, "connected": true,
                "token": state.demo.then(|| self.guard.token()),
                "processes": state.processes, "events": state.events,
            }),
            None => json!({
                "type": "site", "supervised": is_supervised, "connected": false,
                "processes": [], "events": [],
            }),
        };
        site.to_string().into()
    }
}

impl CameraView {
    fn new(camera: &Camera, drawn: &watch::Sender<u64>) -> Self {
        let made = Arc::new(Made::default());
        let (counted, drawn) = (Arc::clone(&made), drawn.clone());
        let tiles = Pictures::new(&camera.frames(), Size::TILE, move |why| {
            counted.set_problem(why);
            if why.is_none() {
                counted.tiles.fetch_add(1, Relaxed);
                drawn.send_modify(|count| *count += 1);
            }
        });
        let pictures = Pictures::new(&camera.frames(), Size::FOCUS, |_| {});
        Self { camera: camera.clone(), tiles, pictures, made }
    }
}

impl Made {
    fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_problem(&self, why: Option<&str>) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = why.map(str::to_owned);
    }
}

/// Describes a camera for the page.
fn describe(camera: &Camera) -> Value {
    json!({
        "name": camera.name, "source": camera.main.to_string(),
        "sub": camera.sub.as_ref().map(ToString::to_string),
        "decode": camera.decode, "raw": camera.main.is_raw(), "zones": camera.zones,
        "record": camera.record, "motion": camera.motion, "model": camera.model,
    })
}
