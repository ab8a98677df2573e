// SPDX-License-Identifier: MIT OR Apache-2.0

//! Symbols of libnvcuvid that GStreamer's decoders look up. This library replaces libnvcuvid; each
//! function returns "not supported".

use crate::api::NOT_SUPPORTED;

macro_rules! absent {
    ($($name:ident)*) => {
        crate::export! {
            $(
                fn $name() {
                    Err(NOT_SUPPORTED)
                }
            )*
        }
    };
}

absent! {
    cuvidCreateDecoder cuvidDestroyDecoder cuvidDecodePicture cuvidReconfigureDecoder cuvidGetDecodeStatus
    cuvidGetDecoderCaps cuvidMapVideoFrame64 cuvidUnmapVideoFrame64 cuvidMapVideoFrame cuvidUnmapVideoFrame
    cuvidCreateVideoParser cuvidParseVideoData cuvidDestroyVideoParser
    cuvidCtxLockCreate cuvidCtxLockDestroy cuvidCtxLock cuvidCtxUnlock
}
