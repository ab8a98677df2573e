// SPDX-License-Identifier: MIT OR Apache-2.0

//! Driver bindings, and test cases that each run in a process of their own: the driver reads its
//! environment once, and a case may kill its own process.
//!
//! # Safety
//!
//! The signatures are those of cuda.h. The arguments live until the call has returned or, for
//! asynchronous calls, until the stream has executed them.

#![allow(unsafe_code, reason = "calls a C interface")]
#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Far above the duration of any step on a busy machine: a test that reaches this limit hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

pub const NOT_READY: i32 = 600;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob(pub [u8; 64]);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProperties {
    pub kind: u32,
    pub handle_types: u32,
    pub location: [i32; 2],
    pub rest: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProperties {
    pub kind: u32,
    pub handle_types: u32,
    pub location: [i32; 2],
    pub rest: [u64; 9],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessEntry {
    pub location: [i32; 2],
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct BatchEntry {
    pub operation: u64,
    pub address: u64,
    pub value: u64,
    pub flags: u64,
    pub rest: [u64; 2],
}

pub type HostFunction = extern "C" fn(*mut c_void);

macro_rules! driver {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case)]
            pub fn $name($($arg: $ty),*) -> i32 {
                // SAFETY: see the module header.
                unsafe {
                    let call: libloading::Symbol<'_, unsafe extern "C" fn($($ty),*) -> i32> =
                        library().get(stringify!($name)).expect(stringify!($name));
                    call($($arg),*)
                }
            }
        )*
    };
}

