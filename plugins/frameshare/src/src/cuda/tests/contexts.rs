// SPDX-License-Identifier: MIT OR Apache-2.0

//! Contexts and streams: whose the source uses, shares and keeps.

use super::*;

/// Returns a source that has read a frame, its context, and a stream of that context with work
/// still running.
fn read_with_work_left(
    work: impl FnOnce() + Send + 'static,
) -> (Exporter, Reader, gst_cuda::Context, Stream) {
    let mut exporter = Exporter::start("vmm", "timeline");
    let reader = Reader::cuda(&exporter).buffers().play();
    exporter.execute("readers 1");
    exporter.execute("publish 1 0");
    drop(reader.next());
    let context = reader.source.imp().context().unwrap();
    let engine = crate::ffi::cuda::engine_context(&context).unwrap();
    let stream = crate::ffi::cuda::engine_stream(&engine, &gst_cuda::Stream::new(&context).unwrap());
    stream.call(work).unwrap();
    (exporter, reader, context, stream)
}

/// An application that stops a source may then destroy the context that it read in.
#[test]
fn stopped_source_keeps_no_context() {
    if !is_there("stopped") {
        return;
    }
    for _ in 0..10 {
        let (_exporter, reader, context, stream) =
            read_with_work_left(|| std::thread::sleep(Duration::from_millis(30)));
        let kept = context.downgrade();
        let begin = Instant::now();
        drop(reader);
        let took = begin.elapsed();
        // Dropping a stream waits for its work.
        drop((stream, context));
        // The stop waits at most that long for the work, and a busy machine may exceed it.
        if took < crate::cuda::SETTLED {
            assert!(kept.upgrade().is_none(), "the context is still referenced");
            return;
        }
    }
    panic!("no stop took less than {:?}", crate::cuda::SETTLED);
}

/// An element without a context does not wait for the pending teardown of others.
#[test]
fn element_without_context_stops_at_once() {
    if !is_there("stops-at-once") {
        return;
    }
    let (done, busy) = std::sync::mpsc::channel::<()>();
    let (exporter, reader, _context, _stream) = read_with_work_left(move || _ = busy.recv_timeout(PATIENCE));
    drop(reader);
    assert!(!frameshare::wait_for_deferred_drops(Duration::ZERO), "no teardown is pending");
    let stop = |element: &gst::Element, attempt: i32| {
        // Another name each time: a process that another test starts has a copy of the lock on it
        // until its `exec`.
        element.set_property("socket-path", exporter.path().with_extension(format!("other{attempt}")));
        element.set_state(gst::State::Paused).unwrap();
        let begin = Instant::now();
        element.set_state(gst::State::Null).unwrap();
        begin.elapsed()
    };
    let sink: gst::Element = glib::Object::new::<crate::sink::FrameshareSink>().upcast();
    sink.set_property_from_str("memory", "host");
    let source: gst::Element = glib::Object::new::<FrameshareSrc>().upcast();
    for element in [sink, source] {
        let quickest = (0..5).map(|attempt| stop(&element, attempt)).min().unwrap();
        assert!(quickest < crate::cuda::SETTLED, "{} took {quickest:?}", element.name());
    }
    drop(done);
}

#[test]
fn proposed_stream_is_adopted() {
    if !is_there("stream") {
        return;
    }
    let mut exporter = Exporter::start("vmm", "timeline");
    let reader = Reader::cuda(&exporter).buffers();
    let proposed = Arc::new(Mutex::new(None::<gst_cuda::Stream>));
    let note = proposed.clone();
    let source = reader.source.clone();
    reader.sink.static_pad("sink").unwrap().add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, move |_, info| {
        let Some(gst::QueryViewMut::Allocation(query)) = info.query_mut().map(|query| query.view_mut())
        else {
            return gst::PadProbeReturn::Ok;
        };
        let context = source.imp().context().unwrap();
        let stream = gst_cuda::Stream::new(&context).unwrap();
        let pool = gst_cuda::BufferPool::new(&context);
        let mut config = pool.config();
        config.set_params(query.get().0.map(|caps| caps.to_owned()).as_ref(), 1, 0, 0);
        gst_cuda::pool::set_stream(&mut config, &stream);
        pool.set_config(config).unwrap();
        query.add_allocation_pool(Some(&pool), 1, 0, 0);
        *note.lock().unwrap() = Some(stream);
        gst::PadProbeReturn::Handled
    });
    let reader = reader.play();
    exporter.execute("readers 1");
    exporter.execute("publish 1 0");
    let buffer = reader.next();
    assert_eq!(memory(&buffer).stream(), proposed.lock().unwrap().clone());
    check_on_cpu(&buffer);
}

