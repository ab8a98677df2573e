// SPDX-License-Identifier: MIT OR Apache-2.0

//! Symbols that GStreamer's decoders look up in libnvcuvid. This library stands in for it, and
//! decodes nothing.

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
