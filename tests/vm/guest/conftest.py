# SPDX-License-Identifier: MIT
"""Assigns tests to boots, and checks the kernel log of each test.

These tests run inside the virtual machine (`make test-vm`), as root. A test
bears the marker of the kind of boot it needs (`bare`, `icount`, `long`, `docker`,
`engines`, `kube`, `systemd`, `cuda`, `cuda_nvcc`, `cuda_icount`, `driver`,
`driver_two`, `driver_pair`, `driver_icount`) or none, and `needs` for what not every machine
has (harness/machine.py: NEEDS). On a debug kernel the ordinary tests run except
`stock_only` ones; the special boots are stock, and there only `debug_ok` tests
run.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sharebox import Tenant, crowd
from slicebox import PROC, Box, clean_box, fresh_id, nvclient, until
from vm.harness import console

SPECIAL = (
    "bare",
    "icount",
    "long",
    "docker",
    "engines",
    "kube",
    "systemd",
    "cuda",
    "cuda_nvcc",
    "cuda_icount",
    "driver",
    "driver_two",
    "driver_pair",
    "driver_icount",
)

#: Parameters of the simulated driver.
PERSONALITY = Path("/sys/module/nvsim/parameters")
FREEZE_RESTART = Path("/sys/module/cgpu_km/parameters/freeze_restart")  # bit N: of GPU N

PM_TEST = Path("/sys/power/pm_test")  #: the kernel's own test of suspend
#: Tests of other boots, as (reason, node id).
ELSEWHERE = pytest.StashKey[list[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--boot", default="plain", choices=("plain", *SPECIAL), help="the kind of this boot")


def pytest_configure(config: pytest.Config) -> None:
    if "CGPU_VM" not in os.environ:
        raise pytest.UsageError("tests/vm/guest run in a virtual machine: make test-vm")
    # What is read until the first test stays. Looking through it again and again takes a quarter of the time.
    gc.disable()


def why_not(item: pytest.Item, boot: str) -> str:
    """The reason why the test is not for this boot; empty if it is."""
    debug = os.environ["KERNEL"].endswith("debug")
    kind = next((marker for marker in SPECIAL if item.get_closest_marker(marker)), "plain")
    if kind != boot:
        return f"needs a {kind} boot"
    if debug and item.get_closest_marker("stock_only"):
        return "needs a stock kernel"
    if debug and boot != "plain" and not item.get_closest_marker("debug_ok"):
        return "needs a stock kernel (not marked debug_ok)"
    if not debug and item.get_closest_marker("debug_only"):
        return "needs the debug kernel"
    needs = {need for marker in item.iter_markers("needs") for need in marker.args}
    if missing := sorted(needs - set(os.environ["OFFERS"].split())):
        return f"needs {missing[0]}"
    if "suspend" in getattr(item, "fixturenames", ()) and not PM_TEST.exists():  # uml-smp
        return "needs a kernel that sleeps"
    gpus = item.get_closest_marker("gpus")
    if gpus and gpus.args[0] > int(os.environ["GPUS"] or 1):
        return f"needs GPUS={gpus.args[0]}"
    profile = item.get_closest_marker("profile")
    if profile and profile.args[0] != (os.environ["PROFILE"] or "t4"):
        return f"needs PROFILE={profile.args[0]}"
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    boot = config.getoption("--boot")
    reasons = [(item, why_not(item, boot)) for item in items]
    elsewhere = [item for item, reason in reasons if reason]
    items[:] = [item for item, reason in reasons if not reason]
    config.hook.pytest_deselected(items=elsewhere)
    left = "is left to make test-all"  # scripts/test-levels knows this reason
    config.stash[ELSEWHERE] = [
        (left if item.get_closest_marker("more") else reason, item.nodeid) for item, reason in reasons if reason
    ]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Writes which tests run here and which do not, and why.

    scripts/test-levels holds the boots against each other: no test may run in
    none. Written here and not above because -k chooses in between.
    """
    gc.freeze()
    gc.enable()
    junit = session.config.getoption("xmlpath")
    if not junit:
        return
    lines = [f"ran\t{item.nodeid}" for item in session.items]
    lines += ["\t".join(pair) for pair in session.config.stash.get(ELSEWHERE, [])]
    Path(junit).with_suffix(".tests").write_text("".join(line + "\n" for line in lines))


