# SPDX-License-Identifier: MIT OR Apache-2.0
"""Case: conversion to RGB of each format on the GPU, against the reference of the package's tests."""

import json

import examples
from cases import case


@case("rgb-conversions", 240)
def rgb_conversions():
    program = examples.ROOT / "crates" / "frameshare-python" / "tests" / "rgb_gpu.py"
    with examples.camera():
        lines = [json.loads(line) for line in examples.output_of(program, "--stream", "cam0", timeout=200)]
    # A library that is missing has one line.
    converted = [line for line in lines if "skipped" not in line]
    assert converted, lines
    worst = max(line.get("error", 0) for line in converted)
    return {"conversions": len(converted), "skipped": len(lines) - len(converted), "error": worst}
