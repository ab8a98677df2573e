// SPDX-License-Identifier: MIT OR Apache-2.0

//! The services of a run: publish-subscribe for frames, and events that wake readers.

use crate::Run;
use anyhow::{Context, Result};
use iceoryx2::{
    config::Config,
    node::{Node, NodeBuilder},
    prelude::{FileName, Path, SemanticString, ServiceName, SignalHandlingMode, ipc},
    service::port_factory::{event, publish_subscribe},
};
use std::mem::MaybeUninit;

/// A byte of a frame: as in the rest of the bench, most of a frame is never written.
pub type Byte = MaybeUninit<u8>;

/// A node and its services.
pub struct Services {
    /// Frames.
    pub frames: publish_subscribe::PortFactory<ipc::Service, [Byte], ()>,
    /// Wake-ups.
    pub wake: event::PortFactory<ipc::Service>,
    _node: Node<ipc::Service>,
}

impl Services {
    /// Opens or creates the services of a run. Nothing is lost: a reader whose buffer is full
    /// delays the exporter, as a lossless reader of frameshare does.
    pub fn open(run: &Run) -> Result<Self> {
        let mut config = Config::default();
        let folder = format!("{}.iceoryx2", run.socket);
        config.global.set_root_path(&Path::new(folder.as_bytes()).context("no folder for services")?);
        // Names of shared memory are the machine's: those of one run are its own.
        let parent = std::os::unix::process::parent_id();
        config.global.prefix =
            FileName::new(format!("iox2_bench_{parent}_").as_bytes()).context("no prefix")?;
        let node = NodeBuilder::new()
            .config(&config)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<ipc::Service>()
            .context("no node of iceoryx2")?;
        let name: ServiceName = "frames".try_into().context("no name")?;
        let frames = node
            .service_builder(&name)
            .publish_subscribe::<[Byte]>()
            .enable_safe_overflow(false)
            .subscriber_max_buffer_size(run.pool)
            .max_subscribers(run.case.readers)
            .max_nodes(run.case.readers + 1)
            .open_or_create()
            .context("no publish-subscribe service")?;
        let wake = node
            .service_builder(&name)
            .event()
            .max_listeners(run.case.readers)
            .max_nodes(run.case.readers + 1)
            .open_or_create()
            .context("no event service")?;
        Ok(Self { frames, wake, _node: node })
    }
}
