// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kernel that writes one timeline value, for cases that must lose a context.
//!
//! Elsewhere the suites use no kernels, since the simulated driver has none. A memset is not
//! sufficient here: drivers refuse it at the call, whereas a kernel fails when it runs.

use frameshare_cuda::{DevicePtr, stream::Stream};
use frameshare_gpu_harness::kernel::Kernel;
use std::ffi::CStr;

/// Turing is the oldest architecture that CUDA 13 supports.
const PTX: &CStr = c"
.version 6.4
.target sm_75
.address_size 64
.visible .entry store(.param .u64 place)
{
    .reg .b32 %value;
    .reg .b64 %generic, %address;
    ld.param.u64 %generic, [place];
    cvta.to.global.u64 %address, %generic;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
";

/// The kernel.
pub struct Store(Kernel);

impl Store {
    /// Loads the kernel into the context of `stream`.
    pub fn load(stream: &Stream) -> Result<Store, String> {
        Kernel::load(stream, PTX, c"store").map(Store)
    }

    /// Writes the value at `address` in the order of `stream`, whose context the kernel was loaded
    /// into.
    ///
    /// # Safety
    /// Nothing else may access the value meanwhile. An address that the device may not write loses
    /// the context.
    #[allow(unsafe_code)]
    pub unsafe fn launch(&self, stream: &Stream, address: DevicePtr) -> Result<(), String> {
        // SAFETY: the kernel takes one address; the caller guarantees that it may be written.
        unsafe { self.0.launch(stream, 1, 1, [address]) }
    }
}
