# SPDX-License-Identifier: MIT
"""The versions of all parts, and missing parts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from cgpu_common.proc import Paths, core_module, cores, driver_version, how_to_load, module_version, nodes_are_missing


def package_version() -> str:
    """The version of the Python package: daemon and command line are one package."""
    from importlib import metadata  # slow to import

    try:
        return metadata.version("cgpu")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Versions:
    """Every part's version; None: missing. @module is cgpu_km's own, @core the active core's, @daemon that of the
    running process."""

    package: str
    module: str | None
    core: str | None
    other_cores: list[str]
    driver: str | None
    daemon: str | None
    runtime: str | None
    missing: list[str]


def collect(paths: Paths, daemon: str | None, silence: str, remedy: str) -> Versions:
    """@daemon: the version in cgpud's answer; None: it gave none, for the reason @silence, with a remedy."""
    module = module_version(paths)
    found = cores(paths) if module else None
    driver = driver_version(paths)
    package = package_version()
    runtime = shutil.which("cgpu-runtime")
    missing = []
    if module is None:
        missing.append(f"module cgpu_km is not loaded ({how_to_load(paths)})")
    elif found is None:
        missing.append(f"module cgpu_km has no core (modprobe {core_module(module)})")
    if nodes_are_missing(paths):
        missing.append("nodes of containers are not mounted (mount -t cgpu cgpu /dev/cgpu)")
    if driver is None:
        missing.append("NVIDIA driver is not loaded")
    if daemon is None:
        missing.append(f"cgpud {silence} ({remedy})")
    elif "unknown" not in (package, daemon) and package != daemon:
        missing.append(f"cgpud {daemon} runs, and the package is {package} (systemctl restart cgpud)")
    if runtime is None:
        missing.append("cgpu-runtime is not on the PATH")
    if module and "unknown" not in (package, module) and package != module:
        missing.append(f"package {package} and module {module} differ")
    return Versions(
        package,
        module,
        found.active if found else None,
        found.others if found else [],
        driver,
        daemon,
        runtime,
        missing,
    )
