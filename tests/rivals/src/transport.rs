// SPDX-License-Identifier: MIT OR Apache-2.0

//! Compared transports.

use anyhow::{Context as _, Result};

/// A pair of elements. `{}` stands for the path of the socket.
pub struct Transport {
    pub name: &'static str,
    pub sink: &'static str,
    pub source: &'static str,
    /// Frames are in GPU memory.
    pub on_gpu: bool,
    /// Property with which the source continues with the next exporter.
    pub reconnect: &'static str,
}

const TRANSPORTS: &[Transport] = &[
    Transport {
        name: "lossless",
        sink: "framesharesink socket-path={} sync=false reader-timeout=1000000000",
        source: "framesharesrc socket-path={} policy=lossless",
        on_gpu: false,
        reconnect: "on-disconnect=wait connection-timeout=-1",
    },
    Transport {
        name: "latest",
        sink: "framesharesink socket-path={} sync=false",
        source: "framesharesrc socket-path={}",
        on_gpu: false,
        reconnect: "on-disconnect=wait connection-timeout=-1",
    },
    Transport {
        name: "unixfd",
        sink: "unixfdsink socket-path={} sync=false",
        source: "unixfdsrc socket-path={}",
        on_gpu: false,
        reconnect: "",
    },
    Transport {
        name: "lossless-cuda",
        sink: "framesharesink socket-path={} sync=false reader-timeout=1000000000",
        source: "framesharesrc socket-path={} policy=lossless",
        on_gpu: true,
        reconnect: "on-disconnect=wait connection-timeout=-1",
    },
    Transport {
        name: "latest-cuda",
        sink: "framesharesink socket-path={} sync=false",
        source: "framesharesrc socket-path={}",
        on_gpu: true,
        reconnect: "on-disconnect=wait connection-timeout=-1",
    },
    Transport {
        name: "cudaipc-copy",
        sink: "cudaipcsink address={} sync=false",
        source: "cudaipcsrc address={} io-mode=copy",
        on_gpu: true,
        reconnect: "",
    },
    Transport {
        name: "cudaipc-import",
        sink: "cudaipcsink address={} sync=false",
        source: "cudaipcsrc address={} io-mode=import",
        on_gpu: true,
        reconnect: "",
    },
];

pub fn find(name: &str) -> Result<&'static Transport> {
    let names = || TRANSPORTS.iter().map(|one| one.name).collect::<Vec<_>>().join(", ");
    TRANSPORTS
        .iter()
        .find(|one| one.name == name)
        .with_context(|| format!("there is no transport {name}: they are {}", names()))
}

impl Transport {
    /// Elements after the source that copy frames to system memory.
    pub fn download(&self) -> &'static str {
        if self.on_gpu { " ! cudadownload" } else { "" }
    }
}
