# SPDX-License-Identifier: MIT
"""The node installer: what is decided by a node's facts, the steps on a root, the condition, and its objects."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from blocks import marked
from cluster import NODES
from deployed import DEPLOY, REPO, Policy, folded, kustomized, named, notes_of, rendered
from fake_api import FakeApi

from cgpu_kube import annotations as keys
from cgpu_kube import api, pods
from cgpu_kube.installer import act, before, command, host
from cgpu_kube.installer.act import Acting
from cgpu_kube.installer.host import Done, StepFailed
from cgpu_kube.installer.plan import CONDITION, Host, Image, Plan, Refused, Step, install, remove
from cgpu_kube.node.host import FOREIGN, MODES
from cgpu_kube.node.turn import Turn

KERNEL = "6.1.0-49-amd64"
BARE = Host(kernel=KERNEL)
WITH_DKMS = replace(BARE, has_dkms=True, has_headers=True)
IMAGE = Image("0.2.0", "b2", (KERNEL,))
PLAIN = Image("0.2.0", "b2")
THERE = Host(kernel=KERNEL, installed="0.2.0", build="b2", on_disk="0.2.0", copied="b2", loaded="0.2.0", is_active=True)
OLD = replace(THERE, installed="0.1.0", build="b1", on_disk="0.1.0", copied="b1", loaded="0.1.0")

ALL_COPIED = [Step.PUT, Step.COPY_MODULES, Step.LOAD, Step.DAEMON, Step.ENGINE]


@pytest.mark.parametrize(
    ("found", "image", "steps"),
    [
        (BARE, IMAGE, ALL_COPIED),
        (WITH_DKMS, PLAIN, [Step.PUT, Step.BUILD_MODULES, Step.LOAD, Step.DAEMON, Step.ENGINE]),
        (WITH_DKMS, IMAGE, ALL_COPIED),
        (THERE, IMAGE, []),
        (replace(WITH_DKMS, installed="0.2.0", build="b2", on_disk="0.2.0", loaded="0.2.0", is_active=True), PLAIN, []),
        # Loaded by Kernel Module Management: the image needs none.
        (replace(BARE, loaded="0.2.0"), PLAIN, [Step.PUT, Step.DAEMON, Step.ENGINE]),
        # After a boot without the module, or of another kernel.
        (replace(THERE, loaded=None), IMAGE, [Step.LOAD, Step.DAEMON, Step.ENGINE]),
        (replace(THERE, loaded=None, on_disk=None, copied=None), IMAGE, ALL_COPIED[1:]),
        (replace(THERE, has_core=False), IMAGE, [Step.LOAD, Step.DAEMON, Step.ENGINE]),
        (replace(THERE, is_active=False), IMAGE, [Step.DAEMON, Step.ENGINE]),
        # One that broke off in the middle of the files.
        (replace(THERE, build=None), IMAGE, [Step.PUT, Step.DAEMON, Step.ENGINE]),
        (OLD, IMAGE, [Step.PUT, Step.COPY_MODULES, Step.DAEMON, Step.REPLACE_MODULE, Step.ENGINE]),
        # One that broke off later: no fact of the host shows it.
        (replace(THERE, due=frozenset({Step.ENGINE})), IMAGE, [Step.ENGINE]),
        (replace(THERE, due=frozenset({Step.DAEMON, Step.ENGINE})), IMAGE, [Step.DAEMON, Step.ENGINE]),
        (replace(THERE, due=frozenset({Step.LOAD})), IMAGE, [Step.LOAD, Step.DAEMON, Step.ENGINE]),
        (replace(THERE, due=frozenset({Step.REPLACE_MODULE})), IMAGE, [Step.LOAD, Step.DAEMON, Step.ENGINE]),
        (
            replace(THERE, has_dkms=True, has_headers=True, due=frozenset({Step.BUILD_MODULES})),
            PLAIN,
            [Step.BUILD_MODULES, Step.ENGINE],
        ),
    ],
)
def test_what_is_done(found: Host, image: Image, steps: list[Step]) -> None:
    plan = install(found, image)
    assert list(plan.steps) == steps and plan.kept == "" and plan.engine == "containerd"


def test_the_module_of_kernel_module_management() -> None:
    """It names what `make modules-image` lays into the image, by the version."""
    version = (REPO / "VERSION").read_text().strip()
    (found,) = yaml.safe_load_all((DEPLOY / "kmm/module.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("kmm.sigs.x-k8s.io/v1beta1", "Module")
    container = found["spec"]["moduleLoader"]["container"]
    script = (REPO / "scripts/node-image").read_text()
    assert container["modprobe"] == {"moduleName": f"cgpu_core_{version.replace('.', '_')}", "dirName": "/opt"}
    assert 'modules=("cgpu_km" "cgpu_core_${version//./_}")' in script
    assert "folder=$out/modules/$release/opt/lib/modules/$release" in script
    (mapping,) = container["kernelMappings"]
    assert re.fullmatch(mapping["regexp"], "6.1.0-49-amd64")
    assert mapping["containerImage"] == f"cgpu-modules:{version}-${{KERNEL_FULL_VERSION}}"
    assert '"cgpu-modules:$version-$release"' in script
    assert found["spec"]["selector"] == {keys.MODE_LABEL: "cgpu"}


def test_an_update_keeps_slices() -> None:
    """Files and daemon are new at once; the module waits, and the sentence names who holds it."""
    plan = install(replace(OLD, tenants=("aaa", "bbb")), IMAGE)
    assert plan.steps == (Step.PUT, Step.COPY_MODULES, Step.DAEMON, Step.ENGINE)
    assert "cgpu_km 0.1.0 stays loaded, and 0.2.0 is installed" in plan.kept and "aaa, bbb" in plan.kept
    waiting = replace(THERE, loaded="0.1.0")
    assert install(replace(waiting, tenants=("a",)), IMAGE).steps == ()
    assert install(waiting, IMAGE).steps == (Step.REPLACE_MODULE, Step.ENGINE), "drained"


def test_another_build_of_the_same_version_replaces_the_module() -> None:
    other = replace(THERE, other_build=True)
    assert install(other, IMAGE).steps == (Step.REPLACE_MODULE, Step.ENGINE)
    plan = install(replace(other, tenants=("aaa",)), IMAGE)
    assert plan.steps == () and "cgpu_km 0.2.0 stays loaded, and another build of it is installed" in plan.kept


def test_the_engine() -> None:
    assert install(replace(BARE, toolkit=True), IMAGE).engine == "nvidia-container-runtime"
    plan = install(replace(BARE, operator='runtimes = ["runc"]'), IMAGE)
    assert plan.engine == "" and Step.ENGINE not in plan.steps
    assert "NVIDIA_CONTAINER_RUNTIME_RUNTIMES=/usr/local/bin/cgpu-runtime,runc,crun" in plan.kept
    assert install(replace(BARE, operator='runtimes = ["/usr/local/bin/cgpu-runtime"]'), IMAGE).kept == ""
    plan = install(replace(BARE, due=frozenset({Step.ENGINE})), IMAGE, by_hand=True)
    assert (plan.engine, plan.kept) == ("", "") and list(plan.steps) == ALL_COPIED[:-1], "--no-engine"


@pytest.mark.parametrize(
    ("found", "image", "reason", "words"),
    [
        (replace(BARE, machine="aarch64"), IMAGE, "NotSupported", "aarch64"),
        (replace(BARE, systemd=False), IMAGE, "NoSystemd", "hosts with a read-only /usr, and Talos, take instead"),
        (replace(BARE, read_only=("/usr/local",)), IMAGE, "ReadOnly", "/usr/local cannot be written"),
        (replace(BARE, missing=("bash",)), IMAGE, "NoTools", "no bash"),
        (replace(BARE, owner="packages"), IMAGE, "OtherInstallation", "by packages"),
        (
            BARE,
            PLAIN,
            "NoModule",
            f"kernel {KERNEL}: the image has those for none, and the host has no DKMS and no head",
        ),
        (
            replace(BARE, has_dkms=True),
            replace(PLAIN, kernels=("5.14",)),
            "NoModule",
            "for 5.14, and the host has no headers",
        ),
        (replace(OLD, kernel="6.12"), PLAIN, "NoModule", "kernel 6.12"),
    ],
)
def test_refused_before_anything_is_changed(found: Host, image: Image, reason: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        install(found, image)
    assert refused.value.reason == reason


def test_removal() -> None:
    assert remove(THERE).steps == (Step.CORDON, Step.UNLOAD, Step.RESTORE_ENGINE, Step.REMOVE)
    assert remove(replace(THERE, loaded=None)).steps == (Step.CORDON, Step.RESTORE_ENGINE, Step.REMOVE)
    assert remove(BARE).steps == ()
    assert remove(THERE, by_hand=True) == Plan((Step.CORDON, Step.UNLOAD, Step.REMOVE)), "--no-engine"
    with pytest.raises(Refused, match="3 of the node's containers have a slice") as refused:
        remove(replace(THERE, tenants=("a", "b", "c")))
    assert refused.value.reason == "InUse"
    with pytest.raises(Refused, match="by packages, and not by this installer"):
        remove(replace(BARE, owner="packages"))


# ---- the acting part, on a root of the test ----


class Fake:
    """Programs: notes each, and answers by its first words."""

    def __init__(self, root: Path) -> None:
        self.root, self.answers, self.calls = root, dict[str, Done](), list[str]()

    def run(self, *words: str, **environment: str) -> Done:
        line = " ".join(words)
        self.calls.append(line)
        if words[0] == "bash" and words[2] == "put":
            (self.root / "usr/local/lib/cgpu").mkdir(parents=True, exist_ok=True)
            (self.root / "usr/local/lib/cgpu/MANIFEST").write_text("file - /usr/src/cgpu-0.2.0/dkms.conf\n")
            assert (self.root / words[1].lstrip("/")).is_file() and environment == {"PREFIX": "/usr/local"}
        for start, done in self.answers.items():
            if line.startswith(start):
                return done
        if words[0] in ("modinfo", "mountpoint", "test") or "is-active" in words:
            return Done(1, "", "")
        if line.startswith("modprobe cgpu_core_"):
            self.loads("0.2.0")
        if words[0].endswith("/cgpu") and words[1] == "setup":
            said = {"engine": words[2], "next": "systemctl restart containerd", "changed": True}
            return Done(0, json.dumps(said), "")
        return Done(0, "", "")

    def loads(self, version: str, core: bool = True) -> None:
        """Module and core of that version. A module's text is its srcversion."""
        texts = {"proc/cgpu_km/version": f"{version}\n", "proc/cgpu_km/inst_ctl": "", "proc/cgpu_km/upgrade": ""}
        texts["sys/module/cgpu_km/version"] = f"{version}\n"
        on_disk = self.root / f"lib/modules/{KERNEL}/updates/cgpu/cgpu_km.ko"
        if on_disk.exists():
            texts["sys/module/cgpu_km/srcversion"] = on_disk.read_text()
        if core:
            texts["proc/cgpu_km/upgrade"] = f"{version}\nlast: none\n"
        for name, text in texts.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def must(self, *words: str, **environment: str) -> str:
        done = self.run(*words, **environment)
        if done.code:
            raise StepFailed(f"{' '.join(words)}: {done.last}")
        return done.out


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    folder = tmp_path / "cgpu"
    (folder / "scripts").mkdir(parents=True)
    (folder / "stage/usr/local/bin").mkdir(parents=True)
    (folder / "stage/usr/local/bin/cgpu").write_text("#!/bin/sh\n")
    shutil.copy(REPO / "scripts/install", folder / "scripts")
    (folder / "VERSION").write_text("0.2.0\n")
    (folder / "SHA256SUMS").write_text("x  y\n")
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cgpu_common.files.os.fsync", lambda fd: None)  # what is killed here is not the machine
    monkeypatch.setattr(act.os, "sync", lambda: None)
    top = tmp_path / "host"
    for name in ("usr/bin", "run/systemd/system", "var/lib", f"lib/modules/{KERNEL}", "etc", "usr/local"):
        (top / name).mkdir(parents=True)
    for name in host.TOOLS:  # as modprobe is one to /bin/kmod: of the host's root
        (top / "usr/bin" / name).symlink_to("/nowhere/kmod")
    monkeypatch.setattr(host.os, "uname", lambda: type("Uname", (), {"release": KERNEL, "machine": "x86_64"})())
    return top


