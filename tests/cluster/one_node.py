# SPDX-License-Identifier: MIT
"""A Kubernetes cluster of one node on this machine: etcd, the control plane, containerd and a kubelet.

The programs are those of scripts/setup-kube and Debian's containerd. Each is a process that can be killed and started
again by name. The kubelet writes kernel settings, cgroups and /var/lib/kubelet: it runs in a virtual machine or in
namespaces of its own (`namespace`), never on the machine itself. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
PROGRAMS = REPO / "build/kube/bin"
NODE = "n1"
ADDRESS = "10.9.0.1"  # of the node, on `lo`: the API server refuses to advertise a loopback address
SERVER = f"https://{ADDRESS}:6443"
USERS = {  # token = name: Kubernetes' own roles are bound to these names and groups
    "admin": ("admin", "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "scheduler": ("system:kube-scheduler", ""),
    "controllers": ("controllers", "system:masters"),  # in place of a service account for each controller
}
#: What pods of these tests need; the others would only take time of an emulated processor.
CONTROLLERS = ("serviceaccount", "serviceaccount-token", "root-ca-cert-publisher", "job", "statefulset", "daemonset",
               "replicaset", "deployment", "garbagecollector", "podgc", "nodelifecycle", "namespace")  # fmt: skip

#: What they and these programs read; every further group costs the API server seconds to start there.
API_GROUPS = ("v1", "admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1",
              "apps/v1", "batch/v1", "coordination.k8s.io/v1", "events.k8s.io/v1", "node.k8s.io/v1", "policy/v1beta1",
              "rbac.authorization.k8s.io/v1", "scheduling.k8s.io/v1", "storage.k8s.io/v1")  # fmt: skip

Object = dict[str, Any]


class Timeout(AssertionError):
    """Something did not happen in time."""


def until(check: Callable[[], Any], what: str, seconds: float, pause_s: float = 0.2) -> Any:
    """The first true value that `check` returns. Raises Timeout."""
    end = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > end:
            raise Timeout(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause_s)
    return found


class ApiFailure(Exception):
    """The API server refused a request; `status` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass
