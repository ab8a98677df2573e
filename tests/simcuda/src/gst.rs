//! What GStreamer's libgstcuda looks up besides, without a meaning here: kernels, textures, OpenGL, external memory.
//!
//! It refuses the whole library if one of these names is missing, and does without what answers "not supported".

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

// Callers pass arguments; in C's calling convention a function need not look at them.
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
