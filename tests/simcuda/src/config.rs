// SPDX-License-Identifier: MIT OR Apache-2.0

//! Settings from the environment, read once.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Reaction to a use of CUDA that is undefined with the real driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict {
    Off,
    Log,
    Abort,
}

/// One entry of `SIMCUDA_FAIL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub call: String,
    /// Number of the first use that fails, counted from 1.
    pub nth: u64,
    /// Whether later uses fail too.
    pub onwards: bool,
    pub code: i32,
}

/// One entry of `SIMCUDA_WITHHOLD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld {
    pub attribute: i32,
    /// Whether a query of the attribute fails, as with a driver that is older than the attribute.
    pub unknown: bool,
}

/// All settings.
#[derive(Debug)]
pub struct Config {
    pub seed: u64,
    pub delay_us: u64,
    pub post_mortem_us: u64,
    /// Physical indices of the devices that `CUDA_VISIBLE_DEVICES` selects, in its order.
    pub visible: Vec<u32>,
    pub memory: u64,
    pub version: i32,
    pub withheld: Vec<Withheld>,
    pub faults: Vec<Fault>,
    pub strict: Strict,
    pub errors: Option<PathBuf>,
    /// File of the trace for the detector of unordered accesses.
    pub order: Option<PathBuf>,
    pub trace: bool,
    pub no_peers: bool,
    /// Devices are MIG instances.
    pub mig: bool,
    /// Items run as early or as late as their order allows. Handles and addresses are used again at
    /// once.
    pub adversary: bool,
    /// Number of hardware channels per device.
    pub channels: usize,
}

/// Returns the settings of this process.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(read)
}

/// Returns whether an attribute, and the functions that depend on it, are withheld.
pub fn withheld(attribute: i32) -> bool {
    get().withheld.iter().any(|entry| entry.attribute == attribute)
}

fn read() -> Config {
    let adversary = text("SIMCUDA_ADVERSARY").is_some_and(|value| value != "0");
    let devices = number("SIMCUDA_DEVICES", 1).min(crate::device::MAX as u64) as u32;
    Config {
        seed: number("SIMCUDA_SEED", 1),
        delay_us: number("SIMCUDA_DELAY_US", if adversary { 7_000 } else { 100 }),
        post_mortem_us: number("SIMCUDA_AFTERLIFE_US", 25_000),
        visible: visible(devices, text("CUDA_VISIBLE_DEVICES")),
        memory: number("SIMCUDA_MEM", 16 << 30),
        version: number("SIMCUDA_VERSION", 13_000) as i32,
        withheld: text("SIMCUDA_WITHHOLD").map(|list| withhold_list(&list)).unwrap_or_default(),
        faults: text("SIMCUDA_FAIL").map(|list| fault_list(&list)).unwrap_or_default(),
        strict: match text("SIMCUDA_STRICT").as_deref() {
            Some("log") => Strict::Log,
            Some("off") => Strict::Off,
            _ => Strict::Abort,
        },
        errors: text("SIMCUDA_ERRORS").map(PathBuf::from),
        order: text("SIMCUDA_ORDER").map(PathBuf::from),
        trace: text("SIMCUDA_TRACE").is_some_and(|value| value != "0"),
        no_peers: text("SIMCUDA_NO_PEERS").is_some_and(|value| value != "0"),
        mig: text("SIMCUDA_MIG").is_some_and(|value| value != "0"),
        adversary,
        channels: number("CUDA_DEVICE_MAX_CONNECTIONS", 8).clamp(1, 32) as usize,
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty() || name == "CUDA_VISIBLE_DEVICES")
}

fn number(name: &str, otherwise: u64) -> u64 {
    let Some(value) = text(name) else { return otherwise };
    value.trim().parse().unwrap_or_else(|_| {
        eprintln!("simcuda: invalid {name}={value}: expected a number; using {otherwise}");
        otherwise
    })
}

/// Returns the selected devices: like CUDA, up to the first entry that names no device.
fn visible(devices: u32, list: Option<String>) -> Vec<u32> {
    let Some(list) = list else { return (0..devices).collect() };
    let mut visible = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let by_uuid = (0..devices).find(|&device| entry == crate::device::uuid_text(device));
        match by_uuid.or_else(|| entry.parse().ok().filter(|&device| device < devices)) {
            Some(device) if !visible.contains(&device) => visible.push(device),
            _ => break,
        }
    }
    visible
}

fn withhold_list(list: &str) -> Vec<Withheld> {
    let mut entries = Vec::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, unknown) = match entry.strip_suffix(":unknown") {
            Some(name) => (name, true),
            None => (entry, false),
        };
        match name.parse() {
            Ok(attribute) => entries.push(Withheld { attribute, unknown }),
            Err(_) => eprintln!(
                "simcuda: invalid SIMCUDA_WITHHOLD entry {entry}: expected NUMBER or NUMBER:unknown"
            ),
        }
    }
    entries
}

fn fault_list(list: &str) -> Vec<Fault> {
    let mut entries = Vec::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let mut parts = entry.split(':');
        let parsed = (|| {
            let call = parts.next()?.to_owned();
            let nth = parts.next()?;
            let (nth, onwards) = match nth.strip_suffix('+') {
                Some(nth) => (nth, true),
                None => (nth, false),
            };
            Some(Fault { call, nth: nth.parse().ok()?, onwards, code: parts.next()?.parse().ok()? })
        })();
        match parsed {
            Some(fault) => entries.push(fault),
            None => {
                eprintln!("simcuda: invalid SIMCUDA_FAIL entry {entry}: expected CALL:N[+]:CODE")
            }
        }
    }
    entries
}
