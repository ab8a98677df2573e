// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device enumeration, identity and capabilities.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::str::FromStr;

use frameshare_process::PerProcess;
use once_cell::sync::OnceCell;

pub use crate::abi::Attribute;
use crate::abi::{CUdevice, CUuuid};
use crate::driver::{self, Driver};
use crate::{Error, Result};

/// UUID of a GPU or MIG instance: the same in every process and container.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    /// Writes the digits alone: a [`Device`] knows whether it is a GPU or a MIG instance.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
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

impl FromStr for Uuid {
    type Err = Error;

    /// Reads the text that [`fmt::Display`] and [`Device::id`] write, and that `nvidia-smi -L`
    /// prints, with `GPU-`, `MIG-` or neither at the front.
    fn from_str(text: &str) -> Result<Uuid> {
        let invalid =
            || Error::Refused("invalid UUID: expected 32 hexadecimal digits, as nvidia-smi -L prints");
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
        let digits: Vec<u8> = digits.bytes().filter(|digit| *digit != b'-').collect();
        let (pairs, []) = digits.as_chunks::<2>() else { return Err(invalid()) };
        let byte = |pair: &[u8; 2]| {
            let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            Some(16 * digit(pair[0])? + digit(pair[1])?)
        };
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Uuid).ok_or_else(invalid)
    }
}

/// A GPU visible to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    raw: CUdevice,
    ordinal: usize,
    uuid: Uuid,
    is_mig_instance: bool,
    name: String,
    is_mps_client: bool,
}

