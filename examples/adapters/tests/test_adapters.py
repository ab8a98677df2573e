# SPDX-License-Identifier: MIT OR Apache-2.0
"""Adapters: what they make of the frames of a stream. ROS 2, DALI and vLLM are stubs of the calls that adapters use."""

import contextlib
import pathlib
import sys
import types

import frameshare
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import dali_source
import ray_data
import ros2_image
import vllm_images

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@contextlib.contextmanager
def published(name, width, height, *samples, period=SECOND):
    """A stream with a frame for each array, which has ended."""
    with frameshare.create("cam0", format=name, width=width, height=height, slow_readers="queue") as exporter:
        with frameshare.open("cam0", policy="lossless", reconnect=False) as stream:
            exporter.wait_for_reader(30)
            for number, one in enumerate(samples):
                exporter.publish(one, pts=number * period)
            exporter.end()
            yield stream


def image(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(
    ("name", "channels", "encoding"),
    [("RGB", 3, "rgb8"), ("BGR", 3, "bgr8"), ("RGBA", 4, "rgba8"), ("BGRA", 4, "bgra8")],
)
@pytest.mark.parametrize("width", [16, 17])
def test_ros_image_has_bytes_of_frame_without_padding(name, channels, encoding, width):
    pixels = image(5, width, channels)
    with published(name, width, 5, pixels) as stream, stream.next(10) as frame:
        fields = ros2_image.image_fields(frame)
    assert (fields["height"], fields["width"], fields["encoding"]) == (5, width, encoding)
    assert fields["step"] == width * channels
    assert fields["data"] == pixels.tobytes()


@pytest.mark.parametrize(("name", "pixel", "encoding"), [("GRAY8", np.uint8, "mono8"), ("GRAY16_LE", np.uint16, "mono16")])
def test_ros_image_of_gray_frame_has_its_depth(name, pixel, encoding):
    samples = image(6, 10 * np.dtype(pixel).itemsize).view(pixel)
    with published(name, 10, 6, samples) as stream, stream.next(10) as frame:
        fields = ros2_image.image_fields(frame)
    assert fields["encoding"] == encoding
    assert fields["data"] == samples.tobytes()


@pytest.mark.parametrize("name", ["NV12", "I420"])
def test_ros_image_of_other_formats_is_rgb(name):
    with published(name, 16, 8, np.full((12, 16), 128, np.uint8)) as stream, stream.next(10) as frame:
        fields = ros2_image.image_fields(frame)
    assert (fields["encoding"], fields["step"]) == ("rgb8", 48)
    # Limited range: 128 is 130 of 255, without color.
    assert set(fields["data"]) == {130} and len(fields["data"]) == 8 * 48


def test_ros_stamp_is_time_of_publication():
    assert ros2_image.stamp(5 * SECOND, 1.25) == (3, 750_000_000)
    assert ros2_image.stamp(5, 1.0) == (0, 0)


def test_ros_node_publishes_each_frame(monkeypatch):
    sent, ended = [], []

    class Image:
        def __init__(self):
            self.header = types.SimpleNamespace(stamp=types.SimpleNamespace(sec=0, nanosec=0), frame_id="")

    def create_publisher(kind, topic, qos):
        assert (kind, topic, qos) == (Image, "/cam0/image_raw", "sensor data")
        return types.SimpleNamespace(publish=sent.append)

    node = types.SimpleNamespace(create_publisher=create_publisher, destroy_node=lambda: ended.append("node"))
    rclpy = types.ModuleType("rclpy")
    rclpy.init, rclpy.try_shutdown = lambda: None, lambda: ended.append("rclpy")
    rclpy.create_node = lambda name: node
    qos = types.ModuleType("rclpy.qos")
    qos.qos_profile_sensor_data = "sensor data"
    messages = types.ModuleType("sensor_msgs.msg")
    messages.Image = Image
    for module in (rclpy, qos, messages, types.ModuleType("sensor_msgs")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    pixels = [image(4, 6, 3, seed=number) for number in range(3)]
    with published("RGB", 6, 4, *pixels) as stream:
        monkeypatch.setattr(frameshare, "open", lambda name, device: stream)
        monkeypatch.setattr(sys, "argv", ["ros2_image.py", "cam0"])
        ros2_image.main()
    assert [bytes(one.data) for one in sent] == [one.tobytes() for one in pixels]
    assert {one.header.frame_id for one in sent} == {"cam0"}
    assert all(one.header.stamp.sec > 0 for one in sent)
    assert ended == ["node", "rclpy"]


def test_dali_batches_are_images_and_last_one_may_be_short():
    pixels = [image(4, 6, 3, seed=number) for number in range(5)]
    with published("RGB", 6, 4, *pixels) as stream:
        found = list(dali_source.batches(stream, 2, "numpy"))
    assert [len(batch) for batch in found] == [2, 2, 1]
    assert all(np.array_equal(one, two) for one, two in zip(sum(found, []), pixels, strict=True))


def test_vllm_gets_one_image_in_each_interval():
    pixels = [image(8, 16, 3, seed=number) for number in range(7)]
    with published("RGB", 16, 8, *pixels, period=SECOND // 2) as stream:
        found = list(vllm_images.sampled(stream, 1.0, 8))
    numbers = [number for number, _ in found]
    assert [number - numbers[0] for number in numbers] == [0, 2, 4, 6]
    assert {one.shape for _, one in found} == {(4, 8, 3)}
    (message,) = vllm_images.conversation("Who?", "data:,")
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]


def test_ray_rows_have_key_and_image_and_end_with_stream():
    pixels = [image(4, 6, 3, seed=number) for number in range(3)]
    with published("RGB", 6, 4, *pixels) as stream:
        found = list(ray_data.rows(stream, "cam0", 2, None)) + list(ray_data.rows(stream, "cam0", 2, None))
    assert [row["sequence"] - found[0]["sequence"] for row in found] == [0, 1, 2]
    assert len({(row["stream"], row["session"]) for row in found}) == 1
    assert all(np.array_equal(row["image"], one) for row, one in zip(found, pixels, strict=True))
