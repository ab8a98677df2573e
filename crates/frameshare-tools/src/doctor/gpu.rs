// SPDX-License-Identifier: MIT OR Apache-2.0

//! The CUDA driver, the kinds of memory and fence of each GPU, and MPS.

use super::Check;
use frameshare::{
    FenceKind, MemoryKind,
    cuda::{Device, Error},
    fence,
    machine::cuda_version,
    memory,
};
use std::{env, fs, path::Path};

const SUBJECT: &str = "gpu";

pub fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    match cuda_version() {
        Ok(version) => {
            let text = format!("CUDA driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
            checks.push(Check::ok(SUBJECT, text));
            checks.extend(devices());
            checks.push(mps());
        }
        Err(error @ Error::NoDriver { .. }) => {
            checks.push(Check::ok(SUBJECT, format!("none: {error}; frames are shared in host memory")));
        }
        Err(error) => checks.push(unusable(&error)),
    }
    checks
}

fn unusable(error: &Error) -> Check {
    Check::error(
        SUBJECT,
        format!("the driver cannot be used: {error}"),
        "run nvidia-smi; in a container, start it with --gpus all; after an update of the driver, restart",
    )
}

fn devices() -> Vec<Check> {
    match Device::all() {
        Ok([]) => vec![Check::warning(
            SUBJECT,
            "the driver has no GPU for this process",
            "correct CUDA_VISIBLE_DEVICES, or start the container with --gpus all",
        )],
        Ok(devices) => devices.iter().map(device).collect(),
        Err(error) => vec![unusable(&error)],
    }
}

fn device(device: &Device) -> Check {
    let mut lacks = Vec::new();
    let mut kinds = |available: &mut Vec<String>, kind: String, lack: Option<String>| match lack {
        None => available.push(kind),
        Some(lack) => lacks.push(lack),
    };
    let (mut memory, mut fences) = (Vec::new(), Vec::new());
    for kind in [MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Legacy] {
        let lack = memory::select::supports(kind, Some(device)).err();
        kinds(&mut memory, kind.to_string(), lack.map(|lack| lack.to_string()));
    }
    for kind in [FenceKind::Timeline, FenceKind::Event] {
        let lack = fence::select::supports(kind, Some(device)).err();
        kinds(&mut fences, kind.to_string(), lack.map(|lack| lack.to_string()));
    }
    let list = |kinds: &[String]| if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
    let mut text =
        format!("{} {device}: memory {}; fences {}", device.ordinal(), list(&memory), list(&fences));
    for lack in &lacks {
        text += &format!("; {lack}");
    }
    match memory.is_empty() || fences.is_empty() {
        true => Check::warning(SUBJECT, text, remedy(&kernel_release())),
        false => Check::ok(SUBJECT, text),
    }
}

/// The daemon of the folder that this process would use.
fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Returns what follows if a GPU cannot share memory or fences.
fn remedy(release: &str) -> &'static str {
    match release.to_ascii_lowercase().contains("microsoft") {
        true => {
            "this is WSL2, whose driver has no CUDA IPC: exporters copy frames to host memory; use Linux on the \
             machine itself"
        }
        false => {
            "its frames cannot be shared on the GPU (so it is on Tegra): exporters copy them to host memory"
        }
    }
}

fn mps() -> Check {
    let set = env::var_os("CUDA_MPS_PIPE_DIRECTORY").filter(|path| !path.is_empty());
    let folder = set.clone().unwrap_or_else(|| "/tmp/nvidia-mps".into());
    let folder = Path::new(&folder);
    let pid = fs::read_to_string(folder.join("nvidia-cuda-mps-control.pid"));
    let pid = pid.ok().and_then(|pid| pid.trim().parse::<u32>().ok());
    let path = folder.display();
    match pid.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
        Some(pid) => Check::ok(
            "mps",
            format!(
                "daemon {pid} at {path}: processes with this folder run under MPS; keep exporters outside"
            ),
        ),
        None if set.is_some() => Check::warning(
            "mps",
            format!("CUDA_MPS_PIPE_DIRECTORY={path}, and no daemon that is visible here runs there"),
            "start nvidia-cuda-mps-control -d, or unset the variable",
        ),
        None => Check::ok("mps", "not used: kernels of several processes take turns on a GPU"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wsl_is_named() {
        assert!(remedy("5.15.153.1-microsoft-standard-WSL2").contains("this is WSL2"));
        assert!(!remedy("6.12.0-rt").contains("WSL2"));
    }
}
