# SPDX-License-Identifier: MIT
"""Messages are on the wire as the kubelet's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cgpu_kube.node import wire
from cgpu_kube.node.rpc import CallFailed, call

#: Messages with every field that is used, and their bytes by the field numbers of Kubernetes 1.36.
BYTES = [
    (
        wire.plugin.RegisterRequest(
            version="v1beta1",
            endpoint="a",
            resource_name="b",
            options=wire.plugin.DevicePluginOptions(get_preferred_allocation_available=True),
        ),
        b"\x0a\x07v1beta1\x12\x01a\x1a\x01b\x22\x02\x10\x01",
    ),
    (wire.plugin.Device(ID="a", health="b"), b"\x0a\x01a\x12\x01b"),
    (
        wire.plugin.ContainerPreferredAllocationRequest(
            available_deviceIDs=["a"], must_include_deviceIDs=["b"], allocation_size=3
        ),
        b"\x0a\x01a\x12\x01b\x18\x03",
    ),
    (wire.plugin.ContainerAllocateResponse(envs={"a": "b"}), b"\x0a\x06\x0a\x01a\x12\x01b"),
    (
        wire.registration.PluginInfo(type="a", name="b", endpoint="c", supported_versions=["d"]),
        b"\x0a\x01a\x12\x01b\x1a\x01c\x22\x01d",
    ),
    (wire.registration.RegistrationStatus(plugin_registered=True, error="a"), b"\x08\x01\x12\x01a"),
    (wire.dra.Claim(namespace="a", uid="b", name="c"), b"\x0a\x01a\x12\x01b\x1a\x01c"),
    (
        wire.dra.Device(request_names=["a"], pool_name="b", device_name="c", cdi_device_ids=["d"], share_id="e"),
        b"\x0a\x01a\x12\x01b\x1a\x01c\x22\x01d\x2a\x01e",
    ),
    (wire.dra.NodePrepareResourceResponse(error="a"), b"\x12\x01a"),
    (
        wire.dra.NodePrepareResourcesResponse(claims={"a": wire.dra.NodePrepareResourceResponse(error="b")}),
        b"\x0a\x08\x0a\x01a\x12\x03\x12\x01b",
    ),
    (wire.dra.NodeUnprepareResourceResponse(error="a"), b"\x0a\x01a"),
    (
        wire.health.DeviceHealth(
            device=wire.health.DeviceIdentifier(pool_name="a", device_name="b"),
            health=wire.UNHEALTHY,
            last_updated_time=3,
        ),
        b"\x0a\x06\x0a\x01a\x12\x01b\x10\x02\x18\x03",
    ),
    (
        wire.resources.PodResources(name="a", namespace="b", containers=[wire.resources.ContainerResources(name="c")]),
        b"\x0a\x01a\x12\x01b\x1a\x03\x0a\x01c",
    ),
    (wire.resources.ContainerDevices(resource_name="a", device_ids=["b"]), b"\x0a\x01a\x12\x01b"),
]


@pytest.mark.parametrize(("message", "expected"), BYTES, ids=[type(one).__name__ for one, _ in BYTES])
def test_the_bytes_of_a_message(message: object, expected: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "said", [b"", b"no frames at all", b"\0\0\0\4\0\0\0\0\0"], ids=["nothing", "garbage", "settings"]
)
@pytest.mark.parametrize("reads", [False, True])
async def test_a_server_that_ends_amid_a_call_is_a_sentence(tmp_path: Path, said: bytes, reads: bool) -> None:
    """The library raises several of its own, of h2 and of Python, by the moment of the end; the agent goes on."""

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reads:
            await reader.read(64)
        writer.write(said)
        writer.close()

    path = tmp_path / "kubelet.sock"
    async with await asyncio.start_unix_server(ends, path):
        for _ in range(20):
            with pytest.raises(CallFailed, match=r"kubelet\.sock does not answer /v1beta1\.Registration/Register: ."):
                await call(path, "/v1beta1.Registration/Register", wire.plugin.RegisterRequest(),
                           wire.plugin.Empty, timeout_s=5.0)  # fmt: skip
    with pytest.raises(CallFailed, match="No such file"):
        await call(tmp_path / "none", "/v1beta1.Registration/Register", wire.plugin.RegisterRequest(),
                   wire.plugin.Empty)  # fmt: skip