driver! {
    fn cuInit(flags: u32);
    fn cuDeviceGetCount(count: &mut i32);
    fn cuDeviceGetUuid_v2(uuid: &mut [u8; 16], device: i32);
    fn cuDeviceGetAttribute(value: &mut i32, attribute: i32, device: i32);
    fn cuDeviceCanAccessPeer(can: &mut i32, device: i32, peer: i32);
    fn cuCtxCreate_v2(context: &mut usize, flags: u32, device: i32);
    fn cuCtxDestroy_v2(context: usize);
    fn cuCtxPushCurrent_v2(context: usize);
    fn cuCtxPopCurrent_v2(context: &mut usize);
    fn cuCtxSetCurrent(context: usize);
    fn cuCtxSynchronize();
    fn cuCtxRecordEvent(context: usize, event: usize);
    fn cuStreamCreate(stream: &mut usize, flags: u32);
    fn cuStreamDestroy_v2(stream: usize);
    fn cuStreamSynchronize(stream: usize);
    fn cuStreamQuery(stream: usize);
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    fn cuStreamBeginCapture_v2(stream: usize, mode: i32);
    fn cuStreamIsCapturing(stream: usize, status: &mut i32);
    fn cuThreadExchangeStreamCaptureMode(mode: &mut i32);
    fn cuStreamEndCapture(stream: usize, graph: &mut usize);
    fn cuLaunchHostFunc(stream: usize, call: HostFunction, data: *mut c_void);
    fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32);
    fn cuStreamWriteValue64(stream: usize, address: u64, value: u64, flags: u32);
    fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32);
    fn cuStreamBatchMemOp_v2(stream: usize, count: u32, entries: *const BatchEntry, flags: u32);
    fn cuEventCreate(event: &mut usize, flags: u32);
    fn cuEventDestroy_v2(event: usize);
    fn cuEventRecord(event: usize, stream: usize);
    fn cuEventQuery(event: usize);
    fn cuEventSynchronize(event: usize);
    fn cuIpcGetEventHandle(blob: &mut Blob, event: usize);
    fn cuIpcOpenEventHandle(event: &mut usize, blob: Blob);
    fn cuMemAlloc_v2(address: &mut u64, size: usize);
    fn cuMemFree_v2(address: u64);
    fn cuMemGetAddressRange_v2(base: &mut u64, size: &mut usize, address: u64);
    fn cuMemAllocHost_v2(address: &mut *mut c_void, size: usize);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: u32);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuMemHostGetDevicePointer_v2(address: &mut u64, host: *mut c_void, flags: u32);
    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: usize);
    fn cuMemsetD2D16Async(address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize);
    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, len: usize);
    fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, len: usize);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, len: usize, stream: usize);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize);
    fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, address: u64);
    fn cuIpcGetMemHandle(blob: &mut Blob, address: u64);
    fn cuIpcOpenMemHandle_v2(address: &mut u64, blob: Blob, flags: u32);
    fn cuIpcCloseMemHandle(address: u64);
    fn cuMemGetAllocationGranularity(granularity: &mut usize, properties: &AllocationProperties, option: u32);
    fn cuMemCreate(handle: &mut u64, size: usize, properties: &AllocationProperties, flags: u64);
    fn cuMemRelease(handle: u64);
    fn cuMemAddressReserve(address: &mut u64, size: usize, alignment: usize, wish: u64, flags: u64);
    fn cuMemAddressFree(address: u64, size: usize);
    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64);
    fn cuMemUnmap(address: u64, size: usize);
    fn cuMemSetAccess(address: u64, size: usize, entries: &AccessEntry, count: usize);
    fn cuMemExportToShareableHandle(fd: &mut i32, handle: u64, kind: u32, flags: u64);
    fn cuMemImportFromShareableHandle(handle: &mut u64, fd: usize, kind: u32);
    fn cuMemPoolCreate(pool: &mut usize, properties: &PoolProperties);
    fn cuMemPoolDestroy(pool: usize);
    fn cuMemPoolSetAccess(pool: usize, entries: &AccessEntry, count: usize);
    fn cuMemPoolExportToShareableHandle(fd: &mut i32, pool: usize, kind: u32, flags: u64);
    fn cuMemPoolImportFromShareableHandle(pool: &mut usize, fd: usize, kind: u32, flags: u64);
    fn cuMemPoolExportPointer(blob: &mut Blob, address: u64);
    fn cuMemPoolImportPointer(address: &mut u64, pool: usize, blob: &Blob);
    fn cuMemAllocFromPoolAsync(address: &mut u64, size: usize, pool: usize, stream: usize);
    fn cuMemFreeAsync(address: u64, stream: usize);
    fn cuGetProcAddress_v2(
        name: *const std::ffi::c_char, place: &mut usize, version: i32, flags: u64, status: &mut i32,
    );
}

/// Returns the library, which is in the directory of the test executable or in its parent.
pub fn library() -> &'static libloading::Library {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let exe = std::env::current_exe().expect("path of the test executable");
        let deps = exe.parent().expect("directory of the test executable");
        let found = [deps.join("libsimcuda.so"), deps.join("../libsimcuda.so")];
        let path = found
            .into_iter()
            .find(|path| path.exists())
            .expect("libsimcuda.so must be built along with its tests");
        // SAFETY: this package's own library; loading it runs no code.
        unsafe { libloading::Library::new(path) }.expect("load libsimcuda.so")
    })
}

/// Initializes the driver, creates a context, and makes it current on this thread.
pub fn start() -> usize {
    assert_eq!(cuInit(0), 0);
    context(0)
}

pub fn context(device: i32) -> usize {
    made(|out| cuCtxCreate_v2(out, 0, device))
}

/// Returns the output of a call, which must succeed.
#[track_caller]
pub fn made<T: Default>(call: impl FnOnce(&mut T) -> i32) -> T {
    let mut value = T::default();
    assert_eq!(call(&mut value), 0);
    value
}

/// Returns the blob that a call fills in.
#[track_caller]
pub fn blob(call: impl FnOnce(&mut Blob) -> i32) -> Blob {
    let mut blob = Blob([0; 64]);
    assert_eq!(call(&mut blob), 0);
    blob
}

