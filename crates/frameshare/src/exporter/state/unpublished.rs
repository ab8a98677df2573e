// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames that are not published.

use super::State;
use crate::{exporter::slot::Slot, fence::Written, gpu::DropWhenIdle};
use std::any::Any;

impl State {
    /// Gives up a frame that is not published: its slot is in use, and its user data kept, until
    /// the work that writes it is done.
    pub fn abandon(&mut self, slot: &Slot, written: Written<'_>, keep: Option<Box<dyn Any + Send>>) {
        let held: Box<dyn Any + Send> = Box::new((slot.clone(), keep));
        let (recorded, gpu) = match (written, self.gpu().cloned()) {
            _ if slot.as_ptr().is_some() || self.slots().is_adopted(slot) => {
                return self.deferred_mut().drop_user_data([held]);
            }
            (Written::On(stream), Some(gpu)) => {
                (self.system_mut().record(stream, &gpu), stream.context().clone())
            }
            (Written::Somewhere, Some(gpu)) => (self.system_mut().record_context(&gpu), gpu),
            (Written::Cpu, _) | (_, None) => return self.deferred_mut().drop_user_data([held]),
        };
        match recorded {
            Ok(work) => self.decisions.drop_after(work, held),
            // The work of the context is found later, after a capture of the stream, and the frame
            // dropped, with the state unlocked. Work from before the capture may be under way.
            Err(_) => self.deferred_mut().drop_resource(DropWhenIdle::new(&gpu, held)),
        }
    }
}