class Site:
    """A host, and the image of the installer: its payload and its modules."""

    def __init__(self, root: Path, payload: Path, modules: Path) -> None:
        self.root, self.payload, self.modules = root, payload, modules

    @property
    def image(self) -> Image:
        return host.image(self.payload, self.modules)

    def is_of(self, text: str) -> None:
        """The image is another build."""
        (self.payload / "SHA256SUMS").write_text(text)

    def acting(self, fake: Fake, by_hand: bool = False) -> Acting:
        return Acting(fake, self.image, self.payload, self.modules, by_hand=by_hand)

    def attempt(self, fake: Fake, removing: bool = False) -> command.State:
        return command.attempt(self.acting(fake), removing)


@pytest.fixture
def fake(root: Path) -> Fake:
    return Fake(root)


@pytest.fixture
def site(root: Path, payload: Path, tmp_path: Path) -> Site:
    folder = tmp_path / "modules" / KERNEL
    folder.mkdir(parents=True)
    for name in ("cgpu_km.ko", "cgpu_core_0_2_0.ko", "modules.dep"):
        (folder / name).write_text(name)
    return Site(root, payload, folder.parent)


def test_a_bare_host(site: Site, fake: Fake, root: Path) -> None:
    state = site.attempt(fake)
    assert (state.holds, state.reason) == (True, "Installed"), state
    folder = root / f"lib/modules/{KERNEL}/updates/cgpu"
    assert {one.name for one in folder.iterdir()} == {"cgpu_km.ko", "cgpu_core_0_2_0.ko", "BUILD"}
    assert not (root / "var/lib/cgpu-install").exists()
    done = [call for call in fake.calls if not call.startswith(("modinfo", "test", "systemctl is-active"))]
    assert done == [
        "bash /var/lib/cgpu-install/scripts/install put /var/lib/cgpu-install/stage",
        f"depmod {KERNEL}",
        "modprobe cgpu_km",
        "modprobe cgpu_core_0_2_0",
        "systemctl daemon-reload",
        "systemctl enable cgpud.service cgpu-kube-keep.service",
        "systemctl restart cgpud.service",
        "systemctl start cgpu-kube-keep.service",
        "/usr/local/bin/cgpu setup containerd --runtime /usr/local/bin/cgpu-runtime --json",
        "systemctl restart containerd",
    ]


