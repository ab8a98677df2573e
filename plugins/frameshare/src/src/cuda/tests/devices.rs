// SPDX-License-Identifier: MIT OR Apache-2.0

//! Choice of the GPU, and readers that cannot import from the exporter's.

use super::*;

#[test]
fn cuda_device_id_selects_the_gpu() {
    if !is_there("device") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    let error = Reader::cuda(&exporter).set("cuda-device-id", "99").play().error();
    assert!(error.message().contains("GPU 99") && error.message().contains("cuda-device-id"), "{error}");
    if Device::all().unwrap().len() < 2 {
        return skip("second-device", "there is one GPU");
    }
    // In place, over peer access.
    let reader = Reader::cuda(&exporter).set("cuda-device-id", "1").buffers();
    let reader = reader.play();
    exporter.execute("readers 1");
    exporter.execute("publish 3 1000");
    for _ in 0..3 {
        let buffer = reader.next();
        assert_eq!(memory(&buffer).context().device(), 1);
        check_on_cpu(&buffer);
    }
}

/// Two pipelines of one process, each with its own context, read surfaces: CUDA opens them in one
/// context only.
#[test]
fn second_context_of_process_gets_copied_surfaces() {
    if !is_there("second-context") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    exporter.execute("surfaces 6");
    let first = Reader::cuda(&exporter).buffers().play();
    exporter.execute("readers 1");
    exporter.execute("publish 3 0");
    let held = first.next();
    check_on_cpu(&held);
    let second = Reader::cuda(&exporter).buffers().play();
    exporter.execute("readers 2");
    for _ in 0..2 {
        drop(first.next());
    }
    for count in [3, 3] {
        exporter.execute(&format!("publish {count} 0"));
        for reader in [&first, &second] {
            (0..count).for_each(|_| check_on_cpu(&reader.next()));
        }
    }
    assert_ne!(first.source.imp().context(), second.source.imp().context());
    exporter.execute("eos");
    [&first, &second].into_iter().for_each(Reader::finish);
    assert_eq!([first.stat("lost"), second.stat("lost")], [0, 0]);
    check_on_cpu(&held);
}

/// A context unknown to the exporter has opened the same process's memory: the reader reports the
/// failed import.
#[test]
fn failed_surface_import_switches_to_copies() {
    if !inner("failed_surface_import_switches_to_copies", "cuIpcOpenMemHandle:1+:400") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    exporter.execute("surfaces 6");
    let reader = Reader::cuda(&exporter).buffers().play();
    exporter.execute("readers 1");
    // Frames are lost, and counted, until the exporter receives the report.
    let mut published = 0;
    let buffer = loop {
        exporter.execute("publish 1 0");
        published += 1;
        if let Some(buffer) = reader.next_within(Duration::from_millis(200)) {
            break buffer;
        }
        assert!(published < 50, "no frame arrived");
    };
    check_on_cpu(&buffer);
    exporter.execute("publish 10 0");
    exporter.execute("eos");
    reader.finish();
    let mut received = 1;
    while let Some(buffer) = reader.next_within(Duration::ZERO) {
        check_on_cpu(&buffer);
        received += 1;
    }
    let lost = reader.stat("lost");
    assert_eq!(lost, published + 10 - received);
    assert!(lost > 0 && received > 10, "{lost} frames were lost, {received} received");
}

/// Runs a test again in a child process that sees the first GPU only and in which driver calls
/// fail; returns true in the child.
fn inner(test: &str, fail: &str) -> bool {
    const INNER: &str = "FRAMESHARE_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        gst::init().unwrap();
        gst_cuda::load().unwrap();
        return true;
    }
    if !is_there(test) {
        return false;
    }
    if frameshare_cuda::device::Device::all().unwrap().len() < 2
        || std::env::var_os("SIMCUDA_DEVICES").is_none()
    {
        skip(test, "it needs the simulated driver with two devices");
        return false;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("src::cuda::tests::devices::{test}"), "--nocapture"]);
    command.env(INNER, "1").env("CUDA_VISIBLE_DEVICES", "0").env("SIMCUDA_FAIL", fail);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    false
}

