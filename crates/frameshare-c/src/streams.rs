// SPDX-License-Identifier: MIT OR Apache-2.0

//! The list of streams.
//!
//! # Safety
//!
//! Pointers come from C, as the header describes them; [`border`](crate::border) checks them. Texts
//! that go to C are the list's.
#![allow(unsafe_code)]

use crate::{
    border::{c_string, guard, object, quietly, store, take},
    failure::{Failure, Status},
    structs,
};
use std::{
    ffi::{CString, c_char},
    os::unix::ffi::OsStrExt,
    ptr,
};

structs::define! {
    /// A stream.
    StreamInfo as "frameshare_stream_info" of 40 {
        name: *const c_char = ptr::null(),
        path: *const c_char = ptr::null(),
        exporter_pid: u32 = 0,
        exporter_program: *const c_char = ptr::null(),
    }
}

/// The streams that were shared when the list was made.
#[derive(Debug)]
pub struct StreamList(Vec<Stream>);

#[derive(Debug)]
struct Stream {
    name: CString,
    path: CString,
    exporter_pid: u32,
    exporter_program: Option<CString>,
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_list_streams(list: *mut *mut StreamList) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        unsafe { store(list, ptr::null_mut(), "list") }?;
        let streams = frameshare::streams()?.into_iter().map(|stream| Stream {
            name: c_string(stream.name.as_str()),
            path: c_string(stream.endpoint.path().as_os_str().as_bytes()),
            exporter_pid: stream.exporter_pid.unwrap_or_default(),
            exporter_program: stream.exporter_program.map(c_string),
        });
        let found = Box::into_raw(Box::new(StreamList(streams.collect())));
        // SAFETY: the header's contract.
        unsafe { store(list, found, "list") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_stream_list_count(list: *const StreamList) -> usize {
    // SAFETY: the header's contract.
    quietly(0, || unsafe { object(list, "list") }.map_or(0, |list| list.0.len()))
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_stream_list_get(
    list: *const StreamList,
    index: usize,
    info: *mut StreamInfo,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let StreamList(streams) = unsafe { object(list, "list") }?;
        let stream = streams.get(index).ok_or_else(|| {
            Failure::argument(format!("index is {index}, but the list has {} streams", streams.len()))
        })?;
        let found = StreamInfo {
            name: stream.name.as_ptr(),
            path: stream.path.as_ptr(),
            exporter_pid: stream.exporter_pid,
            exporter_program: stream.exporter_program.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            ..structs::Struct::init()
        };
        // SAFETY: the header's contract.
        unsafe { structs::write(info, &found) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_stream_list_free(list: *mut StreamList) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(list, "list") }));
}
