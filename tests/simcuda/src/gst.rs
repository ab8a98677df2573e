// SPDX-License-Identifier: MIT OR Apache-2.0

//! Further symbols that GStreamer's libgstcuda looks up: kernels, textures, OpenGL, external
//! memory. None of them is simulated.
//!
//! libgstcuda rejects the whole library if one of these names is missing, and handles "not
//! supported".

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

// Callers pass arguments. In C's calling convention a function may ignore them.
absent! {
    cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction
    cuLibraryLoadData cuLibraryUnload cuLibraryGetKernel
    cuLaunchKernel cuFuncGetAttribute
    cuTexObjectCreate cuTexObjectDestroy
    cuArrayCreate_v2 cuArrayDestroy
    cuGLGetDevices_v2 cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsMapResources
    cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray
    cuGraphicsUnmapResources cuGraphicsUnregisterResource
    cuGraphicsEGLRegisterImage cuGraphicsResourceGetMappedEglFrame
    cuImportExternalMemory cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer
    cuExternalMemoryGetMappedMipmappedArray
    cuImportExternalSemaphore cuDestroyExternalSemaphore cuSignalExternalSemaphoresAsync
    cuWaitExternalSemaphoresAsync
}