/// Two pipelines with different contexts cannot both read legacy memory of the same exporter.
/// Memory of another exporter is not affected.
#[test]
fn legacy_memory_opens_in_one_context_per_process() {
    if !is_there("legacy") {
        return;
    }
    let mut exporters = [Exporter::start("legacy", "auto"), Exporter::start("legacy", "auto")];
    let first = Reader::cuda(&exporters[0]).buffers();
    let first = first.play();
    exporters[0].execute("readers 1");
    exporters[0].execute("publish 1 0");
    let held = first.next();
    check_on_cpu(&held);

    let other = Reader::cuda(&exporters[1]).buffers().play();
    exporters[1].execute("readers 1");
    exporters[1].execute("publish 1 0");
    let buffer = other.next();
    check_on_cpu(&buffer);
    assert_ne!(memory(&buffer).context(), memory(&held).context());

    let second = Reader::cuda(&exporters[0]).play();
    exporters[0].execute("readers 2");
    exporters[0].begin("publish 1 0");
    let error = second.error();
    assert!(error.message().contains("another CUDA context of this process"), "{error}");
    assert!(error.message().contains("share that context"), "{error}");
    exporters[0].answer();
    drop(second);
    // Otherwise it could be counted as the next reader.
    exporters[0].execute("readers 1");

    // Reading in the context of the first reader works.
    let third = Reader::cuda(&exporters[0]).buffers();
    third.source.set_context(&context_of(&first));
    let third = third.play();
    exporters[0].execute("readers 2");
    exporters[0].execute("publish 1 0");
    let buffer = third.next();
    check_on_cpu(&buffer);
    assert_eq!(memory(&buffer).context(), memory(&held).context());
}

/// Returns the context that a source offers to its neighbors.
fn context_of(reader: &Reader) -> gst::Context {
    let mut query = gst::query::Context::new("gst.cuda.context");
    assert!(reader.source.query(&mut query), "the source does not answer the context query");
    query.context_owned().expect("the answer has a context")
}

#[test]
fn neighbor_elements_share_the_context() {
    if !is_there("context") || gst::ElementFactory::find("cudadownload").is_none() {
        return;
    }
    let mut exporter = Exporter::start("vmm", "auto");
    let reader = Reader::cuda(&exporter);
    let download = gst::ElementFactory::make("cudadownload").build().unwrap();
    reader.pipeline.add(&download).unwrap();
    let filter = reader.sink.static_pad("sink").unwrap().peer().unwrap().parent_element().unwrap();
    filter.unlink(&reader.sink);
    gst::Element::link_many([&filter, &download, &reader.sink]).unwrap();
    let reader = reader.buffers();
    let reader = reader.play();
    exporter.execute("readers 1");
    exporter.execute("publish 3 1000");
    for _ in 0..3 {
        check_on_cpu(&reader.next());
    }
    let mut query = gst::query::Context::new("gst.cuda.context");
    assert!(download.query(&mut query));
    let structure = |context: gst::Context| context.structure().to_owned();
    assert_eq!(structure(query.context_owned().unwrap()), structure(context_of(&reader)));
}

/// Returns whether a sink behind these elements has a context before and after its first caps.
fn contexts_of(upstream: &str, properties: &str) -> (bool, bool) {
    crate::plugin_register_static().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let sink = format!(
        "framesharesink name=sink wait-for-connection=false socket-path={} {properties}",
        path.display()
    );
    let pipeline = gst::parse::launch(&format!("{upstream} ! {sink}")).unwrap();
    let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
    let sink = pipeline.by_name("sink").unwrap().downcast::<crate::sink::FrameshareSink>().unwrap();
    let has = || sink.imp().has_context();
    sink.set_state(gst::State::Paused).unwrap();
    let before = has();
    pipeline.set_state(gst::State::Playing).unwrap();
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let message = pipeline.bus().unwrap().timed_pop_filtered(gst::ClockTime::from_seconds(30), &kinds);
    assert_eq!(message.map(|message| message.type_()), Some(gst::MessageType::Eos), "{upstream}");
    let after = has();
    pipeline.set_state(gst::State::Null).unwrap();
    (before, after)
}

#[test]
fn sink_creates_context_for_cuda_frames_only() {
    if !is_there("sink-context") || gst::ElementFactory::find("cudaupload").is_none() {
        return;
    }
    let test = "videotestsrc num-buffers=3 ! video/x-raw,format=NV12,width=64,height=64";
    assert_eq!(contexts_of(test, ""), (false, false));
    assert_eq!(contexts_of(test, "memory=vmm"), (true, true));
    // A bin that adds pads later, such as decodebin, may also send anything.
    let any = "fakesrc num-buffers=3 format=time";
    assert_eq!(contexts_of(any, "any-caps=true"), (false, false));
    assert_eq!(contexts_of(any, "any-caps=true cuda-device-id=0"), (true, true));
}
