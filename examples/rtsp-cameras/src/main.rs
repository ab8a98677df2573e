// SPDX-License-Identifier: MIT OR Apache-2.0

//! RTSP cameras: each plays a clip, or numbered frames, in a loop. Everything is encoded before the
//! server starts, so that serving costs next to nothing.
//!
//! It prints `ready rtsp://ADDRESS` when clients can connect, and `play /PATH` for each session.

mod camera;
mod clip;
#[path = "../../camera-ingest/src/roles/capture/number.rs"]
mod number;

use anyhow::{Context, Result, bail};
use clap::Parser;
use gst_rtsp_server::{RTSPAuth, RTSPServer, RTSPToken, prelude::*};
use std::{fmt, path::PathBuf, str::FromStr};

/// Serve cameras over RTSP, without any hardware
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Video of the cameras; frames with their numbers if there is none
    #[arg(long, value_name = "FILE")]
    clip: Option<PathBuf>,
    /// Port on the loopback interface; 0 for a free one
    #[arg(long, default_value_t = 8554)]
    port: u16,
    /// Add sound
    #[arg(long)]
    audio: bool,
    /// Require this user and password
    #[arg(long, value_name = "USER:PASSWORD")]
    login: Option<String>,
    /// Number of frames of numbered videos
    #[arg(long, default_value_t = 100)]
    frames: u32,
    /// Cameras, such as cam0/main=1280x720@25 or cam1/main=640x360@25,h265,b-frames=3,pyramid
    #[arg(
        required = true,
        value_name = "PATH=WIDTHxHEIGHT@RATE[,h265][,b-frames=NUMBER][,pyramid][,every=SECONDS][,variable]"
    )]
    cameras: Vec<Camera>,
}

/// A camera's path and video.
#[derive(Clone, Debug, PartialEq)]
struct Camera {
    path: String,
    width: u32,
    height: u32,
    rate: u32,
    codec: Codec,
    /// Number of B-frames between two others.
    b_frames: u32,
    /// B-frames refer to B-frames.
    has_pyramid: bool,
    /// Seconds from one frame to the next, if they are sent more slowly than at their rate.
    every: Option<u32>,
    /// Some frames come late.
    is_variable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Codec {
    H264,
    H265,
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::H264 => "h264",
            Self::H265 => "h265",
        })
    }
}

impl FromStr for Camera {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = || {
            let (path, video) = text.split_once('=')?;
            let (video, options) = video.split_once(',').unwrap_or((video, ""));
            let (size, rate) = video.split_once('@')?;
            let (width, height) = size.split_once('x')?;
            let (width, height, rate) = (width.parse().ok()?, height.parse().ok()?, rate.parse().ok()?);
            let is_valid = width >= 32 && height >= 32 && rate > 0 && width % 2 + height % 2 == 0;
            let path = format!("/{}", path.trim_matches('/'));
            let mut camera = Self {
                path,
                width,
                height,
                rate,
                codec: Codec::H264,
                b_frames: 0,
                has_pyramid: false,
                every: None,
                is_variable: false,
            };
            for option in options.split_terminator(',') {
                match option.split_once('=') {
                    Some(("b-frames", number)) => camera.b_frames = number.parse().ok()?,
                    Some(("every", seconds)) => camera.every = Some(seconds.parse().ok()?),
                    None if option == "h265" => camera.codec = Codec::H265,
                    None if option == "pyramid" => camera.has_pyramid = true,
                    None if option == "variable" => camera.is_variable = true,
                    _ => return None,
                }
            }
            is_valid.then_some(camera)
        };
        parts().ok_or_else(|| {
            format!(
                "invalid camera '{text}': expected PATH=WIDTHxHEIGHT@RATE, with even sizes, and behind it \
                 ,h265 ,b-frames=NUMBER ,pyramid ,every=SECONDS ,variable"
            )
        })
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    gst::init().context("GStreamer does not start")?;
    let server = RTSPServer::new();
    server.set_address("127.0.0.1");
    server.set_service(&arguments.port.to_string());
    if let Some(login) = &arguments.login {
        protect(&server, login)?;
    }
    let mounts = server.mount_points().context("the server has no mount points")?;
    for camera in &arguments.cameras {
        let clip = clip::encode(arguments.clip.as_deref(), camera, arguments.frames)
            .with_context(|| format!("cannot encode {}", camera.path))?;
        let factory = camera::factory(clip, camera.codec, arguments.audio, arguments.login.is_some());
        mounts.add_factory(&camera.path, factory);
    }
    server.connect_client_connected(|_, client| {
        client.connect_play_request(|_, context| {
            // The URL is the request's.
            let path = context.uri().map(|uri| uri.request_uri()).unwrap_or_default();
            println!("play {path}");
        });
    });
    if server.attach(None).is_err() {
        bail!("cannot listen on 127.0.0.1:{}: choose another port with --port", arguments.port);
    }
    println!("ready rtsp://127.0.0.1:{}", server.bound_port());
    glib::MainLoop::new(None, false).run();
    Ok(())
}

/// Role of those who know the password.
const VIEWER: &str = "viewer";

fn protect(server: &RTSPServer, login: &str) -> Result<()> {
    let (user, password) = login.split_once(':').context("--login: expected USER:PASSWORD")?;
    let auth = RTSPAuth::new();
    let token = RTSPToken::builder().field("media.factory.role", VIEWER).build();
    auth.add_basic(RTSPAuth::make_basic(user, password).as_str(), &token);
    server.set_auth(Some(&auth));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cameras_are_parsed() {
        let camera = |codec, b_frames, has_pyramid| {
            let path = "/cam0/sub".into();
            let (every, is_variable) = (None, false);
            Ok(Camera {
                path,
                width: 640,
                height: 360,
                rate: 10,
                codec,
                b_frames,
                has_pyramid,
                every,
                is_variable,
            })
        };
        assert_eq!("cam0/sub=640x360@10".parse(), camera(Codec::H264, 0, false));
        assert_eq!("cam0/sub=640x360@10,h265,b-frames=3,pyramid".parse(), camera(Codec::H265, 3, true));
        let wrong = ["cam0", "cam0=640x360", "cam0=640@10", "cam0=640x361@10", "cam0=640x360@0"];
        for wrong in wrong.into_iter().chain(["cam0=640x360@10,b-frames", "cam0=640x360@10,h266"]) {
            assert!(wrong.parse::<Camera>().unwrap_err().contains(wrong));
        }
    }
}
