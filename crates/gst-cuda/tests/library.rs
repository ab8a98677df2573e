// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the loaded library on any driver: `make test` runs them on GStreamer 1.26 and the
//! simulated driver.

use gst::prelude::*;
use gst_cuda::{
    Address, BufferPool, Context, Reusable, Stream, context::ElementContext, layout, memory, pool,
};
use gst_video::{VideoFormat, VideoInfo};
use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// Returns whether the library and a driver are available. Prints a skip past the harness's output
/// capture, so that it is counted.
fn is_there(test: &str) -> bool {
    gst::init().unwrap();
    let missing = gst_cuda::load().err();
    if let Some(missing) = &missing {
        assert!(missing.to_string().contains("needs"), "{missing}");
        std::io::stdout().write_all(format!("SKIP gst-cuda/{test}: {missing}\n").as_bytes()).unwrap();
    }
    missing.is_none()
}

fn picture() -> VideoInfo {
    VideoInfo::builder(VideoFormat::Nv12, 320, 240).build().unwrap()
}

/// Allocates memory with the library, to be wrapped like external memory; returns it with its
/// address.
fn place(context: &Context, info: &VideoInfo) -> (gst::Memory, Address) {
    let mut memory = memory::allocate(context, None, info).unwrap();
    let address = memory::map_writable(memory.get_mut().unwrap()).unwrap().address();
    (memory, address)
}

