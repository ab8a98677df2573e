#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The manifests of examples/camera-ingest/deploy: their schemas, namespaces, users and mounts.

An exporter and readers run as the manifests say, without a container engine. Run by `make test-network`,
as root, with a Python that has the packages of containers.txt. Prints PASS, FAIL or SKIP for each test.
"""

import dataclasses
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml
from hosts import PATIENCE, ROOT, TARGET, Failed, Skipped, main, run, wait_for
from manifests import Container, compose, kubernetes

DEPLOY = ROOT / "examples" / "camera-ingest" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CONTAINER = Path(__file__).resolve().parent / "container.sh"
COMPOSE = [DEPLOY / name for name in ("compose.yaml", "compose.gpu.yaml", "compose.mps.yaml")]
EXPORT = (
    "gst-launch-1.0 -q videotestsrc is-live=true ! video/x-raw,width=320,height=240 "
    "! framesharesink stream=cam0"
)
READ = (
    "gst-launch-1.0 -q framesharesrc stream={stream} connection-timeout=10000000000 "
    "! identity eos-after=20 ! fakesink"
)
GPU = TARGET / "debug" / "examples"
INGEST = TARGET / "debug" / "camera-ingest"
SITE = """
[cameras]
cam0 = "pattern:ball?width=320&height=240&rate=15"
[recording]
folder = "/recordings"
segment = "2s"
"""


class Engine:
    """Runs containers; as a context, which ends them."""

    def __enter__(self):
        if os.geteuid() != 0:
            raise Skipped("namespaces and mounts need root")
        if subprocess.run(["unshare", "-mpinuf", "true"], capture_output=True).returncode != 0:
            raise Skipped("this machine makes no namespaces")
        self.folder = Path(tempfile.mkdtemp(prefix="fs-"))
        self.folder.chmod(0o711)
        self.running, self.holders = [], {}
        return self

    def __exit__(self, *_):
        for process in [*self.running, *self.holders.values()]:
            process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder)

    def namespace(self, kind, name):
        """Returns the file of the namespace with this name, which a process holds."""
        key = f"{kind}:{name}"
        if key not in self.holders:
            words = ["unshare", f"--{kind}", "--fork", "--kill-child", "sleep", "infinity"]
            self.holders[key] = subprocess.Popen(words)
        entry = "pid_for_children" if kind == "pid" else kind
        file = Path(f"/proc/{self.holders[key].pid}/ns/{entry}")
        wait_for(f"namespace {key}", lambda: file.exists() and not file.samefile(f"/proc/self/ns/{entry}"))
        return file

    def namespaces(self, container):
        """Returns the command that enters the namespaces: those with one name are shared."""
        shared = {"pid": container.pid, "ipc": container.ipc, "net": container.network}
        entered = [f"--{kind}={self.namespace(kind, name)}" for kind, name in shared.items()]
        return ["nsenter", *entered, "unshare", "--mount", "--uts", "--fork", "--kill-child"]

    def folder_of(self, name, mode, user=0):
        """Returns a folder of the host, and makes it if it is missing."""
        folder = self.folder / name.replace("/", "-")
        if not folder.exists():
            folder.mkdir()
            folder.chmod(mode)
            os.chown(folder, user, user)
        return folder

    def start(self, container, name, command):
        """Starts a command in a container; its output goes to NAME.log."""
        root = self.folder_of(f"{name}.root", 0o755)
        shm = self.folder_of(f"shm-{container.ipc}", 0o1777)
        environment = {
            "PATH": "/usr/bin:/bin",
            "GST_PLUGIN_PATH": TARGET / "gstreamer-1.0",
            "GST_REGISTRY": "/tmp/registry.bin",
            "LD_LIBRARY_PATH": TARGET / "simcuda",
        }
        mounts = [f"{self.folder_of('site', 0o755)}:/site"]
        for volume in container.mounts.keys() & {"streams", "recordings"}:
            mounts.append(f"{self.folder_of(volume, 0o700, container.user)}:{container.mounts[volume]}")
        if "streams" in container.mounts:
            environment["XDG_RUNTIME_DIR"] = container.mounts["streams"]
        settings = [f"{key}={value}" for key, value in environment.items()]
        words = [*self.namespaces(container), CONTAINER, root, container.user, shm, ROOT, *mounts, "--"]
        if not container.is_user_mapped:
            command = f"unshare --user {command}"
        words += ["env", "-i", *settings, *command.split()]
        with open(self.log(name), "w") as log:
            process = subprocess.Popen(
                list(map(str, words)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.running.append(process)
        return process

    def log(self, name):
        return self.folder / f"{name}.log"

    def export(self, container, command=EXPORT, stream="cam0"):
        """Starts an exporter, and waits until it shares the stream."""
        exporter = self.start(container, f"{container.role}-{stream}", command)
        socket = self.folder / "streams" / "frameshare" / f"{stream}.sock"
        wait_for(stream, lambda: socket.exists() or exporter.poll() is not None)
        assert exporter.poll() is None, self.logs()

    def read(self, container, name, command=READ.format(stream="cam0")):
        """Returns the output of a reader, which has to succeed."""
        status, output = self.try_to_read(container, name, command)
        assert status == 0, f"{name}: {status} {self.logs()}"
        return output

    def try_to_read(self, container, name, command=READ.format(stream="cam0")):
        status = self.start(container, name, command).wait(PATIENCE)
        return status, self.log(name).read_text()

    def logs(self):
        return "".join(f"\n{file.name}: {file.read_text()[-400:]}" for file in self.folder.glob("*.log"))


def schemas():
    run(
        sys.executable.replace("python3", "check-jsonschema"),
        "--builtin-schema",
        "vendor.compose-spec",
        *COMPOSE,
    )
    validate = [
        sys.executable.replace("python3", "kubernetes-validate"),
        "--strict",
        "--kubernetes-version",
        "1.37",
    ]
    run(*validate, *sorted(KUBERNETES.glob("*.yaml")))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as wrong:
        wrong.write((KUBERNETES / "cam0.yaml").read_text().replace("mountPath", "mountpath"))
        wrong.flush()
        refused = subprocess.run([*validate, wrong.name], capture_output=True)
        assert refused.returncode != 0, "a wrong key is not found"


def of(role: str, containers: list[Container]) -> Container:
    return next(container for container in containers if container.role == role)


def every_role_reads(containers):
    """Each other role reads the frames of `decode`."""
    with Engine() as engine:
        engine.export(of("decode", containers))
        for container in containers:
            if container.role != "decode":
                engine.read(container, container.role)


def model_reads_gpu_memory(containers):
    """The model reads the simulated GPU's memory (vmm, timelines) in place."""
    with Engine() as engine:
        engine.export(of("decode", containers), f"{GPU}/gpu-export cam0")
        output = engine.read(of("model", containers), "model", f"{GPU}/gpu-read cam0")
        assert "90 frames, 0 lost" in output, output[-300:]