#[test]
fn reader_of_both_on_another_gpu_gets_host_frames() {
    if !inner("reader_of_both_on_another_gpu_gets_host_frames", "") {
        return;
    }
    let mut exporter = Exporter::seeing("1", "vmm", "auto");
    let (reader, seen) = read_either(&exporter);
    let reader = reader.play();
    exporter.execute("readers 1");
    exporter.execute("publish 20 0");
    exporter.execute("eos");
    reader.finish();
    assert_eq!((seen.lock().unwrap().as_slice(), reader.stat("lost")), (&[(false, false); 20][..], 0));
    // If downstream accepts CUDA memory only, it remains an error.
    let error = Reader::cuda(&exporter).play().error();
    assert!(error.message().contains("cannot see") && error.message().contains("cuda-device-id"), "{error}");
}

/// The ordinals of the GPUs differ between the two processes.
#[test]
fn reader_without_device_id_uses_exporter_gpu() {
    const TEST: &str = "reader_without_device_id_uses_exporter_gpu";
    if !is_there(TEST) {
        return;
    }
    if Device::all().unwrap().len() < 2 {
        return skip(TEST, "there is one GPU");
    }
    for caps in ["video/x-raw(memory:CUDAMemory)", "video/x-raw(memory:CUDAMemory); video/x-raw"] {
        let mut exporter = Exporter::seeing("1", "vmm", "auto");
        let reader = Reader::new(&exporter, caps).play();
        exporter.execute("readers 1");
        exporter.execute("publish 20 0");
        exporter.execute("eos");
        reader.finish();
        assert_eq!(reader.stat("lost"), 0, "{caps}");
        let context = reader.source.imp().context().expect("the source has a context");
        assert_eq!(context.device(), 1, "{caps}");
    }
}

#[test]
fn reader_of_both_whose_imports_fail_gets_host_frames() {
    if !inner("reader_of_both_whose_imports_fail_gets_host_frames", "cuMemImportFromShareableHandle:1+:999") {
        return;
    }
    let mut exporter = Exporter::seeing("0", "vmm", "auto");
    let (reader, seen) = read_either(&exporter);
    let reader = reader.play();
    exporter.execute("readers 1");
    exporter.execute("publish 1 0");
    let mut published = 1;
    let until = Instant::now() + PATIENCE;
    while seen.lock().unwrap().is_empty() {
        assert!(Instant::now() < until, "no frame arrived");
        exporter.execute("publish 1 0");
        published += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    exporter.execute("publish 10 0");
    exporter.execute("eos");
    reader.finish();
    // The first frame is lost unless the exporter reads the report of the failed import before it.
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 10 && seen.iter().all(|seen| *seen == (false, false)), "{seen:?}");
    assert_eq!(reader.stat("lost") + seen.len() as u64, published + 10);
    // If downstream accepts CUDA memory only, it remains an error.
    let error = {
        let mut exporter = Exporter::seeing("0", "vmm", "auto");
        let reader = Reader::cuda(&exporter).play();
        exporter.execute("readers 1");
        exporter.begin("publish 1 0");
        reader.error()
    };
    assert!(error.message().contains("cannot import"), "{error}");
}

/// A reader in the exporter's process, in another context.
#[test]
fn local_reader_in_other_context_gets_copied_surfaces() {
    if !is_there("local-reader") {
        return;
    }
    let context = Context::create(&Device::get(0).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let endpoint = frameshare::Endpoint::at(&path).unwrap();
    let config = frameshare::exporter::Config::default().gpu(Some(context.clone()));
    let exporter = frameshare::exporter::Exporter::bind(&endpoint, config, drop).unwrap();
    assert_eq!(exporter.can_adopt(), Ok(()));
    let caps = "video/x-raw(memory:CUDAMemory),format=(string)GRAY8,width=(int)512,height=(int)16";
    exporter.set_format(frameshare::Format { caps: caps.into(), video: None });
    let reader = Reader::at(&path, "video/x-raw(memory:CUDAMemory)").play();
    exporter.wait_for_reader(frameshare::Wait::Forever).unwrap();
    let why = exporter.can_adopt().unwrap_err();
    assert!(why.why.contains("another CUDA context"), "{why}");
    drop(reader);
}
