# SPDX-License-Identifier: MIT
"""The few calls of the container runtime interface that a kubelet makes for a pod (cri-api, runtime/v1/api.proto).

Messages are encoded and decoded by field number: generated code for all of the API would serve six of them.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence

import engines_used
import grpc
from docker_box import until

Field = tuple[int, "int | str | bytes"]
Done = subprocess.CompletedProcess[str]
SERVICE = "/runtime.v1.RuntimeService/"
HOST_NETWORK = 2  # NamespaceMode.NODE
TIMEOUT_S = 240


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields: Field) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        else:
            size = number()
            yield tag >> 3, data[at : at + size]
            at += size


class Cri:
    """One pod at a time is enough here. Under the systemd cgroup driver a pod is in a slice, which a kubelet names.

    containerd listens before its CRI plugin has found the pods of the last life, and until then every call fails:
    hence the wait for the first call that succeeds.
    """

    def __init__(self, address: str, slice_name: str = "") -> None:
        self._channel = grpc.insecure_channel(f"unix://{address}")
        self._slice = slice_name
        until(self.serves, f"the CRI plugin of {address} serves")

    def _call(self, method: str, *request: Field) -> dict[int, int | bytes]:
        ask = self._channel.unary_unary(SERVICE + method, bytes, bytes)
        # After a restart of the engine the channel connects again by itself.
        return dict(fields(ask(message(*request), timeout=TIMEOUT_S, wait_for_ready=True)))

    def _pod(self, name: str) -> bytes:
        metadata = message((1, name), (2, f"{name}-uid"), (3, "default"))
        namespaces = message((1, HOST_NETWORK))
        return message((1, metadata), (8, message((1, self._slice), (2, message((1, namespaces))))))

    def serves(self) -> bool:
        try:
            self._call("ListPodSandbox")
        except grpc.RpcError:
            return False
        return True

    def create(
        self,
        pod: str,
        pod_name: str,
        name: str,
        image: str,
        command: Sequence[str],
        env: dict[str, str],
        cdi: Sequence[str] = (),
    ) -> str:
        engines_used.note("containerd")
        config = message(
            (1, message((1, name))),
            (2, message((1, image))),
            *((3, word) for word in command),
            *((6, message((1, key), (2, value))) for key, value in env.items()),
            (15, message((2, message((3, message((1, HOST_NETWORK))))))),
            *((17, message((1, device))) for device in cdi),
        )
        found = self._call("CreateContainer", (1, pod), (2, config), (3, self._pod(pod_name)))
        return str(found[1], "ascii")

    def start(self, container: str) -> None:
        self._call("StartContainer", (1, container))

    def stop(self, container: str) -> None:
        self._call("StopContainer", (1, container))

    def remove(self, container: str) -> None:
        self._call("RemoveContainer", (1, container))

    def run_in(self, container: str, *command: str) -> Done:
        found = self._call("ExecSync", (1, container), *((2, word) for word in command), (3, TIMEOUT_S))
        status, *said = found.get(3, 0), found.get(1, b""), found.get(2, b"")
        assert isinstance(status, int)
        return Done(command, status, *(str(text, "utf-8") for text in said))

    @contextlib.contextmanager
    def pod(self, name: str, handler: str) -> Iterator[str]:
        """Its id; stopped and removed at the end of the block."""
        found = str(self._call("RunPodSandbox", (1, self._pod(name)), (2, handler))[1], "ascii")
        try:
            yield found
        finally:
            self._call("StopPodSandbox", (1, found))
            self._call("RemovePodSandbox", (1, found))
