# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversion to RGB on a GPU, against the reference: one line of JSON for each case.

    python3 rgb_gpu.py [--stream NAME]

Needs NumPy and PyTorch or CuPy. Without `--stream` the planes are arrays of these libraries; with it
they are also the frames of a stream in GPU memory. The exit status is 1 if a case fails.
"""

import argparse
import contextlib
import json
import sys
import time
import traceback

import numpy as np
import rgb_reference
from rgb_reference import FORMATS, difference, make_frame

from frameshare._rgb import rgb

# In code values of 8 bits, as on the host: rounding, and the error of float32 or float16.
LIMITS = {"uint8": 0.51, "float16": 0.13, "float32": 0.02}
RESIZED = "NV12 I420 YUY2 Y444 BGRA GRAY8 P010_10LE".split()


class Torch:
    """PyTorch with its tensor operations: CuPy seems not to be imported."""

    name, like = "torch", "torch"

    def __init__(self):
        import torch

        self.module = torch

    @contextlib.contextmanager
    def imported(self):
        hidden = sys.modules.pop("cupy", None)
        try:
            yield
        finally:
            if hidden is not None:
                sys.modules["cupy"] = hidden

    def upload(self, array):
        return self.module.from_numpy(array).cuda()

    def empty(self, shape, dtype):
        return self.module.zeros(shape, dtype=getattr(self.module, dtype), device="cuda")

    def download(self, tensor):
        return tensor.cpu().numpy()

    def stream(self):
        return self.module.cuda.Stream()

    def on(self, stream):
        return self.module.cuda.stream(stream)

    def address(self, stream):
        return stream.cuda_stream

    def spin(self):
        self.module.cuda._sleep(100_000_000)

    def wait(self):
        self.module.cuda.synchronize()


class TorchWithKernel(Torch):
    """PyTorch with the kernel that CuPy compiles."""

    name = "torch-with-cupy"

    def __init__(self):
        super().__init__()
        import cupy

        cupy.cuda.Device(0).use()

    @contextlib.contextmanager
    def imported(self):
        yield


class Cupy:
    name, like = "cupy", "cupy"

    def __init__(self):
        import cupy

        self.module = cupy
        loop = "long long begin = clock64(); while (clock64() - begin < 100000000) {}"
        self.kernel = cupy.RawKernel(f'extern "C" __global__ void spin() {{ {loop} }}', "spin")

    def imported(self):
        return contextlib.nullcontext()

    def upload(self, array):
        return self.module.asarray(array)

    def empty(self, shape, dtype):
        return self.module.zeros(shape, dtype)

    def download(self, array):
        return array.get()

    def stream(self):
        return self.module.cuda.Stream(non_blocking=True)

    def on(self, stream):
        return stream

    def address(self, stream):
        return stream.ptr

    def spin(self):
        self.kernel((1,), (1,), ())

    def wait(self):
        self.module.cuda.Device().synchronize()


class Plane:
    """A plane on the GPU, as the package exports it."""

    def __init__(self, array, strides):
        self.array, self.strides = array, strides
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def on_gpu(library, frame):
    """Returns the frame with its planes on the GPU, their padding included."""
    found = type(frame)(**vars(frame))
    found.device, found.used = "cuda:0", []
    found.used_on = found.used.append
    found.planes = []
    for plane in frame.planes:
        memory = plane if plane.base is None else plane.base
        while memory.base is not None:
            memory = memory.base
        rows = library.upload(memory)[:, : plane[0].size]
        found.planes.append(Plane(rows, (memory.shape[1], 1)))
    return found


def check(library, frame, limit, **options):
    source = on_gpu(library, frame)
    with library.imported():
        found = rgb(source, like=library.like, **options)
    assert len(source.used) == 1, f"used_on was called {len(source.used)} times"
    assert type(found).__module__.partition(".")[0] == library.like, type(found)
    error = difference(library.download(found), frame, options.get("size"), options.get("layout", "chw"))
    assert error <= limit, f"{error} code values, at most {limit} expected"
    return {"error": round(error, 4)}


def formats(library):
    for name in FORMATS:
        for size in ((640, 360), (33, 17), (1, 1)):
            yield (
                f"{name}-{size[0]}x{size[1]}",
                lambda name=name, size=size: check(
                    library, make_frame(name, *size, padding=0 if size[0] == 640 else 6), LIMITS["uint8"]
                ),
            )


def sizes(library):
    for name in RESIZED:
        for size in ((64, 48), (13, 7), (200, 11), (1, 1)):
            yield (
                f"{name}-37x21-to-{size[0]}x{size[1]}",
                lambda name=name, size=size: check(
                    library, make_frame(name, 37, 21, padding=6), LIMITS["uint8"], size=size
                ),
            )
    yield (
        "NV12-3840x2160-to-1280x720",
        lambda: check(library, make_frame("NV12", 3840, 2160), 0.6, size=(1280, 720)),
    )


def forms(library):
    for dtype, limit in LIMITS.items():
        for layout in ("chw", "hwc"):
            yield (
                f"{dtype}-{layout}",
                lambda dtype=dtype, limit=limit, layout=layout: check(
                    library, make_frame("NV12", 320, 180), limit, dtype=dtype, layout=layout
                ),
            )
    for matrix in rgb_reference.RED_BLUE:
        for range_ in ("full", "limited"):
            yield (
                f"{matrix}-{range_}",
                lambda matrix=matrix, range_=range_: check(
                    library, make_frame("NV12", 64, 64, matrix=matrix, range_=range_), LIMITS["uint8"]
                ),
            )


def others(library):
    def out_is_written():
        frame = make_frame("NV12", 320, 180)
        batch = library.empty((2, 3, 180, 320), "float32")
        with library.imported():
            assert rgb(on_gpu(library, frame), batch[1]) is not None
        batch = library.download(batch)
        assert (batch[0] == 0).all()
        error = difference(batch[1], frame)
        assert error <= LIMITS["float32"], error
        return {"error": round(error, 4)}

    def kernel_runs_on_current_stream():
        frame, other = make_frame("RGB", 320, 180, seed=1), make_frame("RGB", 320, 180, seed=2)
        source, late = on_gpu(library, other), on_gpu(library, frame)
        stream = library.stream()
        library.wait()
        with library.imported(), library.on(stream):
            rgb(source, like=library.like)
            library.wait()
            source.used.clear()
            # The pixels of `frame` come later on this stream: a kernel on another one misses them.
            library.spin()
            source.planes[0].array[...] = late.planes[0].array
            found = rgb(source, like=library.like)
            stream.synchronize()
        assert [library.address(each) for each in source.used] == [library.address(stream)], source.used
        error = difference(library.download(found), frame)
        assert error <= LIMITS["uint8"], error
        return {"error": round(error, 4)}

    def out_on_host_is_refused():
        frame = on_gpu(library, make_frame("NV12", 8, 8))
        if library.like == "torch":
            try:
                rgb(frame, library.module.empty((3, 8, 8), dtype=library.module.uint8))
            except ValueError as error:
                assert "out is on cpu, but the frame is on cuda:0" in str(error), error
                return {}
            raise AssertionError("no error")
        return {"skipped": "arrays of CuPy are on a GPU"}

    yield "out-is-written", out_is_written
    yield "kernel-runs-on-current-stream", kernel_runs_on_current_stream
    yield "out-on-host-is-refused", out_on_host_is_refused


def speed(library):
    for width, height in ((1920, 1080), (3840, 2160)):
        for dtype in ("uint8", "float16"):

            def measure(width=width, height=height, dtype=dtype):
                frame = on_gpu(library, make_frame("NV12", width, height))
                out = library.empty((3, height, width), dtype)
                count = 200
                with library.imported():
                    for repeat in (5, count):
                        library.wait()
                        begin = time.perf_counter()
                        for _ in range(repeat):
                            rgb(frame, out)
                        queued = time.perf_counter() - begin
                        library.wait()
                        total = time.perf_counter() - begin
                return {"us": round(total / count * 1e6, 1), "host_us": round(queued / count * 1e6, 1)}

            yield f"speed-NV12-{width}x{height}-{dtype}", measure


def stream_cases(library, name):
    """Frames of a stream in GPU memory, against their download converted with NumPy."""

    def compare():
        import frameshare

        count, worst = 30, 0
        with frameshare.open(name) as stream:
            for number, frame in enumerate(stream):
                with frame:
                    assert frame.device.startswith("cuda:"), f"the frame is on {frame.device}"
                    with library.imported():
                        found = library.download(rgb(frame, like=library.like))
                    expected = rgb(frame, like="numpy")
                worst = max(worst, int(np.abs(found.astype(int) - expected).max()))
                if number + 1 == count:
                    break
        assert worst <= 1, f"{worst} code values"
        return {"error": worst, "frames": count}

    yield "frames-of-stream", compare


def main(stream=None):
    """Runs all cases; returns the number of failures."""
    failures = 0
    for kind in (Torch, TorchWithKernel, Cupy):
        try:
            library = kind()
            library.empty((1,), "uint8")
        except Exception as error:
            print(json.dumps({"case": kind.name, "skipped": f"{type(error).__name__}: {error}"}), flush=True)
            continue
        groups = [formats, sizes, forms, others, speed]
        cases = [case for group in groups for case in group(library)]
        cases += stream_cases(library, stream) if stream else []
        for name, case in cases:
            line = {"case": f"{kind.name}/{name}"}
            try:
                line |= case()
            except Exception as error:
                failures += 1
                line |= {
                    "failed": f"{type(error).__name__}: {error}",
                    "at": traceback.format_exc().splitlines()[-3].strip(),
                }
            print(json.dumps(line), flush=True)
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stream", help="name of a stream in GPU memory")
    sys.exit(1 if main(parser.parse_args().stream) else 0)
