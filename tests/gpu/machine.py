#!/usr/bin/env python3
"""Print one JSON line about this machine: kernel, driver, GPUs, and the system calls that frameshare can use here."""

import fcntl
import json
import os
import re
import socket
import subprocess

SO_PEERPIDFD = 77  # Linux 6.5
F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1


def works(call):
    """'yes', or why not."""
    try:
        call()
        return "yes"
    except (OSError, AttributeError) as error:
        return str(error)


def peer_pidfd():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))


def seal():
    memory = os.memfd_create("probe", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, 4096)
        fcntl.fcntl(memory, 1033, F_SEAL_FUTURE_WRITE)  # F_ADD_SEALS
        os.write(memory, b"x")
    except PermissionError:
        return  # the seal holds
    finally:
        os.close(memory)
    raise OSError("the seal was taken and does not hold")


def driver():
    try:
        with open("/proc/driver/nvidia/version", encoding="ascii") as file:
            return re.search(r"\b\d+\.\d+(\.\d+)?\b", file.read()).group()
    except (OSError, AttributeError):
        return None


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True)
        return re.findall(r"GPU \d+: (.*?) \(", listed.stdout)
    except (OSError, subprocess.SubprocessError):
        return []


print(
    json.dumps(
        {
            "platform": {
                "kernel": os.uname().release,
                "driver": driver(),
                "gpus": gpus(),
                "cores": os.cpu_count(),
                "pidfd": works(lambda: os.close(os.pidfd_open(os.getpid()))),
                "SO_PEERPIDFD": works(peer_pidfd),
                "F_SEAL_FUTURE_WRITE": works(seal),
                "dev_shm_mib": os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize >> 20,
            }
        }
    )
)
