#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A ROS 2 node that publishes a stream as sensor_msgs/Image.

    source /opt/ros/jazzy/setup.bash
    python3 ros2_image.py cam0 --topic /cam0/image_raw

Formats that ROS names (RGB, BGR, RGBA, BGRA, GRAY8, GRAY16_LE, YUY2 and UYVY of even widths) keep their bytes: one copy
into the message. Others are converted to rgb8. Frames on a GPU come downloaded.
"""

import argparse
import array
import contextlib
import time
from typing import Any

import frameshare

# Names of ROS (sensor_msgs/image_encodings.hpp), and bytes of a pixel.
ENCODINGS = {
    "RGB": ("rgb8", 3),
    "BGR": ("bgr8", 3),
    "RGBA": ("rgba8", 4),
    "BGRA": ("bgra8", 4),
    "GRAY8": ("mono8", 1),
    "GRAY16_LE": ("mono16", 2),
    "YUY2": ("yuv422_yuy2", 2),
    "UYVY": ("yuv422", 2),
}


def image_fields(frame: Any) -> dict[str, Any]:
    """The fields of sensor_msgs/Image, but its header."""
    is_named = frame.format in ENCODINGS and not (frame.format in ("YUY2", "UYVY") and frame.width % 2)
    encoding, pixel = ENCODINGS[frame.format] if is_named else ("rgb8", 3)
    if is_named:
        with memoryview(frame.plane(0)) as plane:
            # Rows of a plane may have padding, which the message leaves out.
            data = plane.tobytes()
    else:
        data = frame.rgb(like="numpy", layout="hwc").tobytes()
    step = frame.width * pixel
    return {
        "height": frame.height,
        "width": frame.width,
        "encoding": encoding,
        "is_bigendian": 0,
        "step": step,
        "data": data,
    }


def stamp(now: int, age: float) -> tuple[int, int]:
    """Seconds and nanoseconds of the time at which a frame was published, `age` seconds before `now` (ns)."""
    return divmod(max(now - round(age * 1e9), 0), 1_000_000_000)


def message(Image: Any, frame: Any, frame_id: str, now: int) -> Any:
    """An Image of this frame; `Image` is the class of the message."""
    image = Image()
    image.header.stamp.sec, image.header.stamp.nanosec = stamp(now, frame.age)
    image.header.frame_id = frame_id
    for name, value in image_fields(frame).items():
        # rclpy copies bytes element by element, and takes an array as it is.
        setattr(image, name, array.array("B", value) if name == "data" else value)
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stream")
    parser.add_argument("--topic", help="default: /STREAM/image_raw")
    parser.add_argument("--frame-id", help="default: STREAM")
    arguments = parser.parse_args()

    import rclpy
    from rclpy.qos import qos_profile_sensor_data
    from sensor_msgs.msg import Image

    rclpy.init()
    node = rclpy.create_node("frameshare")
    topic = arguments.topic or f"/{arguments.stream}/image_raw"
    publisher = node.create_publisher(Image, topic, qos_profile_sensor_data)
    with contextlib.suppress(KeyboardInterrupt), frameshare.open(arguments.stream, device="cpu") as stream:
        for frame in stream:
            with frame:
                publisher.publish(message(Image, frame, arguments.frame_id or arguments.stream, time.time_ns()))
    node.destroy_node()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
