# SPDX-License-Identifier: MIT
"""Carries out the steps of a plan on the host, by the host's programs and cgpu's own."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cgpu_common import log as logging
from cgpu_common.files import write_file
from cgpu_common.proc import MODULE, core_module
from cgpu_kube.installer import before
from cgpu_kube.installer import host as facts
from cgpu_kube.installer.host import BROKEN, BUILD, DUE, MODULES, PAYLOAD, Programs, StepFailed
from cgpu_kube.installer.plan import CONTAINERD, PREFIX, Host, Image, Plan, Refused, Step, install, put_back, remove

#: On the host, while the script runs there.
PLACE = "var/lib/cgpu-install"
CGPU = f"{PREFIX}/bin/cgpu"
UNIT, MOUNT = "cgpud.service", "dev-cgpu.mount"
KEEPER = "cgpu-kube-keep.service"  # has the devices for the kubelet while the agent's pod is away, and after a boot
NODES = "/dev/cgpu"
MARK = "run/cgpu/drain"  # of `cgpu drain`: while it is there no container gets a slice
THEIRS = f"{MARK}-kept"  # an administrator's, while the module is replaced
OURS = "cgpu-kube install\n"  # in a mark: not an administrator's, whose is empty
_DKMS = re.compile(r"^cgpu[/,] ?([0-9][^,: ]*)", re.M)


class Acting:
    """@payload, @modules: of the image. Each step raises StepFailed; a step that is repeated does no harm."""

    def __init__(
        self,
        programs: Programs,
        image: Image,
        payload: Path = PAYLOAD,
        modules: Path = MODULES,
        by_hand: bool = False,
    ) -> None:
        self._run, self._must, self._root = programs.run, programs.must, programs.root
        self._image, self._payload, self._modules, self._by_hand = image, payload, modules, by_hand
        self._log = logging.get()

    def install(self) -> Plan:
        """To the image's version, as far as it goes now. Raises Refused, StepFailed, OSError."""
        self._unmark()
        found = facts.read(self._root, self._run)
        plan = install(found, self._image, self._by_hand)
        self._carry_out(plan, found, "installing", kernel=found.kernel, version=self._image.version)
        if found.loaded is not None and {Step.COPY_MODULES, Step.BUILD_MODULES} & set(plan.steps):
            # What is loaded can be compared with the new modules now that these are on disk.
            found = facts.read(self._root, self._run)
            plan = install(found, self._image, self._by_hand)
            self._carry_out(plan, found, "installing", kernel=found.kernel, version=self._image.version)
        return plan

    def remove(self) -> Plan:
        """Raises Refused, StepFailed, OSError."""
        self._unmark()
        found = facts.read(self._root, self._run)
        plan = remove(found, self._by_hand)
        self._carry_out(plan, found, "removing")
        return plan

    def _carry_out(self, plan: Plan, found: Host, doing: str, **words: str) -> None:
        """Before each step the file has it and those behind it: a next round finds what one that broke off has left,
        also where no fact of the host shows it."""
        for number, step in enumerate(plan.steps):
            self._note(plan.steps[number:])
            self._log.info(doing, step=str(step), **words)
            self._step(step, found, plan.engine)
        self._note(())

    def _note(self, due: tuple[Step, ...]) -> None:
        path = self._root / DUE
        if due:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_file(path, "".join(f"{step}\n" for step in due), 0o644)
        else:
            path.unlink(missing_ok=True)

    def _step(self, step: Step, found: Host, engine: str) -> None:
        work: dict[Step, Callable[[], object]] = {
            Step.PUT: lambda: self._put(found),
            Step.COPY_MODULES: lambda: self._copy_modules(found),
            Step.BUILD_MODULES: lambda: self._build_modules(found),
            Step.LOAD: self._load,
            Step.DAEMON: lambda: self._daemon(found),
            Step.PUT_BACK: lambda: self._put_back(found),
            Step.REPLACE_MODULE: self._replace_module,
            Step.ENGINE: lambda: self._engine(engine, found),
            Step.CORDON: self._cordon,
            Step.UNLOAD: self._unload,
            Step.RESTORE_ENGINE: lambda: self._restore_engine(engine, found),
            Step.REMOVE: lambda: self._remove(found),
        }
        work[step]()

    # ---- the mark of a drain ----

    def _mark(self) -> bool:
        """False: there is an administrator's, which stays."""
        path = self._root / MARK
        if path.exists():
            return False
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_file(path, OURS, 0o644)
        return True

    def _unmark(self) -> None:
        """Also what a round that was killed has left: with its mark every start would be refused for ever."""
        path, theirs = self._root / MARK, self._root / THEIRS
        if theirs.exists():
            write_file(path, "", 0o644)
            theirs.unlink()
        elif path.is_file() and path.read_text(errors="replace") == OURS:
            path.unlink(missing_ok=True)

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
        """What has served is kept until the new daemon has started, across rounds that break off."""
        if found.serves:
            before.keep(self._root, facts.copied_to(self._root, found.kernel), "".join(self._of_dkms(found)[:1]))
        self._forget_dkms(found)
        (self._root / BUILD).unlink(missing_ok=True)  # until all files are there
        self._script("put", f"/{PLACE}/stage", whole=True)
        self._note_build(self._root / BUILD)

    def _put_back(self, found: Host) -> None:
        """To the version that has served until the update. Raises Refused when it serves again."""
        root = self._root
        self._forget_dkms(found)
        (root / BUILD).unlink(missing_ok=True)
        self._script("put", f"/{before.STAGE}", whole=False)
        before.restore_list(root)
        if before.restore_modules(root, facts.copied_to(root, found.kernel)):
            self._must("depmod", found.kernel)
        else:
            self._drop_copies(found.kernel)
        if version := before.dkms(root):
            self._build_by_dkms(version, found.kernel)
        os.sync()
        write_file(root / BUILD, before.build(root), 0o644)
        self._must("systemctl", "daemon-reload")
        self._must("systemctl", "restart", UNIT)
        before.drop(root)
        self._note(())
        raise put_back((root / BROKEN).read_text().partition("\n")[2].strip())

    def _note_build(self, path: Path) -> None:
        """Says that the files of this build are there. They are on the disk before: a power loss could else leave empty
        ones, which no later round would replace."""
        os.sync()
        write_file(path, self._image.build + "\n", 0o644)

    # ---- modules ----

    def _of_dkms(self, found: Host) -> list[str]:
        """Versions."""
        return list(dict.fromkeys(_DKMS.findall(self._run("dkms", "status").out))) if found.has_dkms else []

    def _forget_dkms(self, found: Host) -> None:
        """DKMS needs the sources of what it removes."""
        for version in self._of_dkms(found):
            self._must("dkms", "remove", f"cgpu/{version}", "--all")

    def _drop_copies(self, running: str) -> None:
        for folder in sorted((self._root / "lib/modules").glob("*/updates/cgpu")):
            kernel = folder.parents[1]
            shutil.rmtree(folder)
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()
            if kernel.name == running or (kernel / "modules.order").exists():
                self._must("depmod", kernel.name)
            elif not any(kernel.iterdir()):  # of a kernel that was removed: depmod would write its files there again
                kernel.rmdir()

    def _copy_modules(self, found: Host) -> None:
        self._forget_dkms(found)
        target = facts.copied_to(self._root, found.kernel)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in sorted((self._modules / found.kernel).glob("*.ko")):
            shutil.copy(path, target)
        self._must("depmod", found.kernel)
        self._note_build(target / "BUILD")

    def _build_modules(self, found: Host) -> None:
        self._drop_copies(found.kernel)
        self._forget_dkms(found)
        self._build_by_dkms(self._image.version, found.kernel)

    def _build_by_dkms(self, version: str, kernel: str) -> None:
        self._must("dkms", "add", f"cgpu/{version}")
        self._must("dkms", "install", f"cgpu/{version}", "-k", kernel)

    def _load(self) -> None:
        done = self._run("modprobe", MODULE)
        if done.code:
            raise self._not_loaded(MODULE, done)
        core = core_module(self._image.version)
        done = self._run("modprobe", core)  # which a host without softdeps does not load
        if not facts.has_core(self._root):
            raise self._not_loaded(core, done)

    def _not_loaded(self, name: str, done: facts.Done) -> StepFailed:
        last = done.last if done.code else f"{MODULE} has no core"
        why = facts.doctors_words(self._run, ("module", "secure boot"))
        return StepFailed("; ".join(filter(None, (f"modprobe {name}: {last}", why))))

    def _replace_module(self) -> None:
        """`cgpu upgrade` marks the node without a name, unless it is marked, and removes any mark when it is done."""
        if not self._mark():
            write_file(self._root / THEIRS, "", 0o644)
        try:
            self._must(CGPU, "upgrade", "--cold")
        finally:
            self._unmark()

    def _daemon(self, found: Host) -> None:
        self._must("systemctl", "daemon-reload")
        self._must("systemctl", "enable", UNIT, KEEPER)
        try:
            self._must("systemctl", "restart", UNIT)  # fails where the daemon does not report that it serves
        except StepFailed as error:
            if not (self._root / facts.BEFORE).is_dir():
                raise
            write_file(self._root / BROKEN, f"{self._image.build}\n{error}\n", 0o644)
            self._log.error("the update does not start: the files of before are put back", reason=str(error))
            self._put_back(found)
        before.drop(self._root)
        (self._root / BROKEN).unlink(missing_ok=True)
        self._must("systemctl", "start", KEEPER)  # not anew: the kubelet would have no devices meanwhile

    def _set_up(self, engine: str, *words: str) -> dict[str, Any]:
        done = self._run(CGPU, "setup", engine, *words, "--json")
        if done.code:
            raise StepFailed(_sentence(done.err) or f"cgpu setup {engine}: {done.last}")
        said: dict[str, Any] = json.loads(done.out)
        return said

    def _restart(self, said: dict[str, Any], found: Host) -> None:
        """A file that is as it has to be may have been changed by a round that broke off before the restart."""
        if str(said["next"]).startswith("systemctl "):
            self._must(*said["next"].split())
        elif not said["changed"] and said["engine"] == CONTAINERD and found.due & {Step.ENGINE, Step.RESTORE_ENGINE}:
            self._must("systemctl", "try-restart", CONTAINERD)

    def _engine(self, engine: str, found: Host) -> None:
        self._restart(self._set_up(engine, "--runtime", f"{PREFIX}/bin/cgpu-runtime"), found)

    # ---- removal ----

    def _cordon(self) -> None:
        """From now on no container gets a slice; one that has got one meanwhile is not lost."""
        self._mark()
        try:
            remove(facts.read(self._root, self._run), self._by_hand)
        except Refused:
            self._unmark()
            raise

    def _unload(self) -> None:
        holders = self._root / "sys/module" / MODULE / "holders"
        names = sorted(one.name for one in holders.iterdir()) if holders.is_dir() else []
        try:
            self._must("systemctl", "stop", UNIT)
            self._run("systemctl", "stop", MOUNT)
            while self._run("mountpoint", "-q", NODES).code == 0:
                self._must("umount", NODES)
            self._run("rmdir", NODES)
            self._must("rmmod", *names, MODULE)
        except StepFailed:
            for name in names:  # rmmod may have unloaded the core, and then found the module in use
                self._run("modprobe", name)
            self._run("systemctl", "start", UNIT)
            self._unmark()
            raise

    def _restore_engine(self, engine: str, found: Host) -> None:
        """Before `cgpu` goes. Uninstall restores each engine's file, names those it cannot, and restarts none."""
        try:
            said = self._set_up(engine, "--undo")
        except StepFailed as error:
            self._log.warning("the engine's file stays as it is", reason=str(error))
        else:
            self._restart(said, found)

    def _remove(self, found: Host) -> None:
        self._forget_dkms(found)
        self._drop_copies(found.kernel)
        (self._root / BUILD).unlink(missing_ok=True)  # from now on not all files are there
        self._script("uninstall", whole=False)  # the list goes last: until then this step is repeated


def _sentence(text: str) -> str:
    """Of an error that a command of cgpu has printed as JSON."""
    try:
        found = json.loads(text.strip().splitlines()[-1])["error"]
    except (ValueError, KeyError, IndexError):
        return ""
    return f"{found['what']}: {found['why']}" + (f" ({found['hint']})" if found["hint"] else "")
