// SPDX-License-Identifier: MIT OR Apache-2.0

//! Provider of devices: one thread, from start to stop, that waits for changes of the streams.

use super::{
    FrameshareDevice,
    details::{Details, Observed},
};
use crate::{ffi::device_provider, sync::lock};
use frameshare::{Interrupt, StreamChange, StreamInfo, StreamMonitor, StreamName};
use gst::{prelude::*, subclass::prelude::*};
use std::{
    collections::BTreeMap,
    io,
    sync::{LazyLock, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "framesharedeviceprovider",
        gst::DebugColorFlags::empty(),
        Some("List of the streams that are shared"),
    )
});

/// Time between two looks at caps and readers.
const REFRESH: Duration = Duration::from_secs(1);

/// The thread of a provider that is started.
struct Watcher {
    interrupt: Interrupt,
    thread: JoinHandle<()>,
}

#[derive(Default)]
pub struct FrameshareDeviceProvider {
    watcher: Mutex<Option<Watcher>>,
}

#[glib::object_subclass]
impl ObjectSubclass for FrameshareDeviceProvider {
    const NAME: &'static str = "GstFrameshareDeviceProvider";
    type Type = super::FrameshareDeviceProvider;
    type ParentType = gst::DeviceProvider;
}

impl ObjectImpl for FrameshareDeviceProvider {
    fn dispose(&self) {
        self.end();
    }
}

impl GstObjectImpl for FrameshareDeviceProvider {}

impl DeviceProviderImpl for FrameshareDeviceProvider {
    fn metadata() -> Option<&'static gst::subclass::DeviceProviderMetadata> {
        static METADATA: LazyLock<gst::subclass::DeviceProviderMetadata> = LazyLock::new(|| {
            gst::subclass::DeviceProviderMetadata::new(
                "Shared streams",
                "Source/Video",
                "Lists the streams that framesharesink shares by name",
                env!("CARGO_PKG_AUTHORS"),
            )
        });
        Some(&METADATA)
    }

    fn probe(&self) -> Vec<gst::Device> {
        match frameshare::streams() {
            Ok(streams) => {
                let named = streams.iter().filter(|stream| stream.is_named());
                let device = |stream: &StreamInfo| {
                    FrameshareDevice::new(stream, &Observed::new(&stream.endpoint).details()).upcast()
                };
                named.map(device).collect()
            }
            Err(error) => {
                gst::warning!(CAT, imp = self, "cannot list the streams: {error}");
                Vec::new()
            }
        }
    }

    fn start(&self) -> Result<(), gst::LoggableError> {
        let failed = |error: io::Error| gst::loggable_error!(CAT, "cannot watch the streams: {error}");
        let mut monitor = StreamMonitor::new().map_err(failed)?;
        let interrupt = Interrupt::new().map_err(failed)?;
        // The streams that exist are listed when this returns.
        let mut devices = Devices::default();
        while let Some(change) = monitor.next(Some(Duration::ZERO), &interrupt).map_err(failed)? {
            devices.apply(&self.obj(), change);
        }
        let (provider, stop) = (self.downgrade(), interrupt.clone());
        let watch = move || {
            loop {
                let refresh = (!devices.0.is_empty()).then_some(REFRESH);
                match monitor.next(refresh, &stop) {
                    Ok(_) if stop.is_set() => return,
                    Ok(change) => match provider.upgrade() {
                        Some(provider) => match change {
                            Some(change) => devices.apply(&provider.obj(), change),
                            None => devices.refresh(&provider.obj()),
                        },
                        None => return,
                    },
                    Err(error) => return gst::error!(CAT, "cannot watch the streams: {error}"),
                }
            }
        };
        let thread = thread::Builder::new().name("frameshare-list".into()).spawn(watch).map_err(failed)?;
        *lock(&self.watcher) = Some(Watcher { interrupt, thread });
        Ok(())
    }

    fn stop(&self) {
        self.end();
    }
}

impl FrameshareDeviceProvider {
    /// Ends the thread, if there is one.
    fn end(&self) {
        let watcher = lock(&self.watcher).take();
        if let Some(Watcher { interrupt, thread }) = watcher {
            interrupt.set();
            // The thread itself, if it drops the last reference, cannot wait for its end.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// A device that the provider has added.
struct Listed {
    device: FrameshareDevice,
    stream: StreamInfo,
    observed: Observed,
    details: Details,
}

/// The devices that the provider has added.
#[derive(Default)]
struct Devices(BTreeMap<StreamName, Listed>);

impl Devices {
    fn apply(&mut self, provider: &super::FrameshareDeviceProvider, change: StreamChange) {
        match change {
            StreamChange::Appeared(stream) => {
                let mut observed = Observed::new(&stream.endpoint);
                let details = observed.details();
                let device = FrameshareDevice::new(&stream, &details);
                provider.device_add(&device);
                self.0.insert(stream.name.clone(), Listed { device, stream, observed, details });
            }
            StreamChange::Vanished(stream) => {
                if let Some(listed) = self.0.remove(&stream.name) {
                    provider.device_remove(&listed.device);
                }
            }
            other => gst::debug!(CAT, obj = provider, "ignored {other:?}"),
        }
    }

    /// Replaces the devices whose caps or number of readers have changed.
    fn refresh(&mut self, provider: &super::FrameshareDeviceProvider) {
        for listed in self.0.values_mut() {
            let details = listed.observed.details();
            if details != listed.details {
                let device = FrameshareDevice::new(&listed.stream, &details);
                device_provider::change(provider, &device, &listed.device);
                (listed.device, listed.details) = (device, details);
            }
        }
    }
}