def roles_work_together(containers):
    """The roles themselves: a test pattern is received, scored and recorded."""
    with Engine() as engine:
        (engine.folder_of("site", 0o755) / "site.toml").write_text(SITE)
        engine.export(of("capture", containers), f"{INGEST} capture --config /site/site.toml cam0")
        engine.export(
            of("motion", containers), f"{INGEST} motion --config /site/site.toml cam0", "cam0.motion"
        )
        engine.start(of("record", containers), "record", f"{INGEST} record --config /site/site.toml cam0")
        engine.read(of("wall", containers), "wall", READ.format(stream="cam0.motion"))
        recordings = engine.folder_of("recordings", 0o700, of("record", containers).user)
        wait_for(
            "a recording", lambda: [file for file in recordings.rglob("*.mkv") if file.stat().st_size > 0]
        )


def others_are_refused(containers):
    """Negative controls: another user, another user namespace, and no folder of sockets."""
    decode, motion = of("decode", containers), of("motion", containers)
    with Engine() as engine:
        engine.export(decode)
        for name, changed, reason in (
            ("another-user", {"user": 1001}, "denied"),
            ("unmapped", {"is_user_mapped": False}, "user namespace"),
            ("no-folder", {"mounts": {}}, "cam0"),
        ):
            status, output = engine.try_to_read(dataclasses.replace(motion, **changed), name)
            assert status != 0 and reason in output.lower(), f"{name}: {status} {output[-600:]}"
        engine.read(motion, "motion")


def configuration_is_valid():
    """`camera-ingest check` accepts the site; the ConfigMap's differs in paths of passwords alone."""
    with tempfile.TemporaryDirectory() as folder:
        password, file = Path(folder) / "password", Path(folder) / "camera-ingest.toml"
        password.write_text("secret")
        file.write_text(
            (DEPLOY / "camera-ingest.toml").read_text().replace("/run/secrets/cam0", str(password))
        )
        plan = run(INGEST, "check", file)
        assert "secret" not in plan
        file.write_text(file.read_text().replace("folder =", "no-such-key ="))
        refused = subprocess.run([INGEST, "check", file], capture_output=True)
        assert refused.returncode != 0, "a wrong key is not found"
    resources = yaml.safe_load_all((KUBERNETES / "site.yaml").read_text())
    maps = [resource for resource in resources if resource["kind"] == "ConfigMap"]
    texts = [maps[0]["data"]["camera-ingest.toml"], (DEPLOY / "camera-ingest.toml").read_text()]
    sites = [tomllib.loads(text) for text in texts]
    for site in sites:
        del site["cameras"]["cam0"]["password-file"]
    if sites[0] != sites[1]:
        raise Failed(f"{sites[0]} and {sites[1]}")


if __name__ == "__main__":
    files = {
        "compose": compose(COMPOSE[0]),
        "compose-gpu": compose(*COMPOSE),
        "kubernetes": kubernetes(KUBERNETES / "cam0.yaml", KUBERNETES / "site.yaml"),
        "kubernetes-gpu": kubernetes(KUBERNETES / "cam0-gpu.yaml", KUBERNETES / "site.yaml"),
    }
    tests = {"schemas": schemas, "configuration-is-valid": configuration_is_valid}
    for name, containers in files.items():
        for test in (every_role_reads, roles_work_together, others_are_refused, model_reads_gpu_memory):
            if test is not model_reads_gpu_memory or name.endswith("-gpu"):
                tests[f"{test.__name__.replace('_', '-')}/{name}"] = functools.partial(test, containers)
    tests = {f"containers-{name}": test for name, test in tests.items()}
    main(tests)
