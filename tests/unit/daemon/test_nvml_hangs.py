# SPDX-License-Identifier: MIT
"""A hanging NVML: the daemon starts, admits, answers and ends, and only the GPUs that do not answer are lost.

The child process and pynvml are the real ones, over a stub library that hangs in the call that the environment names.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakelink import FakeLink, example_gpus
from fakes import FAKE_CGPUD, VARIABLES, Node, eventually

from cgpu_common.cards import NvmlGpu, NvmlView
from cgpu_common.config import Config
from cgpud import nvml
from cgpud.nvml import Nvml

ROOT = Path(__file__).resolve().parents[3]
STUB = Path(__file__).parent / "data/nvml_stub.c"
UUID = "GPU-b084ae33-e244-0959-cd97-83000000000"
ID = "0123456789abcdef" * 4


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("nvml")
    name = "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", directory / name, STUB], check=True)
    return directory


@pytest.fixture
def hang(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Two GPUs, and NVML hangs at a call while the file exists."""

    def at(call: str) -> Path:
        file = tmp_path / "hangs"
        file.touch()
        environment = {"LD_LIBRARY_PATH": library, "NVML_STUB_HANG": call, "NVML_STUB_WHILE": file}
        for key, value in {**environment, "NVML_STUB_COUNT": "2"}.items():
            monkeypatch.setenv(key, str(value))
        monkeypatch.setattr(nvml, "RETRY_S", 0.2)
        return file

    return at


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def lost(view: NvmlView) -> list[str]:
    return [gpu.lost for gpu in view.gpus]


