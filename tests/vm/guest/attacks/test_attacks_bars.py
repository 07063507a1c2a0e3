# SPDX-License-Identifier: MIT
"""Root of a container and the card's BARs in sysfs, for which the kernel asks for no capability.

The machine has a PCI device with RAM as BAR0, and registers as BAR2, for the first GPUs.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
from pathlib import Path

import pytest
from slicebox import PROC, Box

pytestmark = [pytest.mark.once, pytest.mark.needs("pci"), pytest.mark.gpus(2), pytest.mark.profile("t4")]


def maps(path: Path) -> str:
    """The errno of mmap() of the first page, read-only; "" if it is there."""
    fd = os.open(path, os.O_RDONLY)
    try:
        mmap.mmap(fd, 4096, prot=mmap.PROT_READ).close()
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        os.close(fd)


def sees(mapped: mmap.mmap) -> bool:
    """False: SIGBUS, in a process that has the mapping too."""
    pid = os.fork()
    if not pid:
        mapped[0]
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGBUS)
    return status == 0


@pytest.mark.checked
def test_a_bar_that_was_mapped_before_shows_nothing(kernel_log) -> None:
    """Without CONFIG_IO_STRICT_DEVMEM, as on the debug kernel, BAR0 can be mapped while the driver is loaded."""
    box = Box("bb" * 32)
    device = Path("/sys/bus/pci/devices", (PROC / "0/pci").read_text().strip())
    box.destroy()
    mapped = []
    for name in ("resource0", "resource2"):
        fd = os.open(device / name, os.O_RDONLY)
        with contextlib.suppress(OSError):
            mapped.append(mmap.mmap(fd, 4096, prot=mmap.PROT_READ))
        os.close(fd)
    assert mapped and all(sees(each) for each in mapped)
    box = Box("bc" * 32)
    try:
        assert not any(sees(each) for each in mapped)
        assert "cannot be taken away" not in kernel_log.news()
    finally:
        box.destroy()


def test_a_bar_is_mapped_by_no_process(kernel_log) -> None:
    """BAR2 is no driver's; of BAR0, which the driver has, this kernel allows no mapping anyway (IO_STRICT_DEVMEM)."""
    box = Box("ba" * 32)
    try:
        device = Path("/sys/bus/pci/devices", (PROC / "0/pci").read_text().strip())
        bars = device / "resource0", device / "resource2"
        assert [maps(bar) for bar in bars] == [os.strerror(errno.EINVAL)] * 2
        assert "cannot be claimed" not in kernel_log.news()
        claims = [line for line in Path("/proc/iomem").read_text().splitlines() if line.endswith(" : cgpu_km")]
        assert len(claims) == 4, "two of each GPU"
        assert any(line.startswith("      ") for line in claims), "one within the driver's own"
    finally:
        box.destroy()
    assert maps(bars[1]) == "", "without a container the module is not attached"
    assert "cgpu_km" not in Path("/proc/iomem").read_text()