class KernelLog:
    """The lines logged since the last read."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
        os.lseek(self._fd, 0, os.SEEK_END)

    def note(self, text: str) -> None:
        """Writes a line into the log, so that the console shows the name of the test."""
        with contextlib.suppress(OSError):
            os.write(self._fd, f"<5>{text}\n".encode())

    def news(self) -> str:
        """Returns the lines since the last call, without their prefixes."""
        lines = []
        while True:
            try:
                record = os.read(self._fd, 16384).decode(errors="replace")
            except BlockingIOError:
                return "\n".join(lines)
            except BrokenPipeError:  # overwritten before we came
                lines.append("cgpu-test: some lines were lost")
                continue
            lines.append(record.partition(";")[2].partition("\n")[0])


@pytest.fixture(scope="session")
def kernel_log() -> KernelLog:
    return KernelLog()


@pytest.fixture(autouse=True)
def no_splat(kernel_log: KernelLog, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test during which the kernel complained."""
    kernel_log.news()
    kernel_log.note(f"cgpu-test: {request.node.nodeid}")
    yield
    found = console.findings(kernel_log.news())
    if found:
        pytest.fail(f"the kernel complained during this test:\n{console.report(found)}", pytrace=False)


class Keeper:
    """A container in which nothing runs: while it is there, the module stays attached to the driver.

    The first container attaches and the last one detaches: half a second to a second in emulation, three on the debug
    kernel, which tests of single calls would spend each.
    """

    def __init__(self) -> None:
        self._box: Box | None = None

    def keep(self, wanted: bool) -> None:
        if wanted and not self._box:
            self._box = Box("f1" * 32, 64)
        elif not wanted and self._box:
            self._box.destroy()
            self._box = None


IDLE = Keeper()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Attached for the tests with this marker, but for those that must be alone. No fixture: one of a module, which
    may unload the driver, comes before those of a function.
    """
    IDLE.keep(bool(item.get_closest_marker("attached")) and not item.get_closest_marker("alone"))


def pytest_sessionfinish() -> None:
    IDLE.keep(False)


@pytest.fixture
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A container with the limit that its module names; nothing of it may be left."""
    with clean_box(getattr(request.module, "LIMIT_MIB", 1024)) as made:
        yield made


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Another one, its neighbour."""
    with Box(fresh_id(), getattr(request.module, "LIMIT_MIB", 1024)) as made:
        yield made
        until(lambda: made.used == 0)


@pytest.fixture
def gpu(box: Box) -> Iterator[nvclient.Gpu]:
    """The first GPU as a process in the module's `box` has it."""
    with box.client() as client:
        yield client.gpu(0)


@pytest.fixture
def uvm(gpu: nvclient.Gpu) -> nvclient.Uvm:
    """The file of nvidia-uvm of an address space of that GPU."""
    return gpu.space().uvm


@pytest.fixture
def account() -> Iterator[None]:
    """Managed memory is charged on the first GPU, not refused."""
    (PROC / "0/uvm").write_text("account\n")
    yield
    (PROC / "0/uvm").write_text("deny\n")


@pytest.fixture
def tenants() -> Iterator[Callable[..., Tenant]]:
    """Makes containers with a load; they are gone afterwards."""
    with crowd() as make:
        yield make


@pytest.fixture
def personality() -> Iterator[Callable[..., None]]:
    """Sets parameters of the simulated driver and restores them afterwards.

    Where a freeze needs a restart of the runlist, the parameter freeze_restart is set, as an administrator has to.
    """
    before: dict[Path, str] = {}

    def put(path: Path, value: int) -> None:
        before.setdefault(path, path.read_text())
        path.write_text(str(value))

    def change(**values: int) -> None:
        for name, value in values.items():
            put(PERSONALITY / name, value)
        if "disable_needs_restart" in values and FREEZE_RESTART.exists():
            put(FREEZE_RESTART, values["disable_needs_restart"])

    yield change
    for path, value in before.items():
        path.write_text(value)