/// Creates a non-blocking stream.
pub fn stream() -> usize {
    made(|out| cuStreamCreate(out, 1))
}

/// Creates an interprocess event.
pub fn shared_event() -> usize {
    made(|out| cuEventCreate(out, 6))
}

/// Returns the contents of device memory.
pub fn bytes(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(cuMemcpyDtoH_v2(bytes.as_mut_ptr(), address, len), 0);
    bytes
}

pub const MIB_2: usize = 2 << 20;

pub fn properties() -> AllocationProperties {
    AllocationProperties { kind: 1, handle_types: 1, location: [1, 0], rest: [0; 2] }
}

pub fn pool_properties() -> PoolProperties {
    PoolProperties { kind: 1, handle_types: 1, location: [1, 0], rest: [0; 9] }
}

/// Maps an allocation at a new address; `access` is 1 for read-only, 3 for read-write.
pub fn map(handle: u64, access: u32) -> u64 {
    let address = made(|out| cuMemAddressReserve(out, MIB_2, 0, 0, 0));
    assert_eq!(cuMemMap(address, MIB_2, 0, handle, 0), 0);
    assert_eq!(cuMemSetAccess(address, MIB_2, &AccessEntry { location: [1, 0], flags: access }, 1), 0);
    address
}

/// Host function that blocks a stream until the gate is opened.
pub struct Gate {
    opened: &'static std::sync::atomic::AtomicBool,
}

impl Gate {
    pub fn on(stream: usize) -> Gate {
        let opened: &'static _ = Box::leak(Box::new(std::sync::atomic::AtomicBool::new(false)));
        assert_eq!(cuLaunchHostFunc(stream, Gate::pass, std::ptr::from_ref(opened).cast_mut().cast()), 0);
        Gate { opened }
    }

    extern "C" fn pass(opened: *mut c_void) {
        // SAFETY: the gate's own flag, which is never freed.
        let opened = unsafe { &*opened.cast::<std::sync::atomic::AtomicBool>() };
        while !opened.load(std::sync::atomic::Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn open(&self) {
        self.opened.store(true, std::sync::atomic::Ordering::Release);
    }
}

/// Blocks until the condition is true. Panics after [`LIMIT`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "timed out: {what}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Sleeps long enough for a pending action to take effect. If the time is too short, a test passes
/// without checking anything.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(100));
}

/// 64-bit values in shared memory that streams can access: a memory file, mapped and registered.
pub struct SharedValues {
    pub fd: i32,
    pub host: *mut u64,
    pub device: u64,
}

impl SharedValues {
    pub fn new() -> SharedValues {
        // SAFETY: a name and a size; checked below.
        let fd = unsafe { libc::memfd_create(c"values".as_ptr(), 0) };
        // SAFETY: just created.
        assert_eq!(unsafe { libc::ftruncate(fd, 4096) }, 0);
        SharedValues::of(fd)
    }

    pub fn of(fd: i32) -> SharedValues {
        // SAFETY: takes free addresses.
        let host = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert_ne!(host, libc::MAP_FAILED);
        assert_eq!(cuMemHostRegister_v2(host, 4096, 2), 0);
        let device = made(|out| cuMemHostGetDevicePointer_v2(out, host, 0));
        SharedValues { fd, host: host.cast(), device }
    }

    pub fn value(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(index < 512);
        // SAFETY: within the page, which is never unmapped.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.host.add(index)) }
    }

    pub fn get(&self, index: usize) -> u64 {
        self.value(index).load(std::sync::atomic::Ordering::Acquire)
    }

    pub fn set(&self, index: usize, value: u64) {
        self.value(index).store(value, std::sync::atomic::Ordering::Release);
    }

