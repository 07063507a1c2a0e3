# SPDX-License-Identifier: MIT
"""Matching the two lists of GPUs, and NVML through a stub library found by its soname."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import Card, Library

from cgpu_common.cards import NvmlGpu
from cgpu_common.errors import Refused
from cgpu_common.gpus import merge, own_mib, query, undiscovered
from cgpu_common.model import MIB, KernelGpu
from cgpud.admit import admit
from cgpud.values import Devices, Request

STUB = Path(__file__).parent / "data/nvml_stub.c"
ROOT = Path(__file__).resolve().parents[3]


def test_numbers_are_nvmls_and_indexes_the_kernels() -> None:
    kernel = [KernelGpu(0, "GPU-a", "0000:01:00.0", 1, 100 * MIB), KernelGpu(1, "GPU-b", "0000:02:00.0", 0, 200 * MIB)]
    nvml = [NvmlGpu(0, "GPU-B", "0000:02:00.0", 0, 199), NvmlGpu(1, "GPU-A", "0000:01:00.0", 1, 99)]
    merged = merge(kernel, nvml)
    assert [(gpu.number, gpu.index, gpu.nv_minor, gpu.total_mib) for gpu in merged] == [(0, 1, 0, 199), (1, 0, 1, 99)]


def test_without_a_uuid_the_address_decides_then_the_minor() -> None:
    nvml = [NvmlGpu(0, "GPU-b", "00000000:02:00.0", 5, 10)]
    assert merge([KernelGpu(3, "", "0000:02:00.0", 9, 0)], nvml)[0].index == 3
    assert merge([KernelGpu(4, "", "", 5, 0)], nvml)[0].index == 4


def test_without_nvml_the_kernels_list_serves() -> None:
    (gpu,) = merge([KernelGpu(2, "GPU-a", "0000:01:00.0", 0, 15109 * MIB)], [])
    assert (gpu.number, gpu.index, gpu.total_mib) == (2, 2, 15109)


def test_a_gpu_the_kernel_does_not_know_is_left_out() -> None:
    kernel = [KernelGpu(0, "GPU-a", "0000:01:00.0", 0, 1 << 30)]
    nvml = [NvmlGpu(0, "GPU-a", "0000:01:00.0", 0, 1024), NvmlGpu(1, "GPU-x", "0000:09:00.0", 1, 1024)]
    assert [gpu.number for gpu in merge(kernel, nvml)] == [0]


def test_before_the_first_container_the_order_is_pci() -> None:
    nvml = [NvmlGpu(0, "GPU-b", "0000:02:00.0", 1, 10), NvmlGpu(1, "GPU-a", "0000:01:00.0", 0, 20)]
    assert [(gpu.number, gpu.index) for gpu in merge([], nvml)] == [(0, 1), (1, 0)]


def test_what_containers_can_have_of_a_card() -> None:
    """The driver's figure while the module is attached, NVML's while no container exists, else None: unknown."""
    nvml = [NvmlGpu(0, "GPU-a", "", 0, 1000, used_mib=300)]
    attached = KernelGpu(0, "GPU-a", "", 0, 1024 * MIB, used=100 * MIB, driver_free=500 * MIB, born=1)
    detached = KernelGpu(0, "GPU-a", "", 0, 1024 * MIB, born=1)
    assert merge([attached], nvml)[0].room_mib == 600 + own_mib(1000)
    assert merge([replace(attached, driver_free=870 * MIB)], nvml)[0].room_mib == 1000, (
        "the driver's own memory is not deducted: the whole card"
    )
    assert merge([detached], nvml)[0].room_mib == 700 + own_mib(1000)
    assert merge([detached], [])[0].room_mib is None
    held = merge([replace(detached, used=100 * MIB)], nvml)
    assert held[0].room_mib is None, "NVML's figure has what destroyed containers hold in it"
    assert [want.gpu for want in undiscovered(held)] == [0]
    for closed in ({"lost": "no answer"}, {"compute_mode": "prohibited"}, {"mps": "an MPS server"}):
        assert undiscovered([replace(held[0], **closed)]) == (), closed
    assert [gpu.index for gpu in merge([detached], [])] == [want.gpu for want in undiscovered(merge([detached], []))]
    assert undiscovered(merge([detached], nvml)) == ()


# ---- one of several is lost ----


# The kernel's numbers differ from NVML's.
KERNEL = [KernelGpu(7 - n, f"GPU-{n}", f"0000:0{n + 1}:00.0", n, 1000 * MIB, born=1) for n in range(3)]


@pytest.mark.parametrize(
    "lost", ["HandleByIndex", "all", "UUID", "MinorNumber", "MemoryInfo", "MigMode", "ComputeMode"]
)
@pytest.mark.parametrize("kernel", [KERNEL, []], ids=["known", "before the first container"])
def test_a_lost_gpu_is_lost_alone(monkeypatch: pytest.MonkeyPatch, lost: str, kernel: list[KernelGpu]) -> None:
    cards = [Card(0, MigMode=(1, 1)), Card(1, lost), Card(2, ComputeMode=3)]
    monkeypatch.setitem(sys.modules, "pynvml", Library(cards))
    merged = merge(kernel, query())
    assert [gpu.number for gpu in merged] == [0, 1, 2], "numbers are NVML's"
    assert [gpu.index for gpu in merged] == ([7, 6, 5] if kernel else [0, 1, 2])
    assert [gpu.lost for gpu in merged] == ["", "GPU is lost", ""]
    assert (merged[0].mig, merged[2].compute_mode) == (True, "exclusive process"), "the other GPUs keep their values"
    one = Request(Devices("V", items=(1,)), (1,), 15)
    with pytest.raises(Refused, match=r"GPU 1 does not answer NVML \(GPU is lost\)"):
        admit(one, merged, ())
    assert 6 not in [want.gpu for want in undiscovered(merged) if kernel], "a lost GPU is not probed"


def test_what_a_gpu_does_not_have_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """No MIG on this model, and NVML reports no memory of it: the size is the kernel's."""
    monkeypatch.setitem(sys.modules, "pynvml", Library([Card(0, MigMode=None, MemoryInfo=None)]))
    (gpu,) = merge(KERNEL[:1], query())
    assert (gpu.lost, gpu.mig, gpu.total_mib) == ("", False, 1000)


