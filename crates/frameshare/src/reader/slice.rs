// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plain slices of frames whose exporter is trusted.
//!
//! # Safety
//!
//! No process may write the bytes of a plain slice. The seals of a slot leave its exporter as the
//! only writer, and an exporter does not write a leased slot. That an exporter keeps this rule is
//! taken from processes of this process's own user, which can write its memory anyway (ptrace(2)).
#![allow(unsafe_code)]

use super::lease::Frame;

impl Frame {
    /// The frame's bytes as a plain slice, if its exporter is trusted: it runs as this process's
    /// user, and the frame is in host memory. `None` otherwise; [`Frame::bytes`] can be read in
    /// every case.
    ///
    /// # Trust
    ///
    /// Seals leave the exporter as the only process that can write the frame, and exporters do not
    /// write leased frames, so the slice does not change. A program of the same user that speaks
    /// the protocol and breaks this rule makes the behavior of this process undefined, as it could
    /// by ptrace(2).
    pub fn slice(&self) -> Option<&[u8]> {
        let is_trusted = self.origin().is_own_user;
        self.as_ptr().filter(|_| is_trusted)?;
        // SAFETY: the exporter is of this process's user, so it keeps the rule of the header: it
        // does not write the frame while its lease is open, which `self` keeps open.
        Some(unsafe { self.as_slice() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        reader::origin::Origin,
        sys::{Label, Mapping, Words, memfd, store_bytes},
    };
    use frameshare_protocol::{Descriptor, message::Format};
    use std::sync::Arc;

    fn frame_of(is_own_user: bool) -> Frame {
        let fd = memfd(&Label::default().file("test"), 64).unwrap();
        let file = Words::from(Mapping::writable(&fd, 64).unwrap());
        store_bytes(&file, 0, &(0..64).collect::<Vec<u8>>());
        let format = Format { caps: "video/x-raw, format=GRAY8, width=6, height=8".into(), video: None };
        let descriptor = Descriptor { size: 64, ..Default::default() };
        let origin = Arc::new(Origin::of(&format, is_own_user));
        Frame::kept(descriptor, Vec::new(), file, 1, false, origin).unwrap()
    }

    #[test]
    fn only_own_users_exporter_is_trusted() {
        let frames = [true, false].map(frame_of);
        assert_eq!(frames.each_ref().map(|frame| frame.slice().map(<[u8]>::len)), [Some(64), None]);
        for frame in &frames {
            let plane = frame.plane(0).unwrap();
            assert_eq!(plane.row_slice(7).is_some(), frame.slice().is_some());
            let mut rows = [0; 6 * 8];
            plane.copy_to(&mut rows, 6).unwrap();
            assert_eq!(rows[6 * 7..], [56, 57, 58, 59, 60, 61]);
        }
    }
}
