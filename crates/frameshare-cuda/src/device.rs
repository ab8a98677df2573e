//! GPUs of this process: who they are and what they can do.
//!
//! # Safety
//! This file calls the driver with out-parameters that live on its own stack.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fmt;

use once_cell::sync::OnceCell;

use crate::abi::{CUdevice, CUuuid, attribute};
use crate::driver::{self, Driver};
use crate::{Error, Result};

/// The identity of a GPU, or of a MIG instance of one: the same in every process and container.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A property of devices that decides what frameshare can do on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute {
    number: i32,
    name: &'static str,
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl Attribute {
            $(
                $(#[$doc])*
                pub const $name: Attribute = Attribute {
                    number: attribute::$name,
                    name: concat!("CU_DEVICE_ATTRIBUTE_", stringify!($name)),
                };
            )*
        }
    };
}

attributes! {
    /// Host and device share one address space.
    UNIFIED_ADDRESSING;
    /// Host memory can be registered.
    HOST_REGISTER_SUPPORTED;
    /// Physical memory can be made, mapped and shared apart from addresses: needed by `vmm`.
    VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    /// Physical memory can be exported as file descriptors: needed by `vmm`.
    HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    /// Host memory that the CPU maps read-only can be registered.
    READ_ONLY_HOST_REGISTER_SUPPORTED;
    /// Stream-ordered memory pools: needed by `pool`.
    MEMORY_POOLS_SUPPORTED;
    /// Which handles pools can be exported as, a bit mask (1: file descriptors): needed by `pool`.
    MEMPOOL_SUPPORTED_HANDLE_TYPES;
    /// Streams can write and wait for 64-bit words, under the names with `_v2`: needed by `timeline`.
    CAN_USE_64_BIT_STREAM_MEM_OPS;
    /// Events can be shared between processes: needed by `event`, and by `legacy`.
    IPC_EVENT_SUPPORTED;
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A GPU that this process sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    raw: CUdevice,
    ordinal: usize,
    uuid: Uuid,
    name: String,
}

impl Device {
    /// All GPUs that this process sees, in the order of their ordinals. The driver is asked once: which GPUs a process sees
    /// is settled by `cuInit`.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; otherwise what the driver says. A later call asks again then.
    ///
    /// # References
    /// CUDA driver API, cuDeviceGetCount.
    pub fn all() -> Result<&'static [Device]> {
        static ALL: OnceCell<Vec<Device>> = OnceCell::new();
        let all = ALL.get_or_try_init(|| {
            let driver = driver::get()?;
            let mut count = 0;
            // SAFETY: `count` takes one int.
            unsafe { driver.cuDeviceGetCount(&mut count) }?;
            (0..usize::try_from(count).unwrap_or(0)).map(|ordinal| Device::load(driver, ordinal)).collect()
        });
        all.map(Vec::as_slice)
    }

    /// The GPU with this ordinal, which is the number that `cuda-device-id` means. Ordinals differ between processes.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; CUDA_ERROR_INVALID_DEVICE for an ordinal that does not exist.
    ///
    /// # References
    /// CUDA driver API, cuDeviceGet.
    pub fn get(ordinal: usize) -> Result<Device> {
        Device::load(driver::get()?, ordinal)
    }

    /// The GPU with this identity, if this process sees it.
    ///
    /// # Errors
    /// As [`Device::all`].
    pub fn with_uuid(uuid: Uuid) -> Result<Option<Device>> {
        Ok(Device::all()?.iter().find(|device| device.uuid == uuid).cloned())
    }

    /// The GPU that the driver calls `raw`.
    pub(crate) fn with_raw(raw: CUdevice) -> Result<Device> {
        Device::all()?
            .iter()
            .find(|device| device.raw == raw)
            .cloned()
            .ok_or(Error::Refused("the context belongs to a device that this process does not see"))
    }

    fn load(driver: &Driver, ordinal: usize) -> Result<Device> {
        let mut raw = 0;
        // SAFETY: `raw` takes one CUdevice; an ordinal out of range is an error code.
        unsafe { driver.cuDeviceGet(&mut raw, c_int::try_from(ordinal).unwrap_or(c_int::MAX)) }?;

        let mut uuid = CUuuid { bytes: [0; 16] };
        // The first version of the call gives instances of a divided GPU the UUID of the whole.
        if driver.has("cuDeviceGetUuid_v2") {
            // SAFETY: `uuid` takes one CUuuid.
            unsafe { driver.cuDeviceGetUuid_v2(&mut uuid, raw) }?;
        } else {
            // SAFETY: as above.
            unsafe { driver.cuDeviceGetUuid(&mut uuid, raw) }?;
        }

        let mut name = [0; 256];
        // SAFETY: `name` has room for 256 bytes, the final NUL among them.
        unsafe { driver.cuDeviceGetName(name.as_mut_ptr(), 256, raw) }?;
        let name = name.map(|c| c.cast_unsigned());
        let name = CStr::from_bytes_until_nul(&name).map_or_else(|_| "".into(), CStr::to_string_lossy);

        Ok(Device {
            raw,
            ordinal,
            uuid: Uuid(uuid.bytes.map(|c| c.cast_unsigned())),
            name: name.into_owned(),
        })
    }

    pub(crate) fn raw(&self) -> CUdevice {
        self.raw
    }

    /// The GPU's number in this process.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The GPU's identity; that of the MIG instance on a divided GPU.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The GPU's name for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when the driver is older than the attribute.
    ///
    /// # References
    /// CUDA driver API, cuDeviceGetAttribute.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` takes one int; unknown attributes are an error code.
        unsafe { driver::get()?.cuDeviceGetAttribute(&mut value, attribute.number, self.raw) }?;
        Ok(value)
    }

    /// Whether any bit of `mask` is set in an attribute; one that the driver does not know counts as not set.
    pub(crate) fn offers(&self, attribute: Attribute, mask: i32) -> bool {
        self.attribute(attribute).is_ok_and(|value| value & mask != 0)
    }

    /// Whether this GPU can read and write the memory of `peer`.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # References
    /// CUDA driver API, cuDeviceCanAccessPeer.
    pub fn can_access(&self, peer: &Device) -> Result<bool> {
        if self.raw == peer.raw {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: `can` takes one int; both devices came from the driver.
        unsafe { driver::get()?.cuDeviceCanAccessPeer(&mut can, self.raw, peer.raw) }?;
        Ok(can != 0)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_look_like_nvidia_smi_writes_them() {
        let bytes = std::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(Uuid(bytes).to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
