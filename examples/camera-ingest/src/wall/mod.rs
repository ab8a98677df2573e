// SPDX-License-Identifier: MIT OR Apache-2.0

//! The page: all cameras as small pictures, one of them in full, and the state of the site.
//!
//! Streams are read by pipelines ([`media`]) while a page wants them, and observed always
//! ([`figures`]); the supervisor, if there is one, tells the state of the processes ([`control`]).
//! [`server`] answers requests that `frameshare_http` and [`guard`] admit; [`session`] serves the
//! WebSocket of a page.

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
mod state;

use crate::{
    config::Camera,
    report::{Condition, Report, Reporter},
    roles::{Context, Newest},
};
use anyhow::{Context as _, Result};
use frameshare::Interrupt;
use frameshare_http::Server;
use guard::Guard;
use rustix::event::{PollFd, PollFlags, poll};
use state::Wall;
use std::{net::SocketAddr, sync::Arc, thread};
use tokio::sync::oneshot;
use tower_service::Service;

/// Serves the page until the role is stopped.
pub fn run(context: &Context, newest: Newest) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(context, newest))
}

async fn serve(context: &Context<'_>, newest: Newest) -> Result<()> {
    let listen = context.config.wall.listen;
    let busy = || format!("cannot listen on {listen}: set 'listen' of [wall] to another address");
    let server = Server::bind(listen, []).with_context(busy)?;
    let address = server.address();
    let wall = Arc::new(Wall::new(context.cameras, newest, Guard::new()?));
    report(&context.reporter, context.cameras, address);
    let router = server::router(wall);
    tokio::select! {
        served = server.run(move |request| router.clone().call(request)) => match served {
            Ok(never) => match never {},
            Err(error) => Err(error).context("the server has failed"),
        },
        _ = stopped(context.stop.clone()) => Ok(()),
    }
}

fn report(reporter: &Reporter, cameras: &[Camera], address: SocketAddr) {
    if !address.ip().is_loopback() {
        eprintln!("the page at {address} is open to everyone who reaches it: it has no passwords");
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
