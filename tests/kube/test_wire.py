# SPDX-License-Identifier: MIT
"""The generated code is that of the .proto files, and messages are on the wire as the kubelet's."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from cgpu_kube.node.rpc import CallFailed, call
from cgpu_kube.node.wire import deviceplugin_pb2, dra_pb2, health_pb2, podresources_pb2, registration_pb2

REPO = Path(__file__).resolve().parents[2]
WIRE = REPO / "cgpu_kube/node/wire"


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    subprocess.run([REPO / "scripts/kube-proto", str(tmp_path)], check=True, timeout=60)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in WIRE.glob("*_pb2.py")) and len(made) == 5
    for name in made:
        kept, new = ((directory / name).read_text().splitlines() for directory in (WIRE, tmp_path))
        # The comment and the check at the top name the version of protoc.
        assert [line for line in kept if "AddSerializedFile" in line] == [
            line for line in new if "AddSerializedFile" in line
        ], f"{name}: scripts/kube-proto"


#: Messages with every field that is used, and their bytes by the field numbers of Kubernetes 1.36.
BYTES = [
    (
        deviceplugin_pb2.RegisterRequest(
            version="v1beta1",
            endpoint="a",
            resource_name="b",
            options=deviceplugin_pb2.DevicePluginOptions(get_preferred_allocation_available=True),
        ),
        b"\x0a\x07v1beta1\x12\x01a\x1a\x01b\x22\x02\x10\x01",
    ),
    (deviceplugin_pb2.Device(ID="a", health="b"), b"\x0a\x01a\x12\x01b"),
    (
        deviceplugin_pb2.ContainerPreferredAllocationRequest(
            available_deviceIDs=["a"], must_include_deviceIDs=["b"], allocation_size=3
        ),
        b"\x0a\x01a\x12\x01b\x18\x03",
    ),
    (deviceplugin_pb2.ContainerAllocateResponse(envs={"a": "b"}), b"\x0a\x06\x0a\x01a\x12\x01b"),
    (
        registration_pb2.PluginInfo(type="a", name="b", endpoint="c", supported_versions=["d"]),
        b"\x0a\x01a\x12\x01b\x1a\x01c\x22\x01d",
    ),
    (dra_pb2.Claim(namespace="a", uid="b", name="c"), b"\x0a\x01a\x12\x01b\x1a\x01c"),
    (
        dra_pb2.Device(request_names=["a"], pool_name="b", device_name="c", cdi_device_ids=["d"], share_id="e"),
        b"\x0a\x01a\x12\x01b\x1a\x01c\x22\x01d\x2a\x01e",
    ),
    (dra_pb2.NodePrepareResourceResponse(error="a"), b"\x12\x01a"),
    (dra_pb2.NodeUnprepareResourceResponse(error="a"), b"\x0a\x01a"),
    (
        health_pb2.DeviceHealth(
            device=health_pb2.DeviceIdentifier(pool_name="a", device_name="b"),
            health=health_pb2.UNHEALTHY,
            last_updated_time=3,
        ),
        b"\x0a\x06\x0a\x01a\x12\x01b\x10\x02\x18\x03",
    ),
    (
        podresources_pb2.PodResources(
            name="a", namespace="b", containers=[podresources_pb2.ContainerResources(name="c")]
        ),
        b"\x0a\x01a\x12\x01b\x1a\x03\x0a\x01c",
    ),
    (podresources_pb2.ContainerDevices(resource_name="a", device_ids=["b"]), b"\x0a\x01a\x12\x01b"),
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
                await call(path, "/v1beta1.Registration/Register", deviceplugin_pb2.RegisterRequest(),
                           deviceplugin_pb2.Empty, timeout_s=5.0)  # fmt: skip
    with pytest.raises(CallFailed, match="No such file"):
        await call(tmp_path / "none", "/v1beta1.Registration/Register", deviceplugin_pb2.RegisterRequest(),
                   deviceplugin_pb2.Empty)  # fmt: skip
