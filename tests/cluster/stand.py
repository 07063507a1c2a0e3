# SPDX-License-Identifier: MIT
"""A node with two GPUs of different size in a cluster: Kubernetes, cgpud, `cgpu-kube node` and `cgpu-kube extender`.

With cgpu_km and the simulated driver (in the virtual machine), or with a kernel in memory (`fake_kernel`) on any
machine: then every step of a pod is taken, and nothing is enforced.

What a test compares comes from the API server, from the container itself and from the kernel; sizes are computed here
by the documented rule.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import image_tar
import yaml
from cluster.one_node import NODE, PAUSE_IMAGE, PROGRAMS, REPO, Api, ApiFailure, Cluster, Object, must, until

GPU_MIB = (15109, 81559)  # as tests/vm/harness/suite.py starts the simulated driver
DEV = (15, 80)  # their GiB, rounded, which programs read as ALIYUN_COM_GPU_MEM_DEV
MIB = 1 << 20
RESOURCE = "aliyun.com/gpu-mem"
CORE = "aliyun.com/gpu-core.percentage"
MAX_INST = 20  # the default of cgpu_km, which nothing here changes
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
ALLOCATION = "scheduler.framework.gpushare.allocation"
STATE = Path("/run/kube")
SLICES = Path("/run/kube/slices.json")  # of fake_kernel
PROC = Path("/proc/cgpu_km")
RUNTIME_CONF = Path("/etc/cgpu/runtime.conf")
DAEMON_CONF = Path("/etc/cgpu/cgpu.toml")
SLEEP = ("/bin/sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait")  # a process 1 that takes SIGTERM
PYTHON = sys.executable
CGPU_KUBE = str(Path(sys.executable).parent / "cgpu-kube")
INSPECT = str(Path(sys.executable).parent / "kubectl-inspect-cgpu")
EXTENDER = "127.0.0.1:32766"
DEPLOY = REPO / "deploy/kubernetes"
APPLETS = ("sh", "cat", "ls", "sleep", "true", "echo", "stat")
_names = itertools.count(1)


@dataclass(frozen=True)
class Slice:
    """What the kernel enforces for a container on one GPU."""

    gpu: int
    bytes: int
    weight: int = 1


# ---- objects ----


def container(name: str, *command: str, gib: int = 0, core: int = 0, **more: Any) -> Object:
    """One container of a pod; `gib` of the shared resource and `core` % of compute, 0 for none."""
    found: Object = {"name": name, "image": PAUSE_IMAGE, "command": list(command or SLEEP), **more}
    limits = {key: amount for key, amount in ((RESOURCE, gib), (CORE, core)) if amount}
    return {**found, "resources": {"limits": limits}} if limits else found


def pod(name: str, *containers: Object, init: Sequence[Object] = (), **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": list(containers),
            "initContainers": list(init),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,  # with 0 the object goes first, and its containers later
            **spec,
        },
    }


def fresh(stem: str) -> str:
    return f"{stem}-{next(_names)}"


def container_ids(found: Object) -> dict[str, str]:
    """By the container's name, for those that run."""
    states = found.get("status", {}).get("containerStatuses", [])
    return {one["name"]: one["containerID"].partition("://")[2] for one in states if "running" in one["state"]}


def has_ended_container(found: Object) -> bool:
    """Of its main containers, of which none ends by itself."""
    return any("terminated" in one["state"] for one in found.get("status", {}).get("containerStatuses", []))


def annotations(found: Object) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def asked(found: Object, resource: str = RESOURCE) -> dict[str, int]:
    """GiB, or what else the resource counts, by container, of the main containers."""
    limits = {one["name"]: one.get("resources", {}).get("limits", {}) for one in found["spec"]["containers"]}
    return {name: int(limit[resource]) for name, limit in limits.items() if resource in limit}


def given_gpus(found: Object) -> dict[str, int]:
    """The GPU of each main container that asks for one, by both generations of the pod's annotations."""
    allocation = json.loads(annotations(found)[ALLOCATION])
    places = {one["name"]: str(place) for place, one in enumerate(found["spec"]["containers"])}
    gpus = {}
    for name, gib in asked(found).items():
        ((gpu, units),) = allocation.get(name, allocation.get(places[name])).items()
        assert int(units) == gib, allocation
        gpus[name] = int(gpu)
    index = {int(gpu) for gpu in annotations(found)[INDEX].split(",")}
    assert set(gpus.values()) <= index, (index, allocation)
    return gpus


