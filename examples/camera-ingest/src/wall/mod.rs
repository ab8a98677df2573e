// SPDX-License-Identifier: MIT OR Apache-2.0

//! The page: all cameras as small pictures, one of them in full, and the state of the site.
//!
//! Streams are read by pipelines ([`media`]) while a page wants them, and observed always
//! ([`figures`]); the supervisor, if there is one, tells the state of the processes ([`control`]).
//! [`server`] answers requests that [`guard`] admits; [`session`] serves the WebSocket of a page.

mod assets;
mod control;
mod events;
mod figures;
mod focus;
mod guard;
mod media;
mod metrics;
mod protocol;
mod server;
mod session;

use crate::{
    config::{Camera, Decode},
    report::{Condition, Report, Reporter},
    roles::Context,
};
use anyhow::{Context as _, Result};
use axum::extract::ws::Utf8Bytes;
use control::Control;
use figures::Figures;
use frameshare::Interrupt;
use guard::Guard;
use media::{Pictures, Results, Size};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};

/// State that the server and all pages share.
struct Wall {
    guard: Guard,
    cameras: Vec<Arc<CameraView>>,
    results: Results,
    figures: Arc<Figures>,
    control: Arc<Control>,
    /// Changes with each new tile.
    drawn: watch::Sender<u64>,
    /// Number of open pages.
    pages: AtomicUsize,
}

/// A camera on the page.
struct CameraView {
    camera: Camera,
    tiles: Pictures,
    pictures: Pictures,
    made: Arc<Made>,
}

/// Tiles of a camera so far, and the reason why there are none now.
#[derive(Default)]
struct Made {
    tiles: AtomicU64,
    problem: Mutex<Option<String>>,
}

/// Serves the page until the role is stopped.
pub fn run(context: &Context) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(context))
}

async fn serve(context: &Context<'_>) -> Result<()> {
    let listen = context.config.wall.listen;
    let busy = || format!("cannot listen on {listen}: set 'listen' of [wall] to another address");
    let listener = TcpListener::bind(listen).await.with_context(busy)?;
    let address = listener.local_addr()?;
    let wall = Arc::new(Wall::new(context.cameras, Guard::new(address)?));
    report(&context.reporter, context.cameras, address);
    let router = server::router(wall);
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served.context("the server has failed"),
        _ = stopped(context.stop.clone()) => Ok(()),
    }
}

fn report(reporter: &Reporter, cameras: &[Camera], address: SocketAddr) {
    if !address.ip().is_loopback() {
        log::warn!("the page at {address} is open to everyone who reaches it: it has no passwords");
    }
    let send = |camera: &str, text: String| {
        let (camera, condition) = (camera.to_owned(), Condition::Running);
        reporter.send(&Report { camera, condition, text, values: Default::default() });
    };
    // The supervisor tells people this address.
    send("", format!("http://{address}/"));
    for camera in cameras {
        send(&camera.name, "on the page".to_owned());
    }
}

/// Completes when the interrupt is set.
fn stopped(stop: Interrupt) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        while !stop.is_set() {
            // EINTR: check again.
            let _ = poll(&mut [PollFd::new(&stop, PollFlags::IN)], None);
        }
        let _ = sender.send(());
    });
    receiver
}

impl Wall {
    fn new(cameras: &[Camera], guard: Guard) -> Self {
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
            results: Results::new(results),
            figures,
            control: Control::of_environment(),
            drawn,
            pages: AtomicUsize::new(0),
            cameras: views,
        }
    }

    /// The first message for a page.
    fn hello(&self) -> Utf8Bytes {
        let cameras: Vec<_> = self.cameras.iter().map(|view| describe(&view.camera)).collect();
        let version = env!("CARGO_PKG_VERSION");
        json!({ "type": "hello", "version": version, "cameras": cameras }).to_string().into()
    }

    fn history(&self) -> Utf8Bytes {
        self.figures.history()
    }

    /// The state of the site, as a message for the page.
    fn site(&self) -> Utf8Bytes {
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
    let decode = match camera.decode {
        Decode::Main => "main",
        Decode::Sub => "sub",
        Decode::Never => "never",
    };
    let zones: Vec<_> =
        camera.zones.iter().map(|zone| json!({ "name": zone.name, "points": zone.points })).collect();
    json!({
        "name": camera.name, "source": camera.main.to_string(),
        "sub": camera.sub.as_ref().map(ToString::to_string),
        "decode": decode, "raw": camera.main.is_raw(), "zones": zones,
        "record": camera.record, "motion": camera.motion, "model": camera.model,
    })
}