/// Counts its drops.
#[derive(Clone)]
struct Held(Arc<AtomicU32>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn load_initializes_no_plugin() {
    if !is_there("plugin") {
        return;
    }
    let plugin = gst::Registry::get().find_plugin("nvcodec").unwrap();
    assert!(!plugin.is_loaded());
}

#[test]
fn wrapped_memory_is_loaned_repeatedly() {
    if !is_there("reusable") {
        return;
    }
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    assert_eq!(stream.context(), context);
    let info = layout::of(&picture(), context.texture_alignment()).unwrap();
    let (_place, address) = place(&context, &info);
    let rules = memory::Rules { read_only: true, fixed_pool: true };
    let reusable = Reusable::wrap(&context, Some(&stream), &info, address, rules).unwrap();

    let drops = Arc::new(AtomicU32::new(0));
    let lent = reusable.lend(Held(drops.clone()), false).unwrap();
    let first = lent.as_ptr();
    assert!(reusable.lend(Held(drops.clone()), false).is_none(), "memory on loan was loaned again");
    assert_eq!(drops.swap(0, Relaxed), 1);
    let look = memory::Memory::of(&lent).unwrap();
    assert_eq!((look.context(), look.stream()), (context.clone(), Some(stream.clone())));
    assert_eq!(look.map().unwrap().address(), address);
    assert_eq!(look.map().unwrap().size(), info.size());
    assert_eq!((look.info().offset(), look.info().stride()), (info.offset(), info.stride()));
    assert!(look.is_from_fixed_pool());
    assert!(lent.map_readable().is_ok());
    assert!(lent.flags().contains(gst::MemoryFlags::READONLY));
    drop(memory::held::<Held>(&lent).unwrap());
    assert_eq!(drops.swap(0, Relaxed), 1, "`held` did not return a copy");
    assert!(memory::held::<u32>(&lent).is_none());

    // A copy of the buffer shares the memory, which returns when the last copy is dropped.
    let mut buffer = gst::Buffer::new();
    buffer.get_mut().unwrap().append_memory(lent);
    let copy = buffer.copy();
    drop(buffer);
    assert!(
        reusable.lend((), false).is_none() && drops.load(Relaxed) == 0,
        "memory returned while a buffer copy still held it"
    );
    drop(copy);
    assert_eq!(drops.swap(0, Relaxed), 1);
    let again = reusable.lend(Held(drops.clone()), false).unwrap();
    assert_eq!(again.as_ptr(), first);

    // A loan may outlive its `Reusable`.
    drop(reusable);
    assert_eq!(drops.load(Relaxed), 0);
    drop(again);
    assert_eq!(drops.load(Relaxed), 1);
}

#[test]
fn each_loan_shows_current_content_to_cpu() {
    if !is_there("cpu") {
        return;
    }
    let context = Context::new(0).unwrap();
    let info = layout::of(&picture(), context.texture_alignment()).unwrap();
    let (mut place, address) = place(&context, &info);
    let reusable = Reusable::wrap(&context, None, &info, address, memory::Rules::default()).unwrap();
    for value in [1, 2, 3] {
        place.get_mut().unwrap().map_writable().unwrap().fill(value);
        // Mapping for the GPU uploads the CPU writes.
        memory::Memory::of(&place).unwrap().map().unwrap();
        let lent = reusable.lend((), false).unwrap();
        assert_eq!(lent.map_readable().unwrap()[0], value);
    }
    // CPU writes end with the loan, and do not overwrite the content of the next one.
    let mut lent = reusable.lend((), false).unwrap();
    lent.get_mut().unwrap().map_writable().unwrap().fill(9);
    drop(lent);
    place.get_mut().unwrap().map_writable().unwrap().fill(4);
    memory::Memory::of(&place).unwrap().map().unwrap();
    let lent = reusable.lend((), false).unwrap();
    memory::Memory::of(&lent).unwrap().map().unwrap();
    assert_eq!(lent.map_readable().unwrap()[0], 4);
}

#[test]
fn only_pending_loan_requires_sync() {
    if !is_there("pending") {
        return;
    }
    let context = Context::new(0).unwrap();
    let info = layout::of(&picture(), context.texture_alignment()).unwrap();
    let (_place, address) = place(&context, &info);
    let stream = Stream::new(&context).unwrap();
    let rules = memory::Rules::default();
    let reusable = Reusable::wrap(&context, Some(&stream), &info, address, rules).unwrap();
    for pending in [false, true, false] {
        let lent = reusable.lend((), pending).unwrap();
        let look = memory::Memory::of(&lent).unwrap();
        assert_eq!(look.is_pending(), pending);
        look.sync();
        assert!(!look.is_pending());
    }
}

#[test]
fn library_pool_returns_memory_on_its_stream() {
    if !is_there("own-pool") {
        return;
    }
    let context = Context::new(0).unwrap();
    let pool = BufferPool::new(&context);
    let stream = Stream::new(&context).unwrap();
    let caps =
        "video/x-raw(memory:CUDAMemory), format=NV12, width=320, height=240".parse::<gst::Caps>().unwrap();
    let mut config = pool.config();
    config.set_params(Some(&caps), 320 * 240 * 3 / 2, 0, 0);
    pool::set_stream(&mut config, &stream);
    pool.set_config(config).unwrap();
    pool.set_active(true).unwrap();
    let buffer = pool.acquire_buffer(None).unwrap();
    let look = memory::Memory::of(buffer.peek_memory(0)).unwrap();
    assert_eq!((look.context(), look.stream()), (context, Some(stream)));
    pool.set_active(false).unwrap();
}

mod ours {
    use super::*;
    use gst::subclass::prelude::*;

    #[derive(Default)]
    pub struct Pool;

    #[glib::object_subclass]
    impl ObjectSubclass for Pool {
        const NAME: &'static str = "GstCudaTestPool";
        type Type = super::Pool;
        type ParentType = BufferPool;
    }

    impl ObjectImpl for Pool {}
    impl GstObjectImpl for Pool {}
    impl BufferPoolImpl for Pool {
        fn set_config(&self, config: &mut gst::BufferPoolConfigRef) -> bool {
            pool::set_config(self, config)
        }
        fn start(&self) -> bool {
            true
        }
        fn alloc_buffer(
            &self,
            _: Option<&gst::BufferPoolAcquireParams>,
        ) -> Result<gst::Buffer, gst::FlowError> {
            Ok(gst::Buffer::new())
        }
    }

    #[derive(Default)]
    pub struct Element(pub ElementContext);

    #[glib::object_subclass]
    impl ObjectSubclass for Element {
        const NAME: &'static str = "GstCudaTestElement";
        type Type = super::Element;
        type ParentType = gst::Element;
    }

    impl ObjectImpl for Element {}
    impl GstObjectImpl for Element {}
    impl ElementImpl for Element {
        fn set_context(&self, context: &gst::Context) {
            self.0.set_context(&*self.obj(), context, None);
            self.parent_set_context(context);
        }
    }
}

glib::wrapper! {
    pub struct Pool(ObjectSubclass<ours::Pool>) @extends BufferPool, gst::BufferPool, gst::Object;
}

glib::wrapper! {
    pub struct Element(ObjectSubclass<ours::Element>) @extends gst::Element, gst::Object;
}

#[test]
fn pool_subclasses_derive_from_library_pool() {
    use gst::prelude::*;
    if !is_there("pool") {
        return;
    }
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    let pool: Pool = glib::Object::new();
    pool::set_context(&pool, &context);
    assert!(pool.is::<BufferPool>() && pool.type_().parent().unwrap().name() == "GstCudaBufferPool");
    let mut config = pool.config();
    assert!(pool::stream(&config).is_none());
    config.set_params(Some(&picture().to_caps().unwrap()), 100, 0, 0);
    pool::set_stream(&mut config, &stream);
    pool.set_config(config).unwrap();
    assert_eq!(pool::stream(&pool.config()), Some(stream));
    // The library's own `set_config` would set this to the frame size.
    assert_eq!(pool.config().params().unwrap().1, 100);
    pool.set_active(true).unwrap();
    assert_eq!(pool.acquire_buffer(None).unwrap().n_memory(), 0);
    pool.set_active(false).unwrap();
}

#[test]
fn neighbors_share_one_context() {
    use gst::{prelude::*, subclass::prelude::*};
    if !is_there("sharing") {
        return;
    }
    let pipeline = gst::Pipeline::new();
    let elements: [Element; 2] = [glib::Object::new(), glib::Object::new()];
    pipeline.add_many(&elements).unwrap();
    let place = |index: usize| &elements[index].imp().0;
    assert_eq!(place(0).get(), None);
    let first = place(0).ensure(&elements[0], None).unwrap();
    assert_eq!(place(0).get().as_ref(), Some(&first));
    // The pipeline has stored the context and answers the query with it.
    assert_eq!(place(1).ensure(&elements[1], Some(0)).unwrap(), first);
    // An unknown device yields no context.
    place(1).clear();
    assert_eq!(place(1).get(), None);
    assert!(Context::new(99).is_none());

    let mut query = gst::query::Context::new("gst.cuda.context");
    assert!(!place(1).query(&elements[1], query.get_mut().unwrap()));
    assert!(place(0).query(&elements[0], query.get_mut().unwrap()));
    let gst::QueryView::Context(answered) = query.view() else { unreachable!() };
    let context = answered.context().unwrap();
    assert_eq!(context.structure().get::<Context>("gst.cuda.context").unwrap(), first);
    let mut other = gst::query::Context::new("gst.gl.GLDisplay");
    assert!(!place(0).query(&elements[0], other.get_mut().unwrap()));
}