impl Device {
    /// Returns all GPUs visible to this process, sorted by ordinal. The driver is queried once,
    /// since `cuInit` fixes the set of visible GPUs.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; otherwise any error that the driver returns. After an error, a later
    /// call queries again.
    ///
    /// # References
    /// CUDA driver API, cuDeviceGetCount.
    pub fn all() -> Result<&'static [Device]> {
        static ALL: PerProcess<OnceCell<Vec<Device>>> = PerProcess::new(OnceCell::new);
        let known = ALL.get();
        if let Some(all) = known.get() {
            return Ok(all);
        }
        // The cell is not locked for the time of the queries, in which another thread may fork.
        let driver = driver::get()?;
        let mut count = 0;
        // SAFETY: `count` is an out-parameter for one int.
        unsafe { driver.cuDeviceGetCount(&mut count) }?;
        let devices = (0..usize::try_from(count).unwrap_or(0)).map(|ordinal| Device::load(driver, ordinal));
        let devices = devices.collect::<Result<Vec<_>>>()?;
        Ok(known.get_or_init(|| devices))
    }

    /// Returns the GPU with this ordinal (its number in CUDA calls). Ordinals differ between
    /// processes.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; CUDA_ERROR_INVALID_DEVICE for an ordinal that does not exist.
    ///
    /// # References
    /// CUDA driver API, cuDeviceGet.
    pub fn get(ordinal: usize) -> Result<Device> {
        Device::load(driver::get()?, ordinal)
    }

    /// Returns the GPU with this UUID, if it is visible to this process.
    ///
    /// # Errors
    /// As [`Device::all`].
    pub fn with_uuid(uuid: Uuid) -> Result<Option<Device>> {
        Ok(Device::all()?.iter().find(|device| device.uuid == uuid).cloned())
    }

    /// Returns the GPU of this text, as people write it: its ordinal, or its UUID, which is the
    /// same in every process.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with the visible GPUs; otherwise as [`Device::all`].
    pub fn find(text: &str) -> Result<Device> {
        let all = Device::all()?;
        let found = match (text.parse::<usize>(), text.parse::<Uuid>()) {
            (Ok(ordinal), Err(_)) => all.get(ordinal),
            (_, Ok(uuid)) => all.iter().find(|device| device.uuid == uuid),
            (Err(_), Err(_)) => None,
        };
        found.cloned().ok_or_else(|| {
            let describe = |device: &Device| format!("{} is {device}", device.ordinal);
            let visible = all.iter().map(describe).collect::<Vec<_>>().join(", ");
            Error::NoDevice { wanted: text.to_owned(), visible }
        })
    }

    /// Returns the GPU with the driver handle `raw`.
    pub(crate) fn with_raw(raw: CUdevice) -> Result<Device> {
        Device::all()?
            .iter()
            .find(|device| device.raw == raw)
            .cloned()
            .ok_or(Error::Refused("the context belongs to a device that is not visible to this process"))
    }

    fn load(driver: &Driver, ordinal: usize) -> Result<Device> {
        let mut raw = 0;
        // SAFETY: `raw` is an out-parameter for one CUdevice; an invalid ordinal yields an error
        // code.
        unsafe { driver.cuDeviceGet(&mut raw, c_int::try_from(ordinal).unwrap_or(c_int::MAX)) }?;

        // On a partitioned GPU, the first version of the call returns the UUID of the whole GPU for
        // its MIG instances (CUDA driver API, cuDeviceGetUuid).
        let mut of_gpu = CUuuid { bytes: [0; 16] };
        // SAFETY: `of_gpu` is an out-parameter for one CUuuid.
        let whole = unsafe { driver.cuDeviceGetUuid(&mut of_gpu, raw) };
        let mut uuid = of_gpu;
        if driver.has("cuDeviceGetUuid_v2") {
            // SAFETY: as above.
            unsafe { driver.cuDeviceGetUuid_v2(&mut uuid, raw) }?;
        } else {
            whole.clone()?;
        }
        let is_mig_instance = whole.is_ok() && uuid.bytes != of_gpu.bytes;

        let mut name = [0; 256];
        // SAFETY: `name` has room for 256 bytes, including the final NUL.
        unsafe { driver.cuDeviceGetName(name.as_mut_ptr(), 256, raw) }?;
        let name = name.map(|c| c.to_ne_bytes()[0]);
        let name = CStr::from_bytes_until_nul(&name).map_or_else(|_| "".into(), CStr::to_string_lossy);

        let mut device = Device {
            raw,
            ordinal,
            uuid: Uuid(uuid.bytes.map(|c| c.to_ne_bytes()[0])),
            is_mig_instance,
            name: name.into_owned(),
            is_mps_client: false,
        };
        device.is_mps_client = device.offers(Attribute::MPS_ENABLED, !0);
        Ok(device)
    }

    pub(crate) fn raw(&self) -> CUdevice {
        self.raw
    }

    /// Returns the GPU's ordinal in this process.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Returns the UUID of the GPU, or of the MIG instance on a partitioned GPU.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the UUID as `nvidia-smi -L` prints it and CUDA_VISIBLE_DEVICES takes it: with
    /// `GPU-`, or `MIG-` for a MIG instance.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{}", if self.is_mig_instance { "MIG" } else { "GPU" }, self.uuid)
    }

    /// Returns the GPU's product name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the driver is older than the attribute.
    ///
    /// # References
    /// CUDA driver API, cuDeviceGetAttribute.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is an out-parameter for one int; an unknown attribute yields an error
        // code.
        unsafe { driver::get()?.cuDeviceGetAttribute(&mut value, attribute.number(), self.raw) }?;
        Ok(value)
    }

    /// Returns whether any bit of `mask` is set in an attribute. Attributes unknown to the driver
    /// count as unset.
    pub(crate) fn offers(&self, attribute: Attribute, mask: i32) -> bool {
        self.attribute(attribute).is_ok_and(|value| value & mask != 0)
    }

    /// Returns whether this process uses the GPU as a client of NVIDIA's multi-process service
    /// (MPS), in which a fatal error of one client ends the contexts of all. False if the driver is
    /// older than the attribute.
    ///
    /// # References
    /// CUDA driver API, cuDeviceGetAttribute; Multi-Process Service, "Error Containment".
    #[must_use]
    pub fn is_mps_client(&self) -> bool {
        self.is_mps_client
    }

    /// Returns whether this GPU can read and write the memory of `peer`.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuDeviceCanAccessPeer.
    pub fn can_access(&self, peer: &Device) -> Result<bool> {
        if self.raw == peer.raw {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: `can` is an out-parameter for one int; both devices came from the driver.
        unsafe { driver::get()?.cuDeviceCanAccessPeer(&mut can, self.raw, peer.raw) }?;
        Ok(can != 0)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_format_matches_nvidia_smi() {
        let bytes = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let device = |is_mig_instance| Device {
            raw: 0,
            ordinal: 0,
            uuid: Uuid(bytes),
            is_mig_instance,
            name: "NVIDIA H200".into(),
            is_mps_client: false,
        };
        assert_eq!(device(false).to_string(), "NVIDIA H200 (GPU-00010203-0405-0607-0809-0a0b0c0d0e0f)");
        assert_eq!(device(true).id(), "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(device(true).id().parse(), Ok(Uuid(bytes)));
    }

    #[test]
    fn uuid_is_read_as_written_and_nothing_else() {
        let uuid = Uuid(std::array::from_fn(|index| 0xf0 | u8::try_from(index).unwrap()));
        let bare = uuid.to_string();
        let text = format!("GPU-{bare}");
        for text in [text.clone(), bare.clone(), format!("MIG-{bare}"), bare.to_uppercase()] {
            assert_eq!(text.parse(), Ok(uuid), "{text}");
        }
        for bad in ["", "0", "GPU-", &text[1..], &text[..text.len() - 1], &format!("{text}0"), "GPU-\u{e4}"] {
            assert!(matches!(bad.parse::<Uuid>(), Err(Error::Refused(_))), "{bad}");
        }
    }
}
