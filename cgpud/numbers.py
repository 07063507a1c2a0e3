# SPDX-License-Identifier: MIT
"""PURE: the device numbers of GPU drivers, from /proc/devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cgpu_common.errors import Refused

# Names in /proc/devices whose majors give access to a GPU outside of the slice.
REAL_DRIVERS = ("nvidia", "nvswitch", "nvlink", "nvlink-", "drm", "cgpu")
OWN_DRIVER = "cgpu"
# The minors of each that exist: NV_MAX_DEVICES is 32, modeset and nvidiactl are above; uvm has two; DRM has cards and
# render nodes. A rule for all minors of a major shows in any of them.
MINORS: dict[str, tuple[tuple[int, int], ...]] = {
    "nvidia": ((0, 31), (254, 255)),
    "nvidia-frontend": ((0, 31), (254, 255)),
    "nvidia-uvm": ((0, 1),),
    "drm": ((0, 63), (128, 191)),
}
OTHER_MINORS = ((0, 15),)  # nvidia-caps, nvidia-nvswitch, nvidia-modeset and what is to come
CLOSED_MAX = 500  # bytes; struct grant of cgpu-runtime


def _drivers(proc_devices: str) -> Iterator[tuple[str, int]]:
    """(name, major) of the drivers of /proc/devices, character section, that lead to a GPU.

    Refused without that section: a spec's nodes of the real drivers would stay in it.
    """
    heading, _, characters = proc_devices.split("Block devices:")[0].partition("Character devices:")
    if heading.strip() or not characters.strip():
        raise Refused("/proc/devices cannot be read: the numbers of GPU drivers are not known")
    for line in characters.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdecimal() and words[1].startswith(REAL_DRIVERS):
            yield words[1], int(words[0])


def majors_of(proc_devices: str) -> frozenset[int]:
    return frozenset(major for _, major in _drivers(proc_devices))


def closed_numbers(proc_devices: str, given: Collection[tuple[int, int]] = ()) -> str:
    """The numbers that must be closed to a container, MAJOR:FIRST-LAST,…, for cgpu-runtime's hooks: those of all GPUs,
    without what is `given` to it."""
    found = [
        f"{major}:{first}-{last}"
        for name, major in sorted(_drivers(proc_devices), key=lambda driver: driver[1])
        if not name.startswith(OWN_DRIVER)
        for start, stop in MINORS.get(name, OTHER_MINORS)
        for first, last in _without(start, stop, {minor for driver, minor in given if driver == major})
    ]
    text = ",".join(found)
    if len(text) > CLOSED_MAX:
        raise Refused("/proc/devices lists more GPU drivers than a container can be checked against")
    return text


def _without(first: int, last: int, given: Collection[int]) -> Iterator[tuple[int, int]]:
    """The parts of a range that remain without these numbers."""
    for one in sorted(given):
        if first <= one <= last:
            if first < one:
                yield first, one - 1
            first = one + 1
    if first <= last:
        yield first, last