def test_files_are_on_the_disk_before_they_count(
    site: Site, fake: Fake, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss a BUILD that is there would keep files that are empty."""
    builds = (root / host.BUILD, root / f"lib/modules/{KERNEL}/updates/cgpu/BUILD")
    seen = []
    monkeypatch.setattr(act.os, "sync", lambda: seen.append((fake.calls[-1], [one.exists() for one in builds])))
    assert site.attempt(fake).reason == "Installed"
    put = "bash /var/lib/cgpu-install/scripts/install put /var/lib/cgpu-install/stage"
    assert seen == [(put, [False, False]), (f"depmod {KERNEL}", [True, False])]
    assert all(one.exists() for one in builds)


def test_a_module_that_the_kernel_refuses(site: Site, fake: Fake, root: Path) -> None:
    """The sentence is that of cgpu doctor; the next round begins where this one ended."""
    finding = {
        "check": "secure boot",
        "status": "warning",
        "text": "the kernel loads only modules",
        "remedy": "mokutil",
    }
    other = {"check": "headers", "status": "problem", "text": "no headers", "remedy": "apt"}
    refused = Done(1, "", "modprobe: ERROR: could not insert 'cgpu_km': Key was rejected by service\n")
    doctor = Done(7, json.dumps({"findings": [finding, other]}), "")
    fake.answers = {"modprobe cgpu_km": refused, "/usr/local/bin/cgpu doctor": doctor}
    state = site.attempt(fake)
    assert (state.failed, state.reason) == (True, "StepFailed")
    assert "Key was rejected by service; the kernel loads only modules (mokutil)" in state.message
    assert "no headers" not in state.message
    again = host.read(root, fake.run)
    assert install(again, site.image).steps[0] is Step.COPY_MODULES, "modinfo finds none here"
    assert Step.PUT not in install(again, site.image).steps


def test_an_engine_that_cannot_be_set_up(site: Site, fake: Fake) -> None:
    body = {
        "code": "refused",
        "exit": 1,
        "what": "/etc/containerd/config.toml",
        "why": "k3s reads another",
        "hint": "h",
    }
    said = Done(1, "", json.dumps({"schema_version": 1, "error": body}))
    plain = fake.run
    fake.run = lambda *words, **env: said if "setup" in words else plain(*words, **env)  # type: ignore[method-assign]
    state = site.attempt(fake)
    assert state.message == "/etc/containerd/config.toml: k3s reads another (h)"


def test_a_host_that_is_none(site: Site, tmp_path: Path) -> None:
    state = site.attempt(Fake(tmp_path))
    assert (state.failed, state.reason) == (True, "NoSystemd")


def test_the_owner_of_another_installation(root: Path) -> None:
    """Not a folder that a removal has left."""
    (root / "usr/src/cgpu-0.1.0").mkdir(parents=True)
    assert host.read(root, Fake(root).run).owner is None
    (root / "usr/src/cgpu-0.1.0/dkms.conf").touch()
    assert host.read(root, Fake(root).run).owner == "the installation with /usr/src/cgpu-0.1.0"
    (root / "usr/bin/cgpud").touch()
    assert host.read(root, Fake(root).run).owner == "packages"


def test_what_make_install_has_put_stays(site: Site, root: Path) -> None:
    """Into the installer's prefix, too."""
    for name in (host.LIST, "usr/local/bin/cgpud"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("file - /usr/src/cgpu-0.2.0/dkms.conf\n")
    for removing in (False, True):
        state = site.attempt(Fake(root), removing)
        assert (state.failed, state.reason) == (True, "OtherInstallation") and "by make install" in state.message
    ours = {
        "by its build": (host.BUILD, True),
        "a step is due": (host.DUE, True),
        "a removal": ("usr/local/bin/cgpud", False),
    }
    for why, (name, exists) in ours.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch() if exists else (root / name).unlink()
        found = host.read(root, Fake(root).run)
        assert (found.owner, found.installed) == (None, "0.2.0"), why
        if exists:
            (root / name).unlink()


def test_removal_of_a_module_in_use_puts_the_daemon_back(site: Site, fake: Fake, root: Path) -> None:
    site.attempt(fake)
    (root / "sys/module/cgpu_km/holders/cgpu_core_0_2_0").mkdir(parents=True)
    plain, in_use = fake.run, Done(1, "", "rmmod: ERROR: Module cgpu_km is in use")
    fake.run = lambda *words, **env: in_use if words[0] == "rmmod" else plain(*words, **env)  # type: ignore[method-assign]
    fake.calls.clear()
    state = site.attempt(fake, removing=True)
    assert state.failed and "Module cgpu_km is in use" in state.message
    back = ["modprobe cgpu_core_0_2_0", "systemctl start cgpud.service"]
    assert not (root / act.MARK).exists()
    assert fake.calls[-2:] == back, "rmmod has unloaded the core before it found the module in use"
    assert not any("uninstall" in call for call in fake.calls)
    fake.run = plain  # type: ignore[method-assign]
    state = site.attempt(fake, removing=True)
    assert (state.reason, state.failed) == ("Removed", False)
    assert "rmmod cgpu_core_0_2_0 cgpu_km" in fake.calls
    assert fake.calls[-4:] == [
        "/usr/local/bin/cgpu setup containerd --undo --json",
        "systemctl restart containerd",
        f"depmod {KERNEL}",
        "bash /var/lib/cgpu-install/scripts/install uninstall",
    ]
    assert not (root / f"lib/modules/{KERNEL}/updates").exists()


def test_removal_takes_modules_from_kernels_that_are_gone(site: Site, fake: Fake, root: Path) -> None:
    """Their packages have left the folder, since our modules were in it."""
    assert site.attempt(fake).reason == "Installed"
    for kernel, name in (("5.10.0-1", "updates/cgpu/a"), ("5.10.0-2", "updates/a"), ("5.10.0-3", "modules.order")):
        (root / "lib/modules" / kernel / "updates/cgpu").mkdir(parents=True)
        (root / "lib/modules" / kernel / name).touch()
    fake.calls.clear()
    assert site.attempt(fake, removing=True).reason == "Removed"
    assert [call for call in fake.calls if call.startswith("depmod")] == ["depmod 5.10.0-3", f"depmod {KERNEL}"]
    assert {one.name for one in (root / "lib/modules").iterdir()} == {KERNEL, "5.10.0-2", "5.10.0-3"}


def test_removal_leaves_an_engine_that_is_set_up_by_hand(site: Site, fake: Fake) -> None:
    one = site.acting(fake, by_hand=True)
    assert command.attempt(one, removing=False).reason == "Installed"
    assert command.attempt(one, removing=True).reason == "Removed"
    assert fake.calls[-1].endswith("scripts/install uninstall")
    assert not any("setup" in call or "containerd" in call for call in fake.calls)


def test_removal_waits_for_the_end_of_the_agent(site: Site, fake: Fake, root: Path) -> None:
    one = site.acting(fake)
    assert command.attempt(one, removing=False).reason == "Installed"
    turn = Turn(root / host.AGENT_LOCK)
    assert turn.take()
    fake.calls.clear()
    state = command.attempt(one, removing=True)
    assert (state.reason, state.failed) == ("InUse", True)
    assert state.message.startswith("cgpu-kube serves the node: label it ack.node.gpu.schedule=default, wait until")
    assert not (root / act.MARK).exists() and (root / host.LIST).exists()
    assert not [call for call in fake.calls if not call.startswith(("modinfo", "test", "systemctl is-active"))]
    assert command.attempt(one, removing=False).reason == "Installed", "an installation does not mind"
    turn.give()
    assert command.attempt(one, removing=True).reason == "Removed"


LOADED = "sys/module/cgpu_km/version"


class Killed(BaseException):
    """The pod's end: no handler of the installer runs."""


class Node(Fake):
    """A host that keeps what the programs change: @running and @read are what cgpud and containerd work with.
    @dies: the number of the call at which the pod is killed, by halves: 2n before the n-th program, 2n + 1 after it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.dies, self.count, self.fails = -1, 0, tuple[str, ...]()
        self.build = self.files = self.running = self.file = self.read = self.bad = ""
        self.mark = root / act.MARK

    def run(self, *words: str, **environment: str) -> Done:
        number, self.count = self.count, self.count + 1
        if self.dies == 2 * number:
            raise Killed
        done = self._done(" ".join(words), *words, **environment)
        if self.dies == 2 * number + 1:
            raise Killed
        return done

    def _done(self, line: str, *words: str, **environment: str) -> Done:
        if self.fails and line.startswith(self.fails):
            return Done(1, "", f"{words[0]} fails")
        module = self.root / "proc/cgpu_km"
        if words[0] == "bash" and words[2] == "put":
            is_back = words[3] == f"/{before.STAGE}"
            self.files = before.build(self.root).strip() if is_back else self.build
            return super().run(*words, **environment)
        if words[0] == "bash":
            shutil.rmtree(self.root / "usr/local/lib/cgpu")
            shutil.rmtree(self.root / "var/lib/cgpu")
            shutil.rmtree(self.mark.parent)
        elif line == "modprobe cgpu_km":
            if not module.exists():
                self.loads("0.2.0", core=False)
        elif line == "modprobe cgpu_core_0_2_0":
            (module / "upgrade").write_text("0.2.0\nlast: none\n")
        elif words[:2] == (act.CGPU, "upgrade"):
            self.loads("0.2.0")
            assert self.mark.exists(), "no container starts meanwhile"
            self.mark.unlink()
        elif words[0] == "rmmod":
            assert self.mark.exists()
            shutil.rmtree(module)
            shutil.rmtree((self.root / LOADED).parent)
        elif line == "systemctl restart cgpud.service":
            self.running = "" if self.files == self.bad else self.files
            return Done(0, "", "") if self.running else Done(1, "", "cgpud.service: control process exited")
        elif line == "systemctl stop cgpud.service":
            self.running = ""
        elif "is-active" in words:
            return Done(0 if self.running else 3, "", "")
        elif words[0] == "modinfo":
            path = self.root / f"lib/modules/{KERNEL}/updates/cgpu/cgpu_km.ko"
            if not path.exists():
                return Done(1, "", "")
            return Done(0, path.read_text() if "srcversion" in words else "0.2.0\n", "")
        elif words[:2] == (act.CGPU, "setup"):
            wanted = "" if "--undo" in words else "ours"
            changed, self.file = wanted != self.file, wanted
            said = {"engine": words[2], "changed": changed, "next": "systemctl restart containerd" if changed else ""}
            return Done(0, json.dumps(said), "")
        elif line in ("systemctl restart containerd", "systemctl try-restart containerd"):
            self.read = self.file
        elif words[0] in ("mountpoint", "test"):
            return Done(1, "", "")
        return Done(0, "", "")


def rounds(node: Node, site: Site, removing: bool = False) -> command.State:
    """Until one does not fail, as the kubelet starts the program again; the one before may have been killed."""
    node.build = site.image.build
    for _ in range(4):
        node.count = 0
        try:
            state = site.attempt(node, removing)
        except Killed:
            node.dies = -1
            continue
        if not state.failed:
            return state
        node.fails = ()
    raise AssertionError(state.message)


def fresh(root: Path, copy: Path) -> Path:
    """The host as it was."""
    shutil.rmtree(root)
    shutil.copytree(copy, root, symlinks=True)
    return root


def test_what_a_killed_round_left_is_done(site: Site, root: Path, tmp_path: Path) -> None:
    """At any program, an installation and an update: `Installed` is a daemon of these files, an engine that has read
    its own, and no mark but an administrator's."""
    bare = tmp_path / "bare"
    shutil.copytree(root, bare, symlinks=True)
    first, second = "x  y\n", "x  z\n"
    for updates, is_cordoned in ((False, False), (True, False), (True, True)):
        for dies in range(200):
            node = Node(fresh(root, bare))
            site.is_of(first)
            if updates:
                assert rounds(node, site).reason == "Installed"
                site.is_of(second)
                node.loads("0.1.0")
            if is_cordoned:
                node.mark.parent.mkdir(parents=True)
                node.mark.touch()
            node.dies = dies
            assert rounds(node, site).reason == "Installed"
            assert (node.running, node.file, node.read) == (node.build, "ours", "ours"), (updates, dies)
            assert (root / LOADED).read_text() == "0.2.0\n"
            assert not (root / host.DUE).exists()
            assert node.mark.exists() == is_cordoned and not (root / act.THEIRS).exists(), (updates, dies)
            if node.dies != -1:
                break  # it has fewer programs
        assert dies > 15


BAD, GOOD = "x  bad\n", "x  good\n"


def test_an_update_whose_daemon_does_not_start_is_put_back(site: Site, root: Path, tmp_path: Path) -> None:
    """Killed at any program: the old daemon serves in the end, and the node is left alone until another image comes."""
    node = Node(root)
    assert rounds(node, site).reason == "Installed"
    good, installed = node.running, tmp_path / "installed"
    old = root / f"lib/modules/{KERNEL}/updates/cgpu/cgpu_km.ko"
    shutil.copytree(root, installed, symlinks=True)
    for dies in range(200):
        node = Node(fresh(root, installed))
        site.is_of(BAD)
        (site.modules / KERNEL / "cgpu_km.ko").write_text("new")
        node.build = node.bad = site.image.build
        node.files = node.running = good
        node.file = node.read = "ours"
        node.dies, was_killed, state = dies, False, None
        for _ in range(4):
            node.count = 0
            try:
                state = site.attempt(node)
            except Killed:
                node.dies, was_killed = -1, True
                continue
            if state.reason == "PutBack":
                break
        assert (state.holds, state.reason) == (False, "PutBack"), (dies, state)
        assert (
            "the files of before are back, and serve, since the update does not (systemctl restart cgpud.service: "
            in (state.message)
        )
        assert (node.running, node.files, (root / host.BUILD).read_text()) == (good, good, f"{good}\n"), dies
        assert old.read_text() == "cgpu_km.ko" and (old.parent / "BUILD").read_text() == f"{good}\n"
        assert not (root / host.BEFORE).exists() and not (root / host.DUE).exists()
        node.calls.clear()
        node.dies = -1
        again = site.attempt(node)
        assert again == state and not [call for call in node.calls if call.startswith(("bash", "systemctl restart"))]
        site.is_of(GOOD)
        assert rounds(node, site).reason == "Installed"
        assert node.running == node.build and old.read_text() == "new"
        assert not (root / host.BROKEN).exists() and not (root / host.BEFORE).exists()
        (site.modules / KERNEL / "cgpu_km.ko").write_text("cgpu_km.ko")
        if not was_killed:
            break
    assert dies > 20


def test_a_daemon_that_has_never_served_is_not_put_back(site: Site, root: Path) -> None:
    """A first installation, or an update of one that did not serve: the next round goes on."""
    node = Node(root)
    node.build = node.bad = site.image.build
    for text in ("x  y\n", BAD):
        site.is_of(text)
        node.build = node.bad = site.image.build
        assert site.attempt(node).reason == "StepFailed"
        assert not (root / host.BEFORE).exists()
    node.bad = ""
    assert rounds(node, site).reason == "Installed"


class Scripts(Fake):
    """A host on which scripts/install runs."""

    def run(self, *words: str, **environment: str) -> Done:
        if words[0] != "bash":
            return super().run(*words, **environment)
        line = ["bash", *(str(self.root / word[1:]) if word.startswith("/") else word for word in words[1:])]
        done = subprocess.run(line, env={**os.environ, **environment, "DESTDIR": str(self.root)}, capture_output=True)
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def texts_of(root: Path) -> dict[str, str]:
    return {
        str(one.relative_to(root)): str(one.readlink()) if one.is_symlink() else one.read_text()
        for one in root.rglob("*")
        if not one.is_dir() and not one.is_relative_to(root / "usr/bin")
    }


@pytest.mark.parametrize("is_edited", [False, True])
def test_the_files_of_before_come_back(
    site: Site, root: Path, monkeypatch: pytest.MonkeyPatch, is_edited: bool
) -> None:
    """With the real script: contents, links and list, and a configuration that was edited stays as it is."""
    fake, stage = Scripts(root), site.payload / "stage"

    def lay(version: str) -> None:
        shutil.rmtree(stage)
        for name, text in (
            ("usr/local/bin/cgpud", version),
            (f"usr/local/lib/cgpu/only_{version}.py", version),
            (f"usr/src/cgpu-{version}/dkms.conf", version),
            ("etc/cgpu/cgpu.toml", f"# of {version}"),
        ):
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_text(text)
        (stage / "usr/local/bin/link").symlink_to(version)
        site.is_of(version)

    lay("0.1.0")
    assert site.attempt(fake).reason == "Installed"
    if is_edited:
        (root / "etc/cgpu/cgpu.toml").write_text("# by an administrator")
    fake.answers = {"systemctl is-active": Done(0, "", "")}
    there = texts_of(root)
    lay("0.2.0")
    kept = fake.run

    def run(*words: str, **environment: str) -> Done:
        if words == ("systemctl", "restart", "cgpud.service") and "only_0.2.0" in str(texts_of(root).keys()):
            return Done(1, "", "it does not start")
        return kept(*words, **environment)

    monkeypatch.setattr(fake, "run", run)
    state = site.attempt(fake)
    assert state.reason == "PutBack", state
    found = texts_of(root)
    assert found.pop(host.BROKEN).startswith(site.image.build)
    assert found == there
    monkeypatch.setattr(fake, "run", kept)
    lay("0.3.0")
    assert site.attempt(fake).reason == "Installed"
    wanted = "# by an administrator" if is_edited else "# of 0.3.0"
    assert (root / "etc/cgpu/cgpu.toml").read_text() == wanted


@pytest.mark.parametrize(
    "programs",
    [
        (f"{act.CGPU} setup",),
        ("systemctl restart containerd", "systemctl try-restart containerd"),
        ("systemctl restart cgpud",),
        ("depmod",),
        ("modprobe cgpu_km",),
        ("modprobe cgpu_core",),
    ],
)
def test_what_has_failed_is_done_again(programs: tuple[str, ...], site: Site, root: Path) -> None:
    """And the round in between says so: `Installed` comes after the work, not after a minute."""
    node = Node(root)
    node.fails, node.build = programs, site.image.build
    for _ in range(3):
        state = site.attempt(node)
        assert (state.reason, state.failed) == ("StepFailed", True) and "fails" in state.message
    assert rounds(node, site).reason == "Installed"
    assert (node.running, node.read) == (node.build, "ours")


def test_modules_of_another_build_are_loaded_in_the_same_round(site: Site, root: Path) -> None:
    node = Node(root)
    assert rounds(node, site).reason == "Installed"
    site.is_of("x  another\n")
    assert rounds(node, site).reason == "Installed"
    loaded = root / "sys/module/cgpu_km/srcversion"
    assert loaded.read_text() == "cgpu_km.ko"
    (site.modules / KERNEL / "cgpu_km.ko").write_text("another")
    assert rounds(node, site).reason == "Installed"
    assert loaded.read_text() == "another"


def test_a_module_that_cannot_be_replaced(site: Site, root: Path) -> None:
    """Containers start again, unless an administrator has drained the node."""
    node = Node(root)
    assert rounds(node, site).reason == "Installed"
    node.loads("0.1.0")
    node.fails = (f"{act.CGPU} upgrade",)
    for text in (None, "", act.OURS):
        if text is not None:
            node.mark.write_text(text)
        assert site.attempt(node).reason == "StepFailed"
        assert node.mark.exists() == (text == ""), text


def test_a_killed_removal_is_ended(site: Site, root: Path, tmp_path: Path) -> None:
    """By the next round of it, or by an installation where the label has changed."""
    installed = tmp_path / "installed"
    shutil.copytree(root, tmp_path / "bare", symlinks=True)
    assert rounds(Node(root), site).reason == "Installed"
    shutil.copytree(root, installed, symlinks=True)
    for removing in (True, False):
        for dies in range(200):
            node = Node(fresh(root, installed))
            node.build = node.files = node.running = site.image.build
            node.file = node.read = "ours"
            node.dies, was_killed = dies, False
            try:
                site.attempt(node, removing=True)
            except Killed:
                was_killed = True
            node.dies = -1
            state = rounds(node, site, removing)
            wanted = ("Removed", "", "", "") if removing else ("Installed", node.build, "ours", "ours")
            assert (state.reason, node.running, node.file, node.read) == wanted, dies
            assert not node.mark.exists()
            left = {str(one.relative_to(root)) for one in root.rglob("*") if "cgpu" in one.name}
            assert not removing or not left, (dies, left)
            if not was_killed:
                break
        assert dies > 10


# ---- the condition, and the objects ----


async def test_the_condition(server: FakeApi, site: Site, fake: Fake) -> None:
    """Written once; a node without its API server is installed all the same."""
    server.put(NODES, {"metadata": {"name": "n1"}, "status": {"conditions": []}})
    service = command.Service(site.acting(fake), False, "n1", api.Config(server.url))
    assert service.unready()
    await server.down()
    assert (await service.round()).holds and not service.unready()
    await server.up()
    for _ in range(2):
        await service.round()
    assert server.requests.count(("PATCH", "/api/v1/nodes/n1/status")) == 1
    conditions = {one["type"]: one for one in server.get(NODES, "", "n1")["status"]["conditions"]}
    assert conditions[CONDITION]["status"] == "True"
    assert conditions[CONDITION]["reason"] == "Installed" and conditions[CONDITION]["lastTransitionTime"]


INSTALLER = DEPLOY / "installer"


def test_the_chart_has_the_same_installer(kubectl: Path, helm: Path) -> None:
    wanted = named(kustomized(kubectl, INSTALLER))
    without = named(rendered(helm, {}))
    found = named(rendered(helm, {"installer": {"enabled": True}}))
    assert {key: one for key, one in folded(found).items() if key not in without} == folded(wanted)
    more = named(rendered(helm, {"installer": {"enabled": True, "args": ["--no-engine"]}}))
    (one,) = more["DaemonSet", "cgpu-install"]["spec"]["template"]["spec"]["containers"]
    assert command.install.make_context("install", ["--root=/", *one["args"][1:]]).params["by_hand"]
    assert "GPUShareInstalled" in notes_of(helm, {"installer": {"enabled": True}})


def test_its_pods(kubectl: Path) -> None:
    objects = named(kustomized(kubectl, INSTALLER))
    version = (REPO / "VERSION").read_text().strip()
    for name, words in (("cgpu-install", []), ("cgpu-remove", ["--remove"])):
        spec = objects["DaemonSet", name]["spec"]["template"]["spec"]
        (one,) = spec["containers"]
        assert one["image"] == f"cgpu-node:{version}"
        first, *args = one["args"]
        params = command.install.make_context(first, args).params if Path("/host").exists() else None
        assert first == command.install.name and [word for word in args if word == "--remove"] == words
        assert f"--probe-port={one['ports'][0]['containerPort']}" in args
        assert one["volumeMounts"] == [{"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}]
        assert spec["volumes"] == [{"name": "host", "hostPath": {"path": "/", "type": "Directory"}}]
        assert params is None or params["removing"] == bool(words)
    (rule,) = objects["ClusterRole", "cgpu-installer"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}


def takes(daemon_set: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether it has a pod on a node with these labels, as kube-scheduler reads its affinity."""
    affinity = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    def holds(one: dict[str, Any]) -> bool:
        if one["operator"] == "Exists":
            return one["key"] in labels
        is_in = labels.get(one["key"]) in one["values"]
        return is_in if one["operator"] == "In" else not is_in

    return any(all(holds(one) for one in term["matchExpressions"]) for term in terms)


def test_two_commands_bring_a_bare_node_to_its_first_pod(helm: Path) -> None:
    """Those of the page: what they make, by the chart, and what the pod of kubernetes.md then asks for. What the
    installer does is in tests/vm/guest/lifecycle/test_without_packages.py."""
    install_line, label_line = marked((REPO / "docs/user/kubernetes-node.md").read_text())["two-commands"]
    values: dict[str, Any] = {}
    for setting in re.findall(r"--set (\S+)", install_line):
        path, _, text = setting.partition("=")
        *folders, last = path.split(".")
        folder = values
        for name in folders:
            folder = folder.setdefault(name, {})
        folder[last] = {"true": True, "false": False}.get(text, text)
    objects = named(rendered(helm, values))
    labels = dict([label_line.split()[-1].split("=")])
    for name, image in (("cgpu-install", "cgpu-node"), ("cgpu-node", "cgpu-kube")):
        found = objects["DaemonSet", name]
        assert takes(found, labels) and not takes(found, {}), name
        (one,) = found["spec"]["template"]["spec"]["containers"]
        assert one["image"].startswith(f"REGISTRY/{image}:"), name
    assert not [key for key in objects if key[0] == "Deployment"], "nothing waits for certificates"
    first = yaml.safe_load(manifests((REPO / "docs/user/kubernetes.md").read_text())[0])
    assert objects["RuntimeClass", first["spec"]["runtimeClassName"]]["handler"] == "nvidia"
    (main,) = first["spec"]["containers"]
    need = pods.needs(first)
    assert need.gpus == 1 and main["resources"]["limits"].keys() == {keys.GPU_MEM}


def manifests(text: str) -> list[str]:
    """The manifests of a page."""
    return re.findall(r"^```\n(apiVersion: .*?)^```", text, re.MULTILINE | re.DOTALL)


def test_a_node_is_of_one_of_the_two(kubectl: Path) -> None:
    """By its labels."""
    objects = named(kustomized(kubectl, INSTALLER))
    assert objects["DaemonSet", "cgpu-remove"]["spec"]["template"]["spec"]["nodeSelector"] == {
        "cgpu.io/install": "remove"
    }

    installer = objects["DaemonSet", "cgpu-install"]
    for mode in (*MODES, *FOREIGN, ""):
        assert takes(installer, {keys.MODE_LABEL: mode} if mode else {}) == (mode in MODES), mode
    for word in ("no", "remove"):
        assert not takes(installer, {keys.MODE_LABEL: "cgpu", "cgpu.io/install": word})


def test_it_writes_its_own_node(objects: dict) -> None:
    who = {"username": "system:serviceaccount:cgpu-system:cgpu-installer", "groups": []}
    bound = {**who, "extra": {"authentication.kubernetes.io/node-name": ["n1"]}}
    nodes = {"resource": {"group": "", "resource": "nodes"}}
    mine, other = ({"metadata": {"name": name}} for name in ("n1", "n2"))
    policy = Policy(objects["ValidatingAdmissionPolicy", "cgpu-node-own"])
    assert policy.sentences(mine, mine, userInfo=bound, **nodes) == []
    assert policy.sentences(other, other, userInfo=bound, **nodes)
    assert policy.sentences(mine, mine, userInfo=who | {"extra": {}}, **nodes)


def test_the_names_are_those_of_the_scripts() -> None:
    assert act.CGPU == "/usr/local/bin/cgpu" and "prefix=/usr/local" in (REPO / "scripts/node-image").read_text()
