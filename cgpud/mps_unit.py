# SPDX-License-Identifier: MIT
"""`cgpud --mps UUID`, the program of the unit cgpu-mps@UUID: NVIDIA's MPS control daemon for one GPU.

While it runs the GPU is in the compute mode EXCLUSIVE_PROCESS: a program without the daemon's pipes, or with a server
of its own, has no context there. It leaves the GPU in DEFAULT, and in EXCLUSIVE_PROCESS where it was killed: then it
starts again, and the containers meanwhile cannot reach the GPU past it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from cgpu_common import log, mps, mps_nvml, notify, proc
from cgpu_common.errors import CgpuError, Refused
from cgpu_common.exits import CgpuError as ProcError
from cgpu_common.files import write_file
from cgpu_common.gpus import NvmlAbsent
from cgpud.mps_limits import Limits

LOGS = Path("/var/log/cgpu")
HEALTH_S = 10.0  # between two checks, and for the answer of each: it answers nothing while it ends a client
START_S = 20.0  # for the control daemon's first answer
QUIT_S = 10.0
MISSES_MAX = 12  # health checks in a row
LOG_MAX = 16 << 20
SET_BY_US = "exclusive"  # a file: this boot's mode is ours, and was not taken back


class Unit:
    """One control daemon. `nvml` and `slices` are replaced by tests."""

    def __init__(
        self,
        uuid: str,
        root: Path = Path(mps.ROOT),
        logs: Path = LOGS,
        nvml: Any = mps_nvml,
        slices: Callable[[str], int] | None = None,
    ) -> None:
        self.uuid = uuid
        self.directory = root / uuid
        self._logs = logs / f"mps-{uuid}"
        self._nvml = nvml
        self._slices = slices or _slices
        self._log = log.get()
        self._stopping = False
        self._daemon: subprocess.Popen[bytes] | None = None
        self._limits: Limits | None = None

    # ---- one life ----

    def run(self) -> int:
        """Until SIGTERM: 0. Another end of the control daemon: 1. Raises Refused if it cannot begin; then the GPU is as
        it was; CgpuError: another try may succeed, and what an earlier life closed stays closed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        card = self.check()
        self.make_directory()
        mark = self.directory / SET_BY_US
        is_first = not mark.exists()
        mark.touch()  # before the mode: an end between the two must not leave a mode of unknown origin
        try:
            self._set_mode(True)
        except CgpuError:
            if is_first:
                mark.unlink()
            raise
        try:
            self._daemon = self._start()
            self._wait_for_answer()
            if card.by_cgroup:
                self._limits = Limits(self.uuid, self.directory / mps.LIMITS)
            self._publish(card)
            notify.ready(f"MPS of {self.uuid}; {mps.words(by_cgroup=card.by_cgroup)}")
            self._log.info("ready", gpu=self.uuid, clients=card.clients, limit=mps.words(by_cgroup=card.by_cgroup))
            return self._follow()
        except CgpuError:
            # It never served a client. Those of an earlier life have the GPU's own nodes: it stays closed to them.
            self._stopping = self._stopping or is_first
            raise
        finally:
            (self.directory / mps.READY).unlink(missing_ok=True)
            if self._limits is not None:
                self._limits.close()
            if self._stopping:
                self.leave()
            else:
                self._end_daemon()

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """End within the next period of _follow()."""
        self._stopping = True

    def check(self) -> mps_nvml.Card:
        """Raises Refused unless the GPU is free for it."""
        if shutil.which(mps.PROGRAM) is None:
            raise Refused(
                f"{mps.PROGRAM} is not installed, so GPU {self.uuid} has no MPS: install it beside the driver "
                f"(nvidia-cuda-mps, nvidia-compute-utils), and systemctl restart {mps.unit(self.uuid)}"
            )
        try:
            card: mps_nvml.Card = self._nvml.look(self.uuid)
        except NvmlAbsent as error:
            raise CgpuError(f"NVML is not there ({error}); it is tried again") from error
        except mps_nvml.Failed as error:
            raise Refused(f"{error}; nvidia-smi -L lists the GPUs of this machine") from error
        if card.mig:
            raise Refused(f"GPU {self.uuid} is in MIG mode, and MPS here is for whole GPUs: nvidia-smi -mig 0 ends it")
        if card.exclusive and (self.directory / SET_BY_US).exists():
            return card  # an earlier life was killed, and its clients are there
        if card.exclusive:
            raise Refused(
                f"GPU {self.uuid} is in the compute mode EXCLUSIVE_PROCESS already, which another program has set: "
                f"nvidia-smi -i {self.uuid} -c DEFAULT takes it back"
            )
        if count := self._slices(self.uuid):
            raise Refused(f"GPU {self.uuid} has {count} slice(s) of cgpu: drain the node, then start the unit again")
        if card.processes:
            more = f" and {len(card.processes) - 1} more" if len(card.processes) > 1 else ""
            raise Refused(
                f"GPU {self.uuid} is in use by process {card.processes[0]}{more}, which MPS would lock out: end it "
                f"(kubectl drain), then start the unit again"
            )
        return card

    def leave(self) -> None:
        """End the control daemon with its clients, and set the compute mode DEFAULT."""
        self._end_daemon()
        self._set_mode(False)
        (self.directory / SET_BY_US).unlink(missing_ok=True)
        subprocess.run(("umount", "-l", self.directory / "shm"), check=False, stderr=subprocess.DEVNULL)
        self._log.info("the GPU is in its default compute mode again", gpu=self.uuid)

    def _set_mode(self, exclusive: bool) -> None:
        name = "EXCLUSIVE_PROCESS" if exclusive else "DEFAULT"
        try:
            self._nvml.set_exclusive(self.uuid, exclusive)
        except (mps_nvml.Failed, NvmlAbsent) as error:
            raise Refused(
                f"the compute mode of GPU {self.uuid} cannot be set to {name}: {error}; nvidia-smi -i {self.uuid} -c "
                f"{name} as root shows the same, and without that mode programs could use the GPU past MPS"
            ) from error

    # ---- its parts ----

    def make_directory(self) -> None:
        for name in ("pipe", "shm"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        (self.directory / "none").touch()  # over the socket of privileged commands, in containers
        shm = self.directory / "shm"
        if not shm.is_mount():  # of its own: a full one of a container must not fill /run
            self._must("mount", "-t", "tmpfs", "-o", "mode=1777,nosuid,nodev,noexec", "cgpu-mps", str(shm))

    def _must(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(f"{' '.join(words)}: {done.stderr.strip() or f'status {done.returncode}'}")

    def _environment(self) -> Mapping[str, str]:
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("CUDA_", "NOTIFY_", "WATCHDOG_"))
        }
        own = {"PIPE_DIRECTORY": self.directory / "pipe", "LOG_DIRECTORY": self._logs}
        return {
            **kept,
            "CUDA_VISIBLE_DEVICES": self.uuid,
            **{f"{mps.PREFIX}{key}": str(path) for key, path in own.items()},
        }

    def _start(self) -> subprocess.Popen[bytes]:
        """In a mount namespace in which /dev/shm is the directory that its clients have there."""
        script = f'mount --bind "$1" /dev/shm && exec {mps.PROGRAM} -f'
        words = ("unshare", "-m", "--propagation", "slave", "sh", "-c", script, "sh", str(self.directory / "shm"))
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, env=self._environment(), start_new_session=True)

    def _answers(self) -> str:
        """Why the control daemon gives no answer; "": it does."""
        assert self._daemon is not None
        try:
            done = subprocess.run(
                (mps.PROGRAM,), input="get_default_active_thread_percentage\n", env=dict(self._environment()),
                capture_output=True, text=True, timeout=HEALTH_S, check=False,
            )  # fmt: skip
            float(done.stdout.split()[-1])
            return ""
        except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
            why = "it does not answer"
        if self._daemon.poll() is not None:
            why = f"{mps.PROGRAM} ended with status {self._daemon.returncode}"
        return f"{why}; {self._logs}/control.log has more"

    def _wait_for_answer(self) -> None:
        until = time.monotonic() + START_S
        while why := self._answers():
            if time.monotonic() > until or (self._daemon and self._daemon.poll() is not None) or self._stopping:
                raise CgpuError(f"MPS of GPU {self.uuid} does not start: {why}")
            time.sleep(0.1)

    def _publish(self, card: mps_nvml.Card) -> None:
        life = f"{os.getpid()}-{time.monotonic_ns()}"  # of the control daemon, which has been told nothing yet
        ready = {"clients": card.clients, "driver": card.driver, "by_cgroup": card.by_cgroup, "life": life}
        write_file(self.directory / mps.READY, json.dumps(ready) + "\n", mode=0o644)

    def _follow(self) -> int:
        misses, due = 0, time.monotonic()
        while not self._stopping:
            if time.monotonic() >= due:
                due = time.monotonic() + HEALTH_S
                why = self._answers()
                misses = misses + 1 if why else 0
                if misses >= MISSES_MAX or (self._daemon and self._daemon.poll() is not None):
                    self._log.error("MPS has failed", gpu=self.uuid, reason=why)
                    return 1
                self._keep_mode()
                self._trim_logs()
                notify.send("WATCHDOG=1")
            time.sleep(0.2)
        return 0

    def _keep_mode(self) -> None:
        """nvidia-smi, or a program with CAP_SYS_ADMIN, may have changed it: programs could use the GPU past MPS."""
        try:
            if not self._nvml.look(self.uuid).exclusive:
                self._log.warning("the compute mode was changed, and is set again", gpu=self.uuid)
                self._set_mode(True)
        except (mps_nvml.Failed, NvmlAbsent, Refused) as error:
            self._log.error("the compute mode is not known", gpu=self.uuid, reason=str(error))

    def _trim_logs(self) -> None:
        """NVIDIA's programs write a line for each client, and rotate nothing."""
        for path in self._logs.glob("*.log"):
            with contextlib.suppress(OSError):
                if path.stat().st_size > LOG_MAX:
                    os.truncate(path, 0)

    def _end_daemon(self) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                (mps.PROGRAM,), input=b"quit -t 2\n", env=dict(self._environment()), capture_output=True,
                timeout=QUIT_S, check=False,
            )  # fmt: skip
        try:
            daemon.wait(QUIT_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _slices(uuid: str) -> int:
    """Of the GPU, by cgpu_km; 0 without the module."""
    try:
        found = proc.read_tree(proc.Paths.below(), brief=True)
    except ProcError:
        return 0
    return sum(len(gpu.slots) for gpu in found.gpus if gpu.uuid.lower() == uuid.lower())


def serve(uuid: str) -> int:
    """The program. Raises CgpuError with the sentence for the unit's log."""
    try:
        return Unit(uuid).run()
    except OSError as error:
        raise CgpuError(f"MPS of GPU {uuid}: {error}") from error
