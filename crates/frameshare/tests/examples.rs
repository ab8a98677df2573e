// SPDX-License-Identifier: MIT OR Apache-2.0

//! The examples, run as their users run them: one exporter, two readers.

use std::{
    env,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Starts an example. Cargo has built it together with this test, unless this test alone was asked
/// for.
fn start(example: &str, folder: &Path) -> Child {
    command(example, folder).spawn().unwrap_or_else(|error| panic!("{example}: {error}"))
}

fn command(example: &str, folder: &Path) -> Command {
    let mut path = env::current_exe().unwrap();
    path.pop();
    let program = path.with_file_name("examples").join(example);
    if !program.exists() {
        let cargo = Command::new(env!("CARGO")).args(["build", "--locked", "--examples"]).status();
        assert!(cargo.unwrap().success());
    }
    let mut command = Command::new(&program);
    command.arg("example").env("XDG_RUNTIME_DIR", folder).stdout(Stdio::piped());
    command
}

/// Runs the examples for a GPU on the simulated driver.
#[test]
fn gpu_examples_export_and_read_every_frame() {
    let (folder, driver) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/simcuda/install.sh");
    assert!(Command::new(script).arg(driver.path()).status().unwrap().success());
    let run = |example: &str, arguments: &[&str]| {
        let mut command = command(example, folder.path());
        command.args(arguments).env("LD_LIBRARY_PATH", driver.path()).env("SIMCUDA_DEVICES", "2");
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let output = |child: Child| {
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    // The error names the GPUs, by number and UUID.
    let (_, text) = output(run("gpu-read", &["9"]));
    let uuid = text.split_once("1 is ").and_then(|(_, rest)| rest.split(['(', ')']).nth(1));
    let uuid = uuid.unwrap_or_else(|| panic!("no GPU is named: {text}"));
    let exporter = run("gpu-export", &[uuid]);
    let (read, text) = output(run("gpu-read", &[uuid]));
    assert!(read && text.contains("90 frames, 0 lost"), "{text}");
    assert!(text.contains("frame 90: 640x360, first byte 89"), "{text}");
    let (exported, text) = output(exporter);
    assert!(exported, "{text}");
}

/// The name of the test that runs itself on the simulated driver.
const ON_SIMULATED_DRIVER: &str = "FRAMESHARE_SIMULATED";

/// Frames that no stream is named for are ready behind all work of the context; those in host
/// memory have no device pointer, and the reverse.
#[test]
#[expect(unsafe_code, reason = "the GPU writes a frame that is held, and a buffer that is waited for")]
fn gpu_frames_are_published_behind_any_stream() {
    use frameshare::{
        Wait, cuda,
        exporter::{Config, VideoExporter},
        reader,
        video::VideoFormat,
    };
    if env::var_os(ON_SIMULATED_DRIVER).is_none() {
        let driver = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/simcuda/install.sh");
        assert!(Command::new(script).arg(driver.path()).status().unwrap().success());
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "gpu_frames_are_published_behind_any_stream"]);
        test.env("LD_LIBRARY_PATH", driver.path()).env(ON_SIMULATED_DRIVER, "1");
        assert!(test.status().unwrap().success());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu.sock");
    let path = path.to_str().unwrap();
    let context = cuda::Context::primary(&cuda::Device::find("0").unwrap()).unwrap();
    let format = VideoFormat::new("NV12".parse().unwrap(), 320, 240);
    let config = Config::default().gpu(Some(context.clone()));
    let video = VideoExporter::open(path, config, format.clone()).unwrap();
    let writes = cuda::Stream::new(&context).unwrap();
    let reads = std::sync::Arc::new(cuda::Stream::new(&context).unwrap());
    let config = reader::Config::default().gpu(Some(context.clone())).policy(frameshare::Policy::Lossless);
    let mut frames = reader::Frames::open(path, config).unwrap();
    for number in 1..=20 {
        let mut frame = video.acquire(Wait::Forever).unwrap();
        assert!(frame.bytes_mut().is_empty() && frame.device_pointer(2).is_none());
        let (start, size) = (frame.device_pointer(0).unwrap(), frame.size());
        assert_eq!(frame.device_pointer(1), Some(start + 320 * 240));
        // SAFETY: the frame has this size, and is held until it is published.
        unsafe { writes.fill(start, number, size as usize) }.unwrap();
        match number % 2 {
            0 => video.publish(&frame, Wait::Forever).unwrap(),
            _ => video.publish_on(&frame, &writes, Wait::Forever).unwrap(),
        };
        let frame = frames.next().unwrap().unwrap();
        let start = frame.plane(0).unwrap().device_pointer_on(&reads).unwrap().unwrap();
        let mut bytes = vec![0; size as usize];
        // SAFETY: the frame is held, and the buffer is read after the copy.
        unsafe { reads.download(bytes.as_mut_ptr(), start, bytes.len()) }.unwrap();
        reads.synchronize().unwrap();
        assert!(bytes.iter().all(|byte| *byte == number), "frame {number}");
    }
    let host = VideoExporter::new(folder.path().join("host.sock").to_str().unwrap(), format).unwrap();
    assert_eq!(host.acquire(Wait::Forever).unwrap().device_pointer(0), None);
}

#[test]
fn examples_export_and_read_every_frame() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = start("engine-export", folder.path());
    let readers = [start("engine-read", folder.path()), start("engine-read", folder.path())];
    let outputs = readers.map(|reader| reader.wait_with_output().unwrap());
    assert!(exporter.wait_with_output().unwrap().status.success());
    for output in &outputs {
        assert!(output.status.success());
    }
    // The second reader can join after the first frame, never lose one after that.
    let text = |index: usize| String::from_utf8_lossy(&outputs[index].stdout).into_owned();
    assert!(text(0).contains("90 frames, 0 lost") || text(1).contains("90 frames, 0 lost"));
    for text in [text(0), text(1)] {
        assert!(text.contains("format: video/x-raw") && text.contains(" frames, 0 lost"), "{text}");
        assert!(text.contains("frame 90: mean brightness"), "{text}");
    }
}
