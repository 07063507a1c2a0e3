# SPDX-License-Identifier: MIT
"""Carries out the steps of a plan on the host, by the host's programs and cgpu's own."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from cgpu_common import log as logging
from cgpu_common.files import write_file
from cgpu_common.proc import MODULE, core_module
from cgpu_kube.installer import host as facts
from cgpu_kube.installer.host import BUILD, MODULES, PAYLOAD, Programs, StepFailed
from cgpu_kube.installer.plan import PREFIX, Host, Image, Plan, Refused, Step, install, remove

#: On the host, while the script runs there.
PLACE = "var/lib/cgpu-install"
CGPU = f"{PREFIX}/bin/cgpu"
UNIT, MOUNT = "cgpud.service", "dev-cgpu.mount"
NODES = "/dev/cgpu"
_DKMS = re.compile(r"^cgpu[/,] ?([0-9][^,: ]*)", re.M)


class Acting:
    """@payload, @modules: of the image. Each step raises StepFailed; a step that is repeated does no harm."""

    def __init__(self, programs: Programs, image: Image, payload: Path = PAYLOAD, modules: Path = MODULES) -> None:
        self._programs = programs
        self._run, self._must, self._root = programs.run, programs.must, programs.root
        self._image, self._payload, self._modules = image, payload, modules
        self._log = logging.get()

    def install(self) -> Plan:
        """To the image's version, as far as it goes now. Raises Refused, StepFailed, OSError."""
        found = facts.read(self._root, self._run)
        plan = install(found, self._image)
        for step in plan.steps:
            self._log.info("installing", step=str(step), kernel=found.kernel, version=self._image.version)
            self._step(step, found, plan.engine)
        return plan

    def remove(self) -> Plan:
        """Raises Refused, StepFailed, OSError."""
        found = facts.read(self._root, self._run)
        plan = remove(found)
        for step in plan.steps:
            self._log.info("removing", step=str(step))
            self._step(step, found, plan.engine)
        return plan

    def _step(self, step: Step, found: Host, engine: str) -> None:
        work: dict[Step, Callable[[], object]] = {
            Step.PUT: lambda: self._put(found),
            Step.COPY_MODULES: lambda: self._copy_modules(found),
            Step.BUILD_MODULES: lambda: self._build_modules(found),
            Step.LOAD: self._load,
            Step.DAEMON: self._daemon,
            Step.REPLACE_MODULE: lambda: self._must(CGPU, "upgrade", "--cold"),
            Step.ENGINE: lambda: self._engine(engine),
            Step.CORDON: self._cordon,
            Step.UNLOAD: self._unload,
            Step.REMOVE: lambda: self._remove(found),
        }
        work[step]()

    # ---- the files ----

    def _script(self, *words: str, whole: bool) -> None:
        """Runs scripts/install on the host, from a copy there. @whole: with the files."""
        place = self._root / PLACE
        shutil.rmtree(place, ignore_errors=True)
        try:
            place.mkdir(mode=0o700)
            (place / "scripts").mkdir()
            shutil.copy2(self._payload / "scripts/install", place / "scripts")
            shutil.copy2(self._payload / "VERSION", place)
            if whole:
                shutil.copytree(self._payload / "stage", place / "stage", symlinks=True)
            self._must("bash", f"/{PLACE}/scripts/install", *words, PREFIX=PREFIX)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _put(self, found: Host) -> None:
        self._forget_dkms(found)
        (self._root / BUILD).unlink(missing_ok=True)  # until all files are there
        self._script("put", f"/{PLACE}/stage", whole=True)
        write_file(self._root / BUILD, self._image.build + "\n", 0o644)

    # ---- modules ----

    def _forget_dkms(self, found: Host) -> None:
        """DKMS needs the sources of what it removes."""
        versions = _DKMS.findall(self._run("dkms", "status").out) if found.has_dkms else []
        for version in dict.fromkeys(versions):
            self._must("dkms", "remove", f"cgpu/{version}", "--all")

    def _drop_copies(self) -> None:
        for folder in sorted((self._root / "lib/modules").glob("*/updates/cgpu")):
            shutil.rmtree(folder)
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()
            self._must("depmod", folder.parents[1].name)

    def _copy_modules(self, found: Host) -> None:
        self._forget_dkms(found)
        target = facts.copied_to(self._root, found.kernel)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in sorted((self._modules / found.kernel).glob("*.ko")):
            shutil.copy(path, target)
        self._must("depmod", found.kernel)
        write_file(target / "BUILD", self._image.build + "\n", 0o644)

    def _build_modules(self, found: Host) -> None:
        self._drop_copies()
        self._forget_dkms(found)
        name = f"cgpu/{self._image.version}"
        self._must("dkms", "add", name)
        self._must("dkms", "install", name, "-k", found.kernel)

    def _load(self) -> None:
        done = self._run("modprobe", MODULE)
        if done.code:
            why = facts.doctors_words(self._run, ("module", "secure boot"))
            raise StepFailed("; ".join(filter(None, (f"modprobe {MODULE}: {done.last}", why))))
        self._run("modprobe", core_module(self._image.version))  # which a host without softdeps does not load

    def _daemon(self) -> None:
        self._must("systemctl", "daemon-reload")
        self._must("systemctl", "enable", UNIT)
        self._must("systemctl", "restart", UNIT)

    def _engine(self, engine: str) -> None:
        done = self._run(CGPU, "setup", engine, "--runtime", f"{PREFIX}/bin/cgpu-runtime", "--json")
        if done.code:
            raise StepFailed(_sentence(done.err) or f"cgpu setup {engine}: {done.last}")
        said = json.loads(done.out)
        if str(said["next"]).startswith("systemctl "):
            self._must(*said["next"].split())

    # ---- removal ----

    def _cordon(self) -> None:
        """From now on no container gets a slice; one that has got one meanwhile is not lost."""
        self._must(CGPU, "cordon")
        try:
            remove(facts.read(self._root, self._run))
        except Refused:
            self._must(CGPU, "uncordon")
            raise

    def _unload(self) -> None:
        try:
            self._must("systemctl", "stop", UNIT)
            self._run("systemctl", "stop", MOUNT)
            while self._run("mountpoint", "-q", NODES).code == 0:
                self._must("umount", NODES)
            self._run("rmdir", NODES)
            holders = self._root / "sys/module" / MODULE / "holders"
            names = sorted(one.name for one in holders.iterdir()) if holders.is_dir() else []
            self._must("rmmod", *names, MODULE)
        except StepFailed:
            self._run("systemctl", "start", UNIT)
            self._run(CGPU, "uncordon")
            raise

    def _remove(self, found: Host) -> None:
        record = self._root / "var/lib/cgpu/setup/containerd.json"
        restarts = record.exists()
        self._forget_dkms(found)
        self._script("uninstall", whole=False)
        self._drop_copies()
        if restarts and not record.exists():
            self._must("systemctl", "restart", "containerd")


def _sentence(text: str) -> str:
    """Of an error that a command of cgpu has printed as JSON."""
    try:
        found = json.loads(text.strip().splitlines()[-1])["error"]
    except (ValueError, KeyError, IndexError):
        return ""
    return f"{found['what']}: {found['why']}" + (f" ({found['hint']})" if found["hint"] else "")
