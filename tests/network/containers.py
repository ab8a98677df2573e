#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The manifests of examples/camera-ingest/deploy: their schemas, and their namespaces, users and mounts.

An exporter and readers run as the manifests say, without a container engine. Run by `make test-network`, as root, with a
Python that has the packages of containers.txt. Prints PASS, FAIL or SKIP for each test.
"""

import dataclasses
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
EXPORT = "gst-launch-1.0 -q videotestsrc is-live=true ! video/x-raw,width=320,height=240 ! framesharesink stream=cam0"
READ = "gst-launch-1.0 -q framesharesrc stream=cam0 connection-timeout=10000000000 ! identity eos-after=20 ! fakesink"


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

    def namespaces(self, container):
        """Returns the command that enters the namespaces: those with one name are made once."""
        shared = []
        for kind, name in (("pid", container.pid), ("ipc", container.ipc), ("net", container.network)):
            key = f"{kind}:{name}"
            if key not in self.holders:
                words = ["unshare", f"--{kind}", "--fork", "--kill-child", "sleep", "infinity"]
                self.holders[key] = subprocess.Popen(words)
            place = Path(f"/proc/{self.holders[key].pid}/ns")
            entry = place / ("pid_for_children" if kind == "pid" else kind)
            wait_for(
                f"namespace {key}",
                lambda: entry.exists() and not entry.samefile(f"/proc/self/ns/{entry.name}"),
            )
            shared.append(f"--{kind}={entry}")
        own = ["unshare", "--mount", "--uts", "--fork", "--kill-child"]
        return ["nsenter", *shared, *own]

    def start(self, container, name, command):
        """Starts a command in a container; its output goes to NAME.log."""
        root, shm, streams = (
            self.folder / part
            for part in (f"{name}.root", f"shm-{container.ipc}".replace("/", "-"), "streams")
        )
        for folder, mode in ((root, 0o755), (shm, 0o1777), (streams, 0o700)):
            if not folder.exists():
                folder.mkdir()
                folder.chmod(mode)
        if streams.stat().st_uid == 0:
            os.chown(streams, container.user, container.user)
        environment = {
            "PATH": "/usr/bin:/bin",
            "GST_PLUGIN_PATH": TARGET / "gstreamer-1.0",
            "GST_REGISTRY": "/tmp/registry.bin",
            "LD_LIBRARY_PATH": TARGET / "simcuda",
        }
        mounts = []
        if "streams" in container.mounts:
            environment["XDG_RUNTIME_DIR"] = container.mounts["streams"]
            mounts = [f"{streams}:{container.mounts['streams']}"]
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

    def export(self, container, command=EXPORT):
        exporter = self.start(container, "exporter", command)
        socket = self.folder / "streams" / "frameshare" / "cam0.sock"
        wait_for("the stream", lambda: socket.exists() or exporter.poll() is not None)
        assert exporter.poll() is None, self.log("exporter").read_text()

    def read(self, container, name, command=READ):
        """Returns the output of a reader, which has to succeed."""
        status, output = self.try_to_read(container, name, command)
        assert status == 0, f"{name}: {output[-600:]} {self.log('exporter').read_text()[-300:]}"
        return output

    def try_to_read(self, container, name, command=READ):
        status = self.start(container, name, command).wait(PATIENCE)
        return status, self.log(name).read_text()


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
    examples = TARGET / "debug" / "examples"
    if not (TARGET / "simcuda" / "libcuda.so.1").exists() or not (examples / "gpu-read").exists():
        raise Skipped("the simulated driver and the examples gpu-export and gpu-read are not built")
    with Engine() as engine:
        engine.export(of("decode", containers), f"{examples}/gpu-export cam0")
        output = engine.read(of("model", containers), "model", f"{examples}/gpu-read cam0")
        assert "90 frames, 0 lost" in output, output[-300:]


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
    """`camera-ingest check` accepts the site of compose; the ConfigMap has the same, but for paths of passwords."""
    ingest = TARGET / "debug" / "camera-ingest"
    with tempfile.TemporaryDirectory() as folder:
        password, file = Path(folder) / "password", Path(folder) / "camera-ingest.toml"
        password.write_text("secret")
        file.write_text(
            (DEPLOY / "camera-ingest.toml").read_text().replace("/run/secrets/cam0", str(password))
        )
        plan = run(ingest, "check", file)
        assert "secret" not in plan
        file.write_text(file.read_text().replace("folder =", "no-such-key ="))
        refused = subprocess.run([ingest, "check", file], capture_output=True)
        assert refused.returncode != 0, "a wrong key is not found"
    resources = yaml.safe_load_all((KUBERNETES / "site.yaml").read_text())
    maps = [resource for resource in resources if resource["kind"] == "ConfigMap"]
    sites = [
        tomllib.loads(maps[0]["data"]["camera-ingest.toml"]),
        tomllib.loads((DEPLOY / "camera-ingest.toml").read_text()),
    ]
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
    tests = {"containers-schemas": schemas, "containers-configuration-is-valid": configuration_is_valid}
    for name, containers in files.items():
        tests[f"containers-every-role-reads/{name}"] = lambda containers=containers: every_role_reads(
            containers
        )
        tests[f"containers-others-are-refused/{name}"] = lambda containers=containers: others_are_refused(
            containers
        )
        if name.endswith("-gpu"):
            tests[f"containers-model-reads-gpu-memory/{name}"] = lambda containers=containers: (
                model_reads_gpu_memory(containers)
            )
    main(tests)