    pub fn at(&self, index: usize) -> u64 {
        self.device + 8 * index as u64
    }
}

/// Reopens a descriptor of another process, in place of receiving it through a socket.
pub fn fd_of(pid: u32, fd: i32) -> i32 {
    let file = std::fs::File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"));
    std::os::fd::IntoRawFd::into_raw_fd(file.expect("reopen a descriptor of the other process"))
}

pub fn uid() -> u32 {
    // SAFETY: returns a number.
    unsafe { libc::getuid() }
}

/// Returns the result of `call` in a forked child.
pub fn in_forked_child(call: fn() -> i32) -> i32 {
    // SAFETY: the child calls the driver, which only checks its process id, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = call();
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    libc::WEXITSTATUS(status)
}

const CASE: &str = "SIMCUDA_TEST_CASE";
/// Prefix of the messages to the other process, among the lines that the test harness prints.
const MARK: &str = "@@";

/// A test case in a process of its own.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(case: &str, environment: &[(&str, &str)]) -> Process {
        let exe = std::env::current_exe().expect("path of the test executable");
        let mut command = Command::new(exe);
        command.args(["--exact", "case", "--ignored", "--nocapture", "--test-threads=1"]);
        Process::spawn(command, case, environment)
    }

    pub fn spawn(mut command: Command, case: &str, environment: &[(&str, &str)]) -> Process {
        command.env(CASE, case).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(environment.iter().copied());
        let mut child = command.spawn().expect("start the case");
        let input = child.stdin.take().expect("stdin is a pipe");
        let output = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Process { child, input, output }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, text: &str) {
        writeln!(self.input, "{text}").expect("write to the case");
    }

    /// Returns the next message of the case.
    pub fn receive(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let n = self.output.read_line(&mut line).expect("read from the case");
            assert_ne!(n, 0, "the case exited without a message");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Sends SIGKILL and waits until the process has exited.
    pub fn kill(self) {
        self.kill_without_wait().reap();
    }

    pub fn kill_without_wait(mut self) -> Process {
        self.child.kill().expect("kill the case");
        self
    }

    /// Waits until a killed process has exited.
    pub fn reap(mut self) {
        self.child.wait().expect("wait for the case");
    }

    /// Waits until the process exits. Panics if it fails.
    pub fn finish(self) {
        let status = self.end();
        assert!(status.success(), "{status}");
    }

    /// Waits until the process exits, and prints its output if it failed.
    pub fn end(mut self) -> ExitStatus {
        drop(self.input);
        let reader = std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = self.output.read_to_string(&mut rest);
            rest
        });
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for the case") {
                if !status.success() {
                    println!("{}", reader.join().unwrap_or_default());
                }
                return status;
            }
            if start.elapsed() > LIMIT {
                let _ = self.child.kill();
                panic!("the case did not exit in time");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends a message to the process that started this case.
pub fn send(text: &str) {
    println!("{MARK}{text}");
    std::io::stdout().flush().expect("write to the parent process");
}

/// Returns the next message of the parent process, empty if that has exited.
pub fn receive() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("read from the parent process");
    line.trim_end().to_owned()
}

/// Returns the name of the case that this process runs.
pub fn case_name() -> Option<String> {
    std::env::var(CASE).ok()
}

/// Runs a case in a process of its own, to success.
pub fn run(case: &str, environment: &[(&str, &str)]) {
    Process::start(case, environment).finish();
}

pub fn hex(blob: &Blob) -> String {
    blob.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Blob {
    Blob(std::array::from_fn(|index| {
        u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("hex digits")
    }))
}

/// Returns the path of a new file for violations.
pub fn errors_file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("simcuda-{name}-{}.log", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// Declares the cases of a test program; the test `case` runs the selected one.
#[macro_export]
macro_rules! cases {
    ($($name:ident)*) => {
        #[test]
        #[ignore = "run by the other tests, in a process of its own"]
        fn case() {
            match common::case_name().as_deref() {
                $(Some(stringify!($name)) => cases::$name(),)*
                other => panic!("unknown case {other:?}"),
            }
        }
    };
}
