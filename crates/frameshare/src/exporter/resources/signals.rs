// SPDX-License-Identifier: MIT OR Apache-2.0

//! The GPU of an exporter, as its decisions see it.

use crate::fence::{Signals, Writing, Written};
use frameshare_core::exporter::system as core;
use frameshare_cuda::{
    Error, Status,
    context::{Context, Current},
    event::Event,
};
use std::sync::Arc;

/// The context that frames are written in.
#[derive(Clone, Debug)]
pub struct Gpu(pub Arc<Context>);

impl core::Gpu for Gpu {
    type Error = Error;
    type Current<'a> = Current<'a>;

    fn enter(&self) -> Result<Current<'_>, Error> {
        self.0.push()
    }
}

/// GPU work behind which an event was recorded.
#[derive(Debug)]
pub struct Recorded(pub Event);

impl core::Work for Recorded {
    /// Failed work uses nothing.
    fn is_done(&self) -> bool {
        !matches!(self.0.query(), Ok(Status::Pending))
    }
}

impl core::Signals for Signals {
    type Error = Error;
    type Written<'a> = Written<'a>;
    type Writing = Writing;
    type Present = Arc<Event>;

    fn is_complete(written: Written<'_>) -> bool {
        matches!(written, Written::Cpu)
    }

    fn begin(&mut self, written: Written<'_>) -> Result<Option<Writing>, Error> {
        self.begin(written)
    }

    fn hold(&self) -> Result<(), String> {
        self.hold().map_err(|error| error.to_string())
    }

    fn begin_earlier(&mut self) -> Result<(), Error> {
        self.begin_earlier()
    }

    fn flush(&mut self, writing: Option<&mut Writing>) -> Result<(), String> {
        self.flush(writing).map_err(|error| error.to_string())
    }

    fn is_writing(&self, writing: &Writing) -> bool {
        self.is_writing(writing)
    }

    fn present(&self) -> Option<Arc<Event>> {
        self.present()
    }
}
