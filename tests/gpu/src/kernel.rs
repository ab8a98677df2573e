//! A kernel that writes one word, for the cases that must lose a context.
//!
//! The suites do without kernels elsewhere, since the simulated driver has none. A memset does not do here: drivers refuse
//! it at the call where a kernel fails when it runs.

use frameshare_cuda::{DevicePtr, stream::Stream};
use frameshare_gpu_harness::kernel::Kernel;
use std::ffi::CStr;

/// Turing is the oldest architecture that CUDA 13 knows.
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
    /// Loads it into the context of `stream`.
    pub fn load(stream: &Stream) -> Result<Store, String> {
        Kernel::load(stream, PTX, c"store").map(Store)
    }

    /// Writes the word at `address` in the order of `stream`, whose context the kernel was loaded into.
    ///
    /// # Safety
    /// Nothing else may use the word meanwhile. An address that the device may not write costs the context.
    #[allow(unsafe_code)]
    pub unsafe fn launch(&self, stream: &Stream, address: DevicePtr) -> Result<(), String> {
        // SAFETY: it takes one address; the caller vouches for that.
        unsafe { self.0.launch(stream, 1, 1, [address]) }
    }
}
