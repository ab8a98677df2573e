// SPDX-License-Identifier: MIT OR Apache-2.0

//! ABI tests: compare the types and constants passed to the driver with NVIDIA's cuda.h, by
//! compiling a C++ program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use cudarc::driver::sys;

use super::*;
use crate::driver::{NAMES, SIGNATURES};
use crate::error::names::NAMES as NAMES_OF_ERRORS;

/// Runs a command and returns its output; panics with all its output on failure.
fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Returns the folder of cuda.h; fetches it on first use.
fn headers() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tools/cuda-headers.sh");
    PathBuf::from(output(&mut Command::new(script)).trim())
}

/// Evaluates C++ expressions against cuda.h. `definitions` precede them.
fn evaluate<'a>(definitions: &str, expressions: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut source =
        format!("#include <cuda.h>\n#include <cstddef>\n#include <cstdio>\n{definitions}\nint main() {{\n");
    for expression in expressions {
        writeln!(
            source,
            "  std::printf(\"%s\\t%llu\\n\", \"{expression}\", (unsigned long long)({expression}));"
        )
        .unwrap();
    }
    source.push_str("}\n");

    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("layout.cpp"), folder.path().join("layout"));
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    // Nested offsetof through anonymous unions is conditionally supported; all compilers used here
    // support it.
    output(
        Command::new(compiler)
            .args(["-std=c++17", "-w", "-I"])
            .arg(headers())
            .arg("-o")
            .args([&program, &file]),
    );
    output(&mut Command::new(program))
        .lines()
        .map(|line| line.rsplit_once('\t').unwrap())
        .map(|(expression, value)| (expression.to_owned(), value.parse().unwrap()))
        .collect()
}

macro_rules! layout {
    ($($c:literal = $ty:ty { $($member:literal = $($field:ident).+),* $(,)? })*) => {
        vec![$(
            (concat!("sizeof(", $c, ")"), size_of::<$ty>() as u64),
            (concat!("alignof(", $c, ")"), align_of::<$ty>() as u64),
            $((concat!("offsetof(", $c, ", ", $member, ")"), offset_of!($ty, $($field).+) as u64),)*
        )*]
    };
}

macro_rules! constants {
    ($($c:ident = $value:expr;)*) => {
        vec![$((stringify!($c), $value as u64),)*]
    };
}

fn compare(ours: &[(&str, u64)]) {
    let theirs = evaluate("", ours.iter().map(|(expression, _)| *expression));
    let wrong: Vec<_> =
        ours.iter().filter(|(expression, value)| theirs.get(*expression) != Some(value)).collect();
    assert!(wrong.is_empty(), "this crate's values differ from cuda.h: {wrong:?}\ncuda.h has {theirs:?}");
}

#[test]
fn struct_layouts_match_cuda_h() {
    type Write = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st;

    compare(&layout! {
        "CUdevice" = CUdevice {}
        "CUcontext" = CUcontext {}
        "CUdeviceptr" = crate::DevicePtr {}
        "CUmemGenericAllocationHandle" = CUmemGenericAllocationHandle {}
        "CUuuid" = CUuuid { "bytes" = bytes }
        "CUipcEventHandle" = CUipcEventHandle { "reserved" = reserved }
        "CUipcMemHandle" = CUipcMemHandle { "reserved" = reserved }
        "CUmemPoolPtrExportData" = CUmemPoolPtrExportData { "reserved" = reserved }
        "CUmemAllocationProp" = CUmemAllocationProp {
            "type" = type_,
            "requestedHandleTypes" = requestedHandleTypes,
            "location.type" = location.type_,
            "location.id" = location.id,
            "win32HandleMetaData" = win32HandleMetaData,
            "allocFlags.compressionType" = allocFlags.compressionType,
            "allocFlags.gpuDirectRDMACapable" = allocFlags.gpuDirectRDMACapable,
            "allocFlags.usage" = allocFlags.usage,
            "allocFlags.reserved" = allocFlags.reserved,
        }
        "CUmemAccessDesc" = CUmemAccessDesc {
            "location.type" = location.type_,
            "location.id" = location.id,
            "flags" = flags,
        }
        // Members added by newer headers start where `reserved`, all zero, starts here.
        "CUmemPoolProps" = CUmemPoolProps {
            "allocType" = allocType,
            "handleTypes" = handleTypes,
            "location.type" = location.type_,
            "location.id" = location.id,
            "win32SecurityAttributes" = win32SecurityAttributes,
            "maxSize" = reserved,
        }
        "CUDA_MEMCPY2D" = CUDA_MEMCPY2D {
            "srcXInBytes" = srcXInBytes,
            "srcY" = srcY,
            "srcMemoryType" = srcMemoryType,
            "srcHost" = srcHost,
            "srcDevice" = srcDevice,
            "srcArray" = srcArray,
            "srcPitch" = srcPitch,
            "dstXInBytes" = dstXInBytes,
            "dstY" = dstY,
            "dstMemoryType" = dstMemoryType,
            "dstHost" = dstHost,
            "dstDevice" = dstDevice,
            "dstArray" = dstArray,
            "dstPitch" = dstPitch,
            "WidthInBytes" = WidthInBytes,
            "Height" = Height,
        }
        "CUstreamBatchMemOpParams" = CUstreamBatchMemOpParams { "writeValue" = writeValue }
        "CUstreamBatchMemOpParams::CUstreamMemOpWriteValueParams_st" = Write {
            "operation" = operation,
            "address" = address,
            "value64" = __bindgen_anon_1.value64,
            "flags" = flags,
            "alias" = alias,
        }
    });
}