def expected_bytes(gpu: int, gib: int) -> int:
    """docs/user/daemon.md §2: floor(the card's MiB x CONTAINER / DEV) MiB."""
    return GPU_MIB[gpu] * gib // DEV[gpu] * MIB


# ---- the node ----


@dataclass
class Stand:
    """The whole node; `with` brings it up and takes it down. `fake`: without cgpu_km."""

    logs: Path
    fake: bool
    files: dict[str, Path]  # programs of the image, by their path there; static ones
    seconds: float = 120.0  # for whatever a test waits for
    cluster: Cluster = field(init=False)
    api: Api = field(init=False)

    def __enter__(self) -> Stand:
        runtime = REPO / ("build/kube/runtime" if self.fake else "build/bin") / "cgpu-runtime"
        self.cluster = Cluster(
            STATE, self.logs, runtime, qos_cgroups=not self.fake, scheduler_extenders=scheduler_extenders()
        )
        RUNTIME_CONF.parent.mkdir(parents=True, exist_ok=True)
        RUNTIME_CONF.write_text("next = runc\nwait_s = 60\n")
        # An emulated processor is late; percentages of compute need a policy with weights.
        DAEMON_CONF.write_text('nvml_wait_s = 45\nkube_wait_s = 45\n[gpu]\npolicy = "weighted"\n')
        try:
            self._up()
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(self, *why: object) -> None:
        try:
            self.cluster.revive()
            self.clear()
        finally:
            self.cluster.stop()
            RUNTIME_CONF.unlink()
            DAEMON_CONF.unlink()

    def _up(self) -> None:
        STATE.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        daemon = [PYTHON, "-m", "cgpud"]
        if self.fake:
            sizes = ",".join(map(str, GPU_MIB))
            daemon = [PYTHON, str(REPO / "tests/cluster/fake_kernel.py"), str(SLICES), sizes]
        self.cluster.start("cgpud", *daemon)
        self.api = self.cluster.up(self.seconds * 3)
        self.import_image()
        self.label("cgpu")
        for name in ("namespace", "node-rbac", "extender-rbac", "extender-scheduler"):
            for one in yaml.safe_load_all((DEPLOY / f"base/{name}.yaml").read_text()):
                self.api.create(one)
        words = ("extender", "--insecure", f"--listen={EXTENDER}", self._log_in("cgpu-extender"))
        self.cluster.start("extender", CGPU_KUBE, *words)
        self.cluster.start("node", CGPU_KUBE, "node", f"--node-name={NODE}", self._log_in("cgpu-node"))
        until(lambda: self.cluster.check_alive() and self.advertised() > 0, "the node offers its GPUs", self.seconds)
        until(lambda: self._tokens("default", "default"), "pods can have a service account", self.seconds)

    def _tokens(self, namespace: str, account: str) -> list[Object]:
        path = f"/api/v1/namespaces/{namespace}"
        named = self.api("GET", f"{path}/serviceaccounts/{account}").get("secrets", [])
        return [self.api("GET", f"{path}/secrets/{one['name']}") for one in named]

    def _log_in(self, account: str) -> str:
        """The option by which a program of ours is that service account, with the rights of deploy/kubernetes only."""
        secret = until(lambda: self._tokens("cgpu-system", account), f"{account} has a token", self.seconds)[0]
        return f"--kubeconfig={self.cluster.write_login(account, b64decode(secret['data']['token']).decode())}"

    def import_image(self, *names: str) -> None:
        """The image of every pod here, under more names; nothing comes from a registry."""
        archive = STATE / "image.tar"
        archive.write_bytes(image_archive(self.files, (PAUSE_IMAGE, *names)))
        self.ctr("image", "import", str(archive))
        archive.unlink()

    def _containerd_answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect_ex(str(self.cluster.containerd_socket)) == 0

    def ctr(self, *words: str) -> str:
        until(self._containerd_answers, "containerd, which a test may have killed, answers", self.seconds, 0.05)
        return must("ctr", "--address", str(self.cluster.containerd_socket), "--namespace=k8s.io", *words)

    # ---- what there is ----

    def advertised(self) -> int:
        """Of the resource, for all pods together."""
        return int(self.api.node()["status"]["allocatable"].get(RESOURCE, 0))

    def label(self, mode: str) -> None:
        self.api("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"ack.node.gpu.schedule": mode}}},
                 "application/strategic-merge-patch+json")  # fmt: skip

    def offered_mode(self) -> str:
        """As the node publishes it."""
        return str(json.loads(annotations(self.api.node())["cgpu.io/gpus"])["mode"])

    @contextmanager
    def in_mode(self, mode: str) -> Iterator[None]:
        """The empty node with another label, and as it was."""
        before, units = self.offered_mode(), self.advertised()
        self.label(mode)
        try:
            until(lambda: self.offered_mode() == mode and self.advertised() > 0, f"mode {mode}", self.seconds)
            yield
        finally:
            self.clear()
            self.label(before)
            until(lambda: self.offered_mode() == before, f"mode {before}", self.seconds)
            until(lambda: self.advertised() == units, "what it offered", self.seconds)

    def condition(self, kind: str) -> str:
        """The status of a condition of the node; "": it has none."""
        found = self.api.node()["status"]["conditions"]
        return next((str(one["status"]) for one in found if one["type"] == kind), "")

    def log(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text()

    def registrations(self) -> int:
        """How often the plugin has registered with a kubelet, by its log."""
        return self.log("node").count("registered with the kubelet")

    def slices(self) -> dict[str, list[Slice]]:
        """By container id."""
        if self.fake:
            found = json.loads(SLICES.read_text())["slices"]
            return {name: [Slice(*one) for one in ones] for name, ones in found.items()}
        slices: dict[str, list[Slice]] = {}
        for gpu in range(len(GPU_MIB)):
            for path in (PROC / str(gpu)).glob("*/id"):
                try:
                    size, weight = (int((path.parent / name).read_text()) for name in ("memsize", "weight"))
                    one = Slice(gpu, size, weight)
                    slices.setdefault(path.read_text().strip(), []).append(one)
                except OSError:  # it ends meanwhile
                    continue
        return slices

    def sums(self) -> list[int]:
        """Of the limits on each GPU, in bytes."""
        total = [0] * len(GPU_MIB)
        for ones in self.slices().values():
            for one in ones:
                total[one.gpu] += one.bytes
        return total

    def tasks(self) -> dict[str, str]:
        """The first process of each container that runs, by container id, as containerd has them now."""
        rows = [line.split() for line in self.ctr("task", "ls").splitlines()]
        return {row[0]: row[1] for row in rows if row[2:] == ["RUNNING"]}

    def environment(self, container_id: str) -> dict[str, str]:
        """As the runtime has started the container's first process."""
        pids = self.tasks()
        assert container_id in pids, f"{container_id} has no process"
        words = Path(f"/proc/{pids[container_id]}/environ").read_bytes().decode().split("\0")
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def events(self, name: str) -> str:
        """The messages of a pod's events."""
        items = self.api("GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}")["items"]
        return "\n".join(f"{one['reason']}: {one['message']}" for one in items)

    def inspect(self) -> str:
        """What `kubectl inspect cgpu -d` prints."""
        found = os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig("admin")), "HOME": str(STATE)}
        found["PATH"] = f"{PROGRAMS}:{found['PATH']}"
        done = subprocess.run([INSPECT, "-d"], capture_output=True, text=True, env=found, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pending(self) -> dict[str, str]:
        """Pods that wait -> what `kubectl inspect cgpu` prints about each."""
        parts = self.inspect().split("\nPending: default/")[1:]
        return {part.partition("\n")[0].partition(":")[0]: part for part in parts}

    # ---- pods ----

    def pod_names(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.api.pods()}

    def running(self, name: str) -> Object:
        """The pod, when all of its containers run. Fails at once if it has ended."""

        def runs() -> Object | None:
            try:
                found = self.api.pod(name)
            except OSError:
                return None
            assert found["status"].get("phase") not in ("Failed", "Succeeded"), f"{found['status']} {self.events(name)}"
            return found if len(container_ids(found)) == len(found["spec"]["containers"]) else None

        try:
            return until(runs, f"pod {name} runs", self.seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.events(name)}") from None

    def run(self, body: Object) -> Object:
        self.api.create(body)
        return self.running(body["metadata"]["name"])

    def clear(self) -> None:
        """Removes every pod, and waits until no slice is left and no container runs. The kubelet removes a pod after
        its sandbox, and looks for ended ones once a minute: what is left of the pods is removed without it."""
        for kind in ("apps/v1/namespaces/default/deployments", "batch/v1/namespaces/default/jobs"):
            self.api("DELETE", f"/apis/{kind}?propagationPolicy=Background")
        self.api("DELETE", "/api/v1/namespaces/default/pods")
        until(lambda: not self.slices(), "no slice is left", self.seconds)
        until(lambda: not any(map(container_ids, self.api.pods())), "no container runs", self.seconds)
        self.api("DELETE", "/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})
        until(lambda: not self.api.pods(), "no pod is left", self.seconds)

    def check(self, found: Object) -> int:
        """Annotation, environment and kernel agree on every container of a running pod. Returns the first one's GPU."""
        ids, slices = container_ids(found), self.slices()
        sizes, percents, gpus = asked(found), asked(found, CORE), given_gpus(found)
        for name, gib in sizes.items():
            gpu, weight = gpus[name], max(percents.get(name, 0) * MAX_INST // 100, 1)
            expected = Slice(gpu, expected_bytes(gpu, gib), weight)
            assert slices.get(ids[name]) == [expected], (name, expected, slices.get(ids[name]))
            env = self.environment(ids[name])
            seen = {key: env.get(f"ALIYUN_COM_GPU_MEM_{key}") for key in ("IDX", "CONTAINER", "POD", "DEV")}
            want = {"IDX": gpu, "CONTAINER": gib, "POD": sum(sizes.values()), "DEV": DEV[gpu]}
            assert seen == {key: str(value) for key, value in want.items()}, name
        for name in ids.keys() - sizes.keys():
            assert ids[name] not in slices, f"{name} has asked for nothing"
        return gpus[next(iter(sizes))]


@dataclass
class Watch:
    """Reads the kernel's slices all the time, and keeps the most that was given away of each GPU."""

    stand: Stand
    most: list[int] = field(default_factory=lambda: [0] * len(GPU_MIB))
    reads: int = 0

    def __enter__(self) -> Watch:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *why: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.2):
            self.most = [max(pair) for pair in zip(self.most, self.stand.sums(), strict=True)]
            self.reads += 1

    def check(self) -> None:
        assert self.reads
        for most, mib in zip(self.most, GPU_MIB, strict=True):
            assert most <= mib * MIB, f"{most} bytes given away of a GPU with {mib} MiB"


def image_archive(files: dict[str, Path], names: Sequence[str]) -> bytes:
    """The files and busybox's applets."""
    layer = image_tar.rootfs(files, APPLETS, ("tmp", "proc", "dev", "sys", "etc", "run"))
    return image_tar.saved(layer, names, SLEEP)


def scheduler_extenders() -> list[Object]:
    """Those of deploy/kubernetes, at the address that the extender has here, which is this machine's alone: HTTP."""
    found = yaml.safe_load((DEPLOY / "scheduler.yaml").read_text())["extenders"]
    here = {"urlPrefix": f"http://{EXTENDER}/gpushare-scheduler", "enableHTTPS": False}
    return [{key: value for key, value in {**one, **here}.items() if key != "tlsConfig"} for one in found]


AGENT = "agent"  # the second process of cgpu-kube node; the first one serves the kubelet's sockets


def kill_and_revive(stand: Stand, name: str, away_s: float = 0.5) -> None:
    """kill -9, and started again by what watches it: systemd, a DaemonSet, or of the agent cgpu-kube node itself."""
    if name == AGENT:
        stand.cluster.kill_child("node")
        return
    stand.cluster.kill(name)
    time.sleep(away_s)
    stand.cluster.start_again(name)


def pods_of(api: Api) -> Iterator[Object]:
    """Those that are there now; none while the API server does not answer."""
    try:
        yield from api.pods()
    except (OSError, ApiFailure):
        return