def test_a_hanging_nvml_does_not_stop_the_node(hang: Callable[[str], Path], tmp_path: Path) -> None:
    """The whole program: READY comes, requests are answered, SIGTERM ends it."""
    hang("init")
    config = tmp_path / "cgpu.toml"
    config.write_text("nvml_wait_s = 1\n")
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(address))
        sock.settimeout(30)
        daemon = subprocess.Popen(
            [
                *(sys.executable, FAKE_CGPUD, "--config", config),
                *("--socket", tmp_path / "s", "--state-dir", tmp_path / "state"),
            ],
            env={**os.environ, "NOTIFY_SOCKET": str(address), "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert sock.recv(4096).startswith(b"READY=1"), "although NVML hangs"
            daemon.send_signal(signal.SIGTERM)
            began = time.monotonic()
            _, log = daemon.communicate(timeout=30)
        finally:
            daemon.kill()
    assert (daemon.returncode, time.monotonic() - began < 5) == (0, True)
    assert "NVML does not answer" in log


def test_sigterm_ends_a_start_that_waits_for_nvml(hang: Callable[[str], Path], tmp_path: Path) -> None:
    hang("init")
    daemon = subprocess.Popen(
        [
            *(sys.executable, FAKE_CGPUD),
            *("--socket", tmp_path / "s", "--state-dir", tmp_path / "state"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    tasks = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    try:
        for _ in range(1000):
            if tasks.read_text():
                break
            time.sleep(0.02)
        child = int(tasks.read_text())
        began = time.monotonic()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
        assert time.monotonic() - began < 10, "nvml_wait_s is 20"
        assert not Path(f"/proc/{child}").exists()
    finally:
        daemon.kill()


@pytest.mark.parametrize("call", ["init", "uuid 1"])
async def test_a_hanging_nvml_stops_its_gpus_only(
    node: Node, hang: Callable[[str], Path], call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The GPU that hangs is refused with a sentence, at once from the second start on; the other one is used."""
    file = hang(call)
    file.unlink()
    gpus = example_gpus(2)
    node.link = FakeLink([replace(gpu, uuid=f"{UUID}{n}", pci=f"0000:0{n + 7}:00.0") for n, gpu in enumerate(gpus)])
    node.nvml = Nvml()
    node.config = Config(nvml_wait_s=45)
    on = "ALIYUN_COM_GPU_VISIBLE_DEVICES="

    async with node.running() as daemon:
        # The stub's compute mode restricts the GPU: the sentence shows that NVML has answered.
        assert "exclusive process" in (await node.prepare(ID, (*VARIABLES, f"{on}1")))["error"]
        file.touch()
        daemon.config = replace(daemon.config, nvml_wait_s=2)
        daemon.inventory.expire()
        began = time.monotonic()
        refused = "GPU 1 does not answer NVML (no answer within 2 s), so it cannot be sliced"
        assert (await node.prepare(ID, (*VARIABLES, f"{on}1")))["error"] == refused
        assert 1.5 < time.monotonic() - began < 30
        began = time.monotonic()
        daemon.inventory.expire()
        assert (await node.prepare(ID, (*VARIABLES, f"{on}1")))["error"] == refused
        first = (await node.prepare(ID, (*VARIABLES, f"{on}0")))["error"]
        assert ("exclusive process" in first) == (call == "uuid 1"), first
        assert (await node.ask(op="status"))["ok"]
        assert time.monotonic() - began < 2, "only the first one waits"
        file.unlink()
        await asyncio.sleep(0.5)
        for _ in range(100):
            reply = await node.prepare(ID, (*VARIABLES, f"{on}1"))
            if "exclusive process" in reply["error"]:
                break
            await asyncio.sleep(0.1)
        assert "exclusive process" in reply["error"], "NVML answers again"
    log = capsys.readouterr().out
    assert log.count("NVML does not answer") == log.count("NVML answers again") == 1


async def test_a_node_whose_nvml_hangs_from_the_beginning(node: Node, hang: Callable[[str], Path]) -> None:
    """The modes of the GPUs are unknown, so none gets a container, whether the module lists it already or not."""
    hang("init")
    node.nvml = Nvml()
    node.config = Config(nvml_wait_s=1)

    async with node.running():
        assert "GPU 0 does not answer NVML (no answer within 1 s)" in (await node.prepare(ID))["error"]
        node.link.inventory = ()
        assert (await node.prepare(ID))["error"] == (
            "cgpu_km lists no GPU yet, and NVML does not answer (no answer within 1 s)"
        )
        assert not node.link.calls, "no probe either"


async def test_containers_end_while_nvml_hangs(node: Node, hang: Callable[[str], Path]) -> None:
    file = hang("init")
    node.config = Config(nvml_wait_s=1)

    async with node.running():
        process = await node.start(ID)
    assert file.exists()
    node.nvml = Nvml()
    async with node.running():
        process.kill()
        await eventually(lambda: not node.link.containers, "released")


async def test_a_child_that_hangs_is_killed_and_replaced(hang: Callable[[str], Path]) -> None:
    file = hang("uuid 0")

    before = children()
    source = Nvml(deadline_s=5)
    view = await source.query(4)
    assert lost(view) == ["no answer within 4 s", ""], "the other one is read meanwhile"
    (first,) = children() - before
    assert (await source.query(30)).silent, "it does not wait"
    assert children() - before == {first}, "never two"
    await eventually(lambda: not children() - before, "killed", 30)
    assert [bool(why) for why in lost(await source.query(30))] == [True, False], "another one has been started"
    file.unlink()
    await asyncio.sleep(0.3)
    for _ in range(100):
        view = await source.query(30)
        if not view.silent:
            break
        await asyncio.sleep(0.1)
    assert (lost(view), [gpu.uuid for gpu in view.gpus]) == (["", ""], [UUID + "0", UUID + "1"])
    source.close()
    await eventually(lambda: not children() - before, "none left")


async def test_a_child_that_does_not_end_keeps_what_it_has_answered(hang: Callable[[str], Path]) -> None:
    """A child that hangs when it closes the driver, or that the kernel does not let go."""
    file = hang("shutdown")

    before = children()
    source = Nvml()
    view = await source.query(30)
    assert (lost(view), view.silent) == (["", ""], "")
    view = await source.query(0.5)
    assert (lost(view), view.silent) == (["", ""], "an earlier query does not end")
    assert len(children() - before) == 1
    file.unlink()
    await eventually(lambda: not children() - before, "it ends")
    await asyncio.sleep(0.2)
    while (await source.query(30)).silent:
        await asyncio.sleep(0.1)
    source.close()


async def test_an_nvml_that_crashes_takes_only_its_child(hang: Callable[[str], Path]) -> None:
    hang("crash")

    source = Nvml()
    view = await source.query(30)
    assert view == NvmlView(silent=f"the query ended with status -{int(signal.SIGABRT)}")
    source.close()


ANSWERS = [
    ("'', end=''", "the query ended with status 0"),
    ("'{\"count\": 1}'", "the query ended with status 0"),
    ('\'{"count": 1}\\n{"gpu": {"index": 0}}\'', "the query's answer is damaged: "),
    ("'hello'", "the query's answer is damaged: "),
    ("'{\"count\": 1}\\n' * 100000", "the query's answer is longer than 1 MiB"),
    ("'x' * (2 << 20)", "the query's answer is longer than 1 MiB"),
]


@pytest.mark.parametrize(("text", "why"), ANSWERS, ids=[text for text, _ in ANSWERS])
async def test_a_damaged_answer_is_none(text: str, why: str) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    source = Nvml((sys.executable, "-c", f"print({text})"))
    view = await source.query(30)
    assert view.silent.startswith(why), view
    assert all(gpu.lost == view.silent for gpu in view.gpus)
    source.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


async def test_a_child_that_cannot_be_started() -> None:
    source = Nvml(("/nowhere",))
    assert (await source.query(1)).silent == "the query cannot be started: No such file or directory"
    source.close()


def test_a_lost_gpu_has_its_last_values() -> None:
    child = SimpleNamespace(count=2, absent=None, is_complete=False, gpus={0: NvmlGpu(0, "a", "", 0, 100)})
    old = NvmlView((NvmlGpu(0, "a", "", 0, 90), NvmlGpu(1, "b", "p", 1, 70, mig=True)))
    assert nvml.view_of(child, old, "why") == NvmlView(  # type: ignore[arg-type]
        (NvmlGpu(0, "a", "", 0, 100), NvmlGpu(1, "b", "p", 1, 70, mig=True, lost="why")), silent="why"
    )