#[test]
fn constants_match_cuda_h() {
    let access = |write| access(0, write).flags as u32;
    let memory = exportable_memory(0);
    let rectangle = copy_2d((Side::Host(std::ptr::null_mut()), 0), (Side::Device(0), 0), 0, 0);

    compare(&constants! {
        CUDA_SUCCESS = code::SUCCESS;
        CUDA_ERROR_OUT_OF_MEMORY = code::OUT_OF_MEMORY;
        CUDA_ERROR_NOT_INITIALIZED = code::NOT_INITIALIZED;
        CUDA_ERROR_DEINITIALIZED = code::DEINITIALIZED;
        CUDA_ERROR_MAP_FAILED = code::MAP_FAILED;
        CUDA_ERROR_ECC_UNCORRECTABLE = code::ECC_UNCORRECTABLE;
        CUDA_ERROR_NVLINK_UNCORRECTABLE = code::NVLINK_UNCORRECTABLE;
        CUDA_ERROR_CONTAINED = code::CONTAINED;
        CUDA_ERROR_NOT_READY = code::NOT_READY;
        CUDA_ERROR_ILLEGAL_ADDRESS = code::ILLEGAL_ADDRESS;
        CUDA_ERROR_LAUNCH_TIMEOUT = code::LAUNCH_TIMEOUT;
        CUDA_ERROR_CONTEXT_IS_DESTROYED = code::CONTEXT_IS_DESTROYED;
        CUDA_ERROR_ASSERT = code::ASSERT;
        CUDA_ERROR_HARDWARE_STACK_ERROR = code::HARDWARE_STACK_ERROR;
        CUDA_ERROR_LAUNCH_FAILED = code::LAUNCH_FAILED;
        CUDA_ERROR_TENSOR_MEMORY_LEAK = code::TENSOR_MEMORY_LEAK;
        CUDA_ERROR_NOT_PERMITTED = code::NOT_PERMITTED;
        CUDA_ERROR_MPS_CLIENT_TERMINATED = code::MPS_CLIENT_TERMINATED;
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = code::STREAM_CAPTURE_UNSUPPORTED;
        CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = code::STREAM_CAPTURE_WRONG_THREAD;

        CU_STREAM_NON_BLOCKING = flag::STREAM_NON_BLOCKING;
        CU_STREAM_LEGACY = flag::STREAM_LEGACY;
        CU_STREAM_PER_THREAD = flag::STREAM_PER_THREAD;
        CU_EVENT_DISABLE_TIMING = flag::EVENT_DISABLE_TIMING;
        CU_EVENT_INTERPROCESS = flag::EVENT_INTERPROCESS;
        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = flag::IPC_LAZY_PEER_ACCESS;
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = flag::HANDLE_POSIX_FD;
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = flag::GRANULARITY_MINIMUM;
        CU_MEMHOSTREGISTER_DEVICEMAP = flag::HOST_REGISTER_DEVICE_MAP;
        CU_MEMHOSTREGISTER_READ_ONLY = flag::HOST_REGISTER_READ_ONLY;
        CU_STREAM_WAIT_VALUE_GEQ = flag::WAIT_VALUE_GEQ;
        CU_STREAM_WRITE_VALUE_DEFAULT = flag::WRITE_VALUE_DEFAULT;
        CU_STREAM_MEM_OP_WRITE_VALUE_64 = sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64;
        CU_POINTER_ATTRIBUTE_BUFFER_ID = flag::POINTER_BUFFER_ID;
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = flag::POINTER_LEGACY_IPC_CAPABLE;

        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = Attribute::UNIFIED_ADDRESSING.number();
        CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = Attribute::HOST_REGISTER_SUPPORTED.number();
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED =
            Attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED.number();
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED =
            Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED.number();
        CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED =
            Attribute::READ_ONLY_HOST_REGISTER_SUPPORTED.number();
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = Attribute::MEMORY_POOLS_SUPPORTED.number();
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES =
            Attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES.number();
        CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS.number();
        CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = Attribute::IPC_EVENT_SUPPORTED.number();

        CU_MEM_ACCESS_FLAGS_PROT_READ = access(false);
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = access(true);
        CU_MEM_ALLOCATION_TYPE_PINNED = memory.type_;
        CU_MEM_LOCATION_TYPE_DEVICE = memory.location.type_;
        CU_MEMORYTYPE_HOST = rectangle.dstMemoryType;
        CU_MEMORYTYPE_DEVICE = rectangle.srcMemoryType;
    });
}

