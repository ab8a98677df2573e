// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device attributes that frameshare depends on.

use std::fmt;

use cudarc::driver::sys::CUdevice_attribute;

/// A device attribute that frameshare depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute {
    number: i32,
    name: &'static str,
}

impl Attribute {
    /// Returns the attribute's number in cuda.h.
    pub(crate) const fn number(self) -> i32 {
        self.number
    }
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => {
        impl Attribute {
            $(
                $(#[$doc])*
                pub const $name: Attribute =
                    Attribute { number: CUdevice_attribute::$c as i32, name: stringify!($c) };
            )*
        }
    };
}

attributes! {
    /// Host and device share one address space.
    UNIFIED_ADDRESSING = CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
    /// Host memory can be registered.
    HOST_REGISTER_SUPPORTED = CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
    /// Physical memory can be allocated, mapped and shared separately from addresses: required by
    /// `vmm`.
    VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    /// Physical memory can be exported as file descriptors: required by `vmm`.
    HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED =
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    /// Host memory that the CPU maps read-only can be registered.
    READ_ONLY_HOST_REGISTER_SUPPORTED = CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
    /// Stream-ordered memory pools: required by `pool`.
    MEMORY_POOLS_SUPPORTED = CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    /// Bit mask of the handle types that pools can be exported as (1: file descriptors): required
    /// by `pool`.
    MEMPOOL_SUPPORTED_HANDLE_TYPES = CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES;
    /// Streams can write and wait for 64-bit values, with the `_v2` calls: required by `timeline`.
    CAN_USE_64_BIT_STREAM_MEM_OPS = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
    /// Events can be shared between processes: required by `event` and `legacy`.
    IPC_EVENT_SUPPORTED = CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED;
}

impl Attribute {
    /// Contexts of this process are created in a server of the multi-process service. Newer than
    /// the headers that the other attributes come from.
    pub const MPS_ENABLED: Attribute = Attribute { number: 133, name: "CU_DEVICE_ATTRIBUTE_MPS_ENABLED" };
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
