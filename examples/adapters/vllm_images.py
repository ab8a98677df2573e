#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Asks a vision language model of vLLM about a stream: one frame in each interval.

    python3 vllm_images.py cam0 --model Qwen/Qwen2.5-VL-3B-Instruct --question "Is the door open?"
"""

import argparse
from collections.abc import Iterator
from typing import Any

import frameshare


def sampled(stream: Any, seconds: float, width: int) -> Iterator[tuple[int, Any]]:
    """Number and image of the first frame, and of the next one at least `seconds` of its timestamps later.

    An image is (height, width, 3) of uint8, no wider than `width`. Without timestamps every frame is taken.
    """
    last = None
    for frame in stream:
        with frame:
            if last is not None and frame.pts is not None and 0 <= frame.pts - last < seconds * 1e9:
                continue
            last = frame.pts
            ratio = min(1.0, width / frame.width)
            size = (round(frame.width * ratio), max(1, round(frame.height * ratio)))
            yield frame.sequence, frame.rgb(like="numpy", layout="hwc", size=size)


def conversation(question: str, url: str) -> list[dict[str, Any]]:
    """The messages of `LLM.chat` with one image."""
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    return [{"role": "user", "content": content}]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stream")
    parser.add_argument("--model", required=True)
    parser.add_argument("--question", required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()

    import base64
    import io

    from PIL import Image
    from vllm import LLM

    model = LLM(model=arguments.model, limit_mm_per_prompt={"image": 1})
    with frameshare.open(arguments.stream) as stream:
        for number, image in sampled(stream, arguments.seconds, 1280):
            file = io.BytesIO()
            Image.fromarray(image).save(file, "JPEG")
            url = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
            answer = model.chat(conversation(arguments.question, url))[0]
            print(number, answer.outputs[0].text, flush=True)


if __name__ == "__main__":
    main()