/// Checks the numbers literally: a comparison of cudarc with cuda.h would miss a renumbering in
/// both.
#[test]
fn deciding_attributes_have_their_known_numbers() {
    let numbers = [
        (Attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102),
        (Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103),
        (Attribute::MEMORY_POOLS_SUPPORTED, 115),
        (Attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES, 119),
        (Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS, 122),
        (Attribute::IPC_EVENT_SUPPORTED, 125),
    ];
    for (attribute, number) in numbers {
        assert_eq!(attribute.number(), number, "{attribute}");
    }
}

/// Compares the sizes of the arguments, which determine how a call passes them.
#[test]
fn call_arguments_match_cuda_h() {
    // Exported by every driver, but no longer declared in cuda.h.
    let undeclared = ["cuCtxCreate_v2", "cuDeviceGetUuid"];
    const DEFINITIONS: &str = "
        template <class... A> constexpr unsigned long long digest(CUresult (*)(A...)) {
            unsigned long long value = sizeof...(A);
            ((value = value * 31 + sizeof(A)), ...);
            return value;
        }";
    let ours: Vec<(String, u64)> = NAMES
        .iter()
        .zip(SIGNATURES)
        .filter(|(name, _)| !undeclared.contains(name))
        .map(|(name, sizes)| {
            let digest = sizes
                .iter()
                .fold(sizes.len() as u64, |value, size| value.wrapping_mul(31).wrapping_add(*size as u64));
            (format!("digest((decltype(&{name}))nullptr)"), digest)
        })
        .collect();
    let theirs = evaluate(DEFINITIONS, ours.iter().map(|(expression, _)| expression.as_str()));
    let wrong: Vec<_> = ours.iter().filter(|(name, digest)| theirs.get(name) != Some(digest)).collect();
    assert!(wrong.is_empty(), "arguments differ from cuda.h: {wrong:?}");
}

#[test]
fn error_names_match_cuda_h() {
    let text = std::fs::read_to_string(headers().join("cuda.h")).unwrap();
    let mut theirs: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("CUDA_ERROR_")?.split_once('='))
        .map(|(name, code)| {
            let code = code.trim().trim_end_matches(',').trim_end();
            (code.parse().unwrap(), format!("CUDA_ERROR_{}", name.trim()))
        })
        .collect();
    theirs.sort();
    assert!(theirs.len() > 100, "cannot parse the error codes of cuda.h: {theirs:?}");
    let ours: Vec<_> = NAMES_OF_ERRORS.iter().map(|(code, name)| (*code, (*name).to_owned())).collect();
    assert_eq!(ours, theirs);
    assert_eq!(crate::error::names::name(999), Some("CUDA_ERROR_UNKNOWN"));
    assert_eq!(crate::error::names::name(12_345), None);
}