class Api:
    """The API server's JSON, as an administrator."""

    ca: Path
    token: str = "admin"

    def __post_init__(self) -> None:
        self._tls = ssl.create_default_context(cafile=str(self.ca))

    def raw(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> bytes:
        request = urllib.request.Request(
            SERVER + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": kind},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise ApiFailure(error.code, error.read().decode(errors="replace")) from error

    def __call__(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        found: Object = json.loads(self.raw(method, path, body, kind))
        return found

    def is_ready(self) -> bool:
        try:
            return self.raw("GET", "/readyz") == b"ok"
        except (OSError, ApiFailure):
            return False

    def node(self) -> Object:
        return self("GET", f"/api/v1/nodes/{NODE}")

    def node_is_ready(self) -> bool:
        try:
            conditions = self.node()["status"]["conditions"]
        except (KeyError, ApiFailure, OSError):
            return False
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def pods(self, namespace: str = "default", selector: str = "") -> list[Object]:
        items: list[Object] = self("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
        return items

    def pod(self, name: str, namespace: str = "default") -> Object:
        return self("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def create(self, body: Object, namespace: str = "default") -> Object:
        """An object as YAML has it, in `namespace` if it names none. Of kinds that end in a plain s in the plural."""
        group, kind = body["apiVersion"], body["kind"]
        base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        plural = kind.lower() + "s"
        cluster_wide = kind.startswith("Cluster") or kind == "Namespace"
        where = "" if cluster_wide else f"/namespaces/{body.get('metadata', {}).get('namespace', namespace)}"
        return self("POST", f"{base}{where}/{plural}", body)

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        try:
            self("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")
        except ApiFailure as error:
            if error.status != 404:
                raise


@dataclass
class Cluster:
    """Processes by name. `state` is an empty folder, on a file system that can hold an overlay's upper layer."""

    state: Path
    logs: Path
    runtime: Path  # what containerd starts every container with
    qos_cgroups: bool = True  # cgroups of pods and classes below /kubepods; needs cgroup v2 or a machine of its own
    scheduler_extenders: Sequence[Object] = ()
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _words: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)

    # ---- files ----

    @property
    def ca(self) -> Path:
        return self.state / "server.crt"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd/sock"

    def kubeconfig(self, user: str) -> Path:
        return self.state / f"{user}.kubeconfig"

    def api(self) -> Api:
        return Api(self.ca)

    def lay(self) -> None:
        """Keys, tokens and configurations."""
        self.state.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._make_keys()
        (self.state / "tokens.csv").write_text(
            "".join(f'{token},{name},{name},"{groups}"\n' for token, (name, groups) in USERS.items())
        )
        for user in USERS:
            self.write_login(user, user)
        (self.state / "kubelet.yaml").write_text(json.dumps(self._kubelet_configuration()))
        (self.state / "scheduler.yaml").write_text(json.dumps(self._scheduler_configuration()))
        (self.state / "containerd").mkdir(exist_ok=True)
        (self.state / "containerd/config.toml").write_text(self._containerd_configuration())
        (self.state / "cni").mkdir(exist_ok=True)
        (self.state / "cni/10-pods.conflist").write_text(json.dumps(NETWORK))

    def _make_keys(self) -> None:
        """A certificate of the API server, which signs itself, and the key of service accounts' tokens."""
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        names = f"subjectAltName=IP:{ADDRESS},IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes.default.svc"
        must("openssl", "req", "-x509", *new_key, "-days", "30", "-subj", "/CN=kubernetes", "-addext", names,
              "-keyout", str(self.state / "server.key"), "-out", str(self.ca))  # fmt: skip
        must("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self.state / "sa.key"))

    def write_login(self, user: str, token: str) -> Path:
        """A kubeconfig file."""
        login = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": SERVER, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
            "current-context": "c",
        }
        self.kubeconfig(user).write_text(json.dumps(login))
        return self.kubeconfig(user)

    def _kubelet_configuration(self) -> Object:
        unmanaged = {"cgroupsPerQOS": False, "enforceNodeAllocatable": []}
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "staticPodPath": str(self.state / "manifests"),
            "maxPods": 250,
            # Two minutes by default: on an emulated processor the kubelet gave starts up in their middle.
            "runtimeRequestTimeout": "15m",
            "hairpinMode": "none",
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "10Mi"},
            "imageGCHighThresholdPercent": 100,
            "protectKernelDefaults": False,
            "tlsCertFile": str(self.ca),
            "tlsPrivateKeyFile": str(self.state / "server.key"),
            **({} if self.qos_cgroups else unmanaged),
        }

    def _scheduler_configuration(self) -> Object:
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig("scheduler"))},
            "leaderElection": {"leaderElect": False},
            "extenders": list(self.scheduler_extenders),
        }

    def _containerd_configuration(self) -> str:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""version = 2
