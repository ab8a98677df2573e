# SPDX-License-Identifier: MIT OR Apache-2.0

"""Two copies of the package in one process, and so of the engine: ARCHITECTURE.md, "Copies in one process".

A program that loads GStreamer's plugin, libframeshare and the package has as many copies.
"""

import pytest
from conftest import run_well
from test_gpu import ANNOUNCED, PRELUDE, gpu  # noqa: F401

SECOND = """
import pathlib, shutil, tempfile
folder = tempfile.TemporaryDirectory()
# Another file, so that the loader maps it beside the first.
shutil.copytree(pathlib.Path(frameshare.__file__).parent, folder.name + "/frameshare_copy")
sys.path.insert(0, folder.name)
import frameshare_copy
assert frameshare_copy.Stream is not frameshare.Stream
COPIES = frameshare, frameshare_copy
"""

EXPORTER = """
import ctypes, threading
is_over = threading.Event()

def export(copy, name, **options):
    exporter = copy.create(name, format="GRAY8", width=64, height=48, **options)
    cuda = queue = None

    def publish_on_gpu(value):
        with exporter.acquire(stream=queue) as slot:
            start = slot.plane(0).__cuda_array_interface__["data"][0]
            size = ctypes.c_size_t(48 * 64)
            cuda.call("cuMemsetD8Async", c_uint64(start), c_uint8(value), size, c_void_p(queue))

    def publish():
        nonlocal cuda, queue
        if "device" in options:
            cuda = Cuda()
            queue = cuda.stream()
        number = 0
        while not is_over.wait(0.002):
            number += 1
            if cuda:
                publish_on_gpu(number % 251)
            else:
                exporter.publish(numpy.full((48, 64), number % 251, numpy.uint8))

    # It does not keep a failed program from ending.
    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    return thread

def read(stream):
    devices = set()
    for _ in range(20):
        frame = stream.next(60)
        assert (copy_on_host(frame.plane(0)) == frame.sequence % 251).all()
        devices.add(frame.device)
    return devices
"""


def test_copies_share_streams_and_their_names(processes):
    run_well(
        PRELUDE + SECOND + EXPORTER + """
for number, (one, other) in enumerate((COPIES, COPIES[::-1])):
    name = f"{PATH}{number}"
    thread = export(one, name)
    for copy in COPIES:
        try:
            copy.create(name, format="GRAY8", width=64, height=48)
        except frameshare.Error as error:
            assert "is in use, held by" in str(error), error
        else:
            raise AssertionError("two exporters have one name")
    with one.open(name) as first, other.open(name) as second:
        assert read(first) == read(second) == {"cpu"}
    is_over.set()
    thread.join()
    is_over.clear()
""",
        processes.path(),
        "0",
    )


@pytest.mark.parametrize("memory", ["vmm", "pool", "legacy"])
def test_reader_of_exporter_in_other_copy(gpu, memory):  # noqa: F811
    """The driver imports memory of its own process as vmm alone; other frames come in host memory."""
    place = "cuda:0" if memory == "vmm" else "cpu"
    gpu(SECOND + EXPORTER + f"""
thread = export(frameshare, PATH + ".own", device=0, memory="{memory}")
with frameshare_copy.open(PATH + ".own") as other, frameshare.open(PATH + ".own") as same:
    assert read(other) == {{"{place}"}}
    assert read(same) == {{"cuda:0"}}
is_over.set()
thread.join()
""")


def test_memory_of_a_pool_is_imported_by_one_copy(gpu):  # noqa: F811
    gpu(SECOND + EXPORTER + f"EXPORTER = {EXPORTER!r}" + """
import subprocess
program = "import ctypes, sys, numpy, frameshare\\nfrom consumer import *" + EXPORTER + f'''
thread = export(frameshare, {PATH + ".pool"!r}, device=0, memory="pool")
sys.stdin.read()
is_over.set()
thread.join()
'''
peer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
with frameshare.open(PATH + ".pool", connection_timeout=60) as first:
    assert read(first) == {"cuda:0"}
    with frameshare_copy.open(PATH + ".pool") as second:
        assert read(second) == {"cpu"}
        assert read(first) == {"cuda:0"}
# Once the exporter knows that the first one has no imports any more.
end, places = time.monotonic() + 60, None
while places != {"cuda:0"}:
    assert time.monotonic() < end, places
    with frameshare_copy.open(PATH + ".pool") as second:
        places = read(second)
peer.stdin.close()
assert peer.wait(60) == 0
""")


@pytest.mark.parametrize(("copy", "status"), [("frameshare", 0), ("frameshare_copy", 901)])
def test_capture_is_announced_to_one_copy(gpu, copy, status):  # noqa: F811
    """The first copy reads."""
    program = SECOND + ANNOUNCED.format(announced=f"{copy}.announce_capture()")
    assert gpu(program, SIMCUDA_STRICT="off") == f"{status}\n"


def test_exit_waits_for_calls_of_both_copies(gpu):  # noqa: F811
    """The simulated driver reports calls that are under way when it ends."""
    gpu(SECOND + """
import threading

def work(copy):
    with copy.open(PATH) as stream:
        frame = stream.next(60)
        while True:
            frame.__dlpack__(dl_device=(CPU, 0), copy=True, max_version=(1, 1))

for copy in COPIES:
    threading.Thread(target=work, args=(copy,), daemon=True).start()
time.sleep(0.5)
""", SIMCUDA_DELAY_US="20000")