def test_several_are_lost() -> None:
    """Lost GPUs are matched in the order of addresses. If the kernel lists more than NVML, each may be the lost one."""
    nvml = [replace(NvmlGpu(n, "", "", -1, 0), lost="x") for n in (0, 2)]
    nvml.append(NvmlGpu(1, "GPU-1", "0000:02:00.0", 1, 1000))
    assert [(gpu.number, gpu.index, gpu.lost) for gpu in merge(KERNEL, nvml)] == [(0, 7, "x"), (1, 6, ""), (2, 5, "x")]
    assert [(gpu.number, gpu.lost) for gpu in merge(KERNEL, nvml[1:])] == [(1, ""), (2, "x"), (5, "x")]


SCRIPT = """
import json, dataclasses, pathlib
from cgpu_common import gpus
from cgpu_common.gpus import NvmlAbsent, query
gpus.DRIVER_ROOT = pathlib.Path("/nowhere")
try:
    print(json.dumps([dataclasses.asdict(gpu) for gpu in query()]))
except NvmlAbsent as error:
    print(json.dumps(str(error)))
"""


FROM_DRIVER = """
from pathlib import Path
from cgpu_common import gpus
gpus.DRIVER_ROOT = Path({!r})
print([gpu.uuid for gpu in gpus.query()])
"""


@pytest.mark.parametrize("folder", ["usr/lib/x86_64-linux-gnu", "usr/lib64"])
def test_the_library_of_a_driver_container(tmp_path: Path, folder: str) -> None:
    """The GPU Operator's driver is below /run/nvidia/driver, where no linker looks."""
    (tmp_path / folder).mkdir(parents=True)
    words = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", "libnvidia-ml.so.1", str(STUB)]
    subprocess.run(words, check=True, cwd=tmp_path / folder)
    script = [sys.executable, "-c", FROM_DRIVER.format(str(tmp_path))]
    found = subprocess.run(script, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}, capture_output=True, text=True)
    assert found.stdout == "['GPU-b084ae33-e244-0959-cd97-830000000000']\n", found.stderr


def run_query(library_path: str) -> object:
    pytest.importorskip("pynvml")
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"LD_LIBRARY_PATH": library_path, "PYTHONPATH": f"{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(out.stdout)


def test_query_through_a_stub(tmp_path: Path) -> None:
    cc = shutil.which("cc") or shutil.which("gcc")
    if cc is None:
        pytest.skip("no C compiler")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([cc, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(STUB)], check=True)
    assert run_query(str(tmp_path)) == [
        {
            "index": 0,
            "uuid": "GPU-b084ae33-e244-0959-cd97-830000000000",
            "pci": "0000:07:00.0",
            "nv_minor": 3,
            "total_mib": 15109,
            "name": "",
            "mig": False,
            "confidential": False,
            "used_mib": 301,
            "compute_mode": "exclusive process",
            "lost": "",
            "peers": [],
            "bridges": [],
            "sensors": None,
            "read_at": None,
        }
    ]


def test_no_library_is_said(tmp_path: Path) -> None:
    """A file that is no library stands before this machine's own, if it has one."""
    (tmp_path / "libnvidia-ml.so.1").write_text("none\n")
    assert run_query(str(tmp_path)) == "NVML Shared Library Not Found"


@pytest.mark.parametrize(("total_mib", "own"), [(15109, 472), (81920, 1024), (143771, 1024)])
def test_the_driver_s_own_part_is_nobodys_loss(total_mib: int, own: int) -> None:
    assert own_mib(total_mib) == own