root = "/var/lib/containerd"
state = "{self.state}/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs"]
[grpc]
address = "{self.containerd_socket}"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{self.state}/cni"
[{cri}.containerd]
default_runtime_name = "nvidia"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.nvidia.options]
BinaryName = "{self.runtime}"
"""

    # ---- processes ----

    def command(self, name: str) -> list[str]:
        """The command line of one of the cluster's own programs."""
        state = str(self.state)
        commands = {
            "etcd": [
                *(
                    str(PROGRAMS / "etcd"),
                    "--data-dir",
                    f"{state}/etcd",
                    "--listen-client-urls",
                    "http://127.0.0.1:2379",
                ),
                *("--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380"),
            ],
            "apiserver": [
                *(str(PROGRAMS / "kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443"),
                *(
                    f"--advertise-address={ADDRESS}",
                    "--service-cluster-ip-range=10.96.0.0/24",
                    "--allow-privileged=true",
                ),
                *(f"--tls-cert-file={self.ca}", f"--tls-private-key-file={state}/server.key"),
                *(f"--token-auth-file={state}/tokens.csv", "--authorization-mode=Node,RBAC"),
                *("--service-account-issuer=https://kubernetes.default.svc", f"--cert-dir={state}"),
                *(f"--runtime-config=api/all=false,{','.join(f'{one}=true' for one in API_GROUPS)}",),
                *("--enable-priority-and-fairness=false", "--disable-admission-plugins=DefaultIngressClass"),
                *(f"--service-account-signing-key-file={state}/sa.key", f"--service-account-key-file={state}/sa.key"),
            ],
            "controllers": [
                *(str(PROGRAMS / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig('controllers')}"),
                *(f"--controllers={','.join(CONTROLLERS)}", "--leader-elect=false", "--secure-port=0", "--port=0"),
                *(f"--service-account-private-key-file={state}/sa.key", f"--root-ca-file={self.ca}"),
            ],
            "scheduler": [
                str(PROGRAMS / "kube-scheduler"),
                f"--config={state}/scheduler.yaml",
                "--secure-port=0",
                "--port=0",
            ],
            "containerd": ["containerd", "--config", f"{state}/containerd/config.toml"],
            "kubelet": [
                *(
                    str(PROGRAMS / "kubelet"),
                    f"--config={state}/kubelet.yaml",
                    f"--kubeconfig={self.kubeconfig('kubelet')}",
                ),
                *(f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", "--container-runtime=remote"),
                f"--container-runtime-endpoint=unix://{self.containerd_socket}",
            ],
        }
        return commands[name]

    def start(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> None:
        """One of the cluster's own programs, or another one by its command line. It outlives no Cluster.stop()."""
        words = list(command) or self.command(name)
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "GOMAXPROCS": "2", **(env or {})},
                start_new_session=True,
            )
        self._words[name] = (words, dict(env or {}))

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        """Signals the process and waits for its end; what it has started lives on."""
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(60)

    def kill_child(self, name: str) -> None:
        """SIGKILL of the process that it has started and starts again, and waits for another one."""
        listed = Path(f"/proc/{self.processes[name].pid}/task/{self.processes[name].pid}/children")
        old = listed.read_text().split()
        os.kill(int(old[0]), signal.SIGKILL)
        until(lambda: listed.read_text().split() not in ([], old), f"another process of {name}", 60, 0.05)

    def forget(self, name: str) -> None:
        """It is not to be revived."""
        self._words.pop(name, None)

    def start_again(self, name: str) -> None:
        """As it was started."""
        words, env = self._words[name]
        self.start(name, *words, env=env)

    def revive(self) -> None:
        """Starts again what does not run."""
        for name in self._words:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.start_again(name)

    def dead(self) -> list[str]:
        """Programs that ended by themselves."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def check_alive(self) -> bool:
        """True. Raises AssertionError with the end of the log of a program that ended by itself."""
        for name in self.dead():
            tail = "\n".join((self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-5:])
            raise AssertionError(f"{name} ended with status {self.processes[name].returncode}:\n{tail}")
        return True

    def stop(self) -> None:
        """All of it, the kubelet first; containers are killed by whoever owns the machine."""
        for name in list(reversed(self.processes)):
            process = self.processes.pop(name)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)

    def up(self, seconds: float = 240) -> Api:
        """Starts everything, without pods' images, and waits for a ready node."""
        self.lay()
        must("ip", "link", "set", "lo", "up")
        subprocess.run(["ip", "addr", "add", f"{ADDRESS}/32", "dev", "lo"], check=False, stderr=subprocess.DEVNULL)
        (self.state / "manifests").mkdir(exist_ok=True)
        for name in ("etcd", "containerd", "apiserver"):
            self.start(name)
        api = self.api()
        until(lambda: self.check_alive() and api.is_ready(), "the API server is ready", seconds)
        for name in ("kubelet", "controllers", "scheduler"):
            self.start(name)
        until(lambda: self.check_alive() and api.node_is_ready(), "the node is ready", seconds)
        return api


#: Pods have an address, and nothing to reach by it but the node.
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {"type": "host-local", "subnet": "10.244.0.0/16", "dataDir": "/run/cni"},
        }
    ],
}
PAUSE_IMAGE = "localhost/box:1"  # a static `sleep` holds the pod's namespaces


def must(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}: {done.stderr or done.stdout}"
    return done.stdout
