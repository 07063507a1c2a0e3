# SPDX-License-Identifier: MIT
"""Grants: slices that an orchestrator gives to containers before they start, through the socket.

A grant has the documented variables; they replace all variables of the container. Its subject is a container id, or a
container of a pod, by the annotations that containerd or CRI-O itself writes into config.json (labels.py). Neither the
image nor the pod can set those. Grants are kept in files, one each, until they are revoked or the machine boots; of
those that cgpud itself has requested, one whose container has ended makes way when there are GRANTS_MAX.

A grant may describe the slice exactly, by `slots`, since the variables have one DEV for all GPUs. Its variables are
then only what the container reads. `claim` names a slice that all containers with this claim share; `whole` gives one
GPU without isolation; with `mps` as a client of its MPS server.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cgpu_common.errors import Refused
from cgpu_common.kernel_abi import ID_MAX, MAX_GPUS, MAX_INST_BURST_MAX
from cgpud import env, labels
from cgpud.store import replace_file
from cgpud.values import Devices, NotSliced, Record, Request, SlotRequest

GRANTS_MAX = 4096
MIB_MAX = 1 << 30  # a petabyte: only a bound
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z", re.ASCII)
_CLAIM = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_GRANTED = frozenset(env.KNOWN)


class Subject(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`id` alone; or namespace, pod and container, and uid to exclude a later pod of the same name."""

    id: str = ""
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""

    def __str__(self) -> str:
        return self.id[:12] or "/".join((self.namespace, self.pod, self.container))

    @property
    def pod_name(self) -> str:
        """namespace/name; "" for the subject of an id."""
        return f"{self.namespace}/{self.pod}" if self.pod else ""

    def check(self) -> None:
        by_pod = (self.namespace, self.pod, self.container)
        if self.id:
            is_good = len(self.id.encode(errors="replace")) <= ID_MAX and not any((*by_pod, self.uid))
        else:
            is_good = all(by_pod)
        if not is_good:
            raise Refused("the subject of a grant is an id, or namespace, pod and container, and uid if it is known")


class GrantSlot(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of one GPU."""

    gpu: str  # UUID
    memory_mib: int
    weight: int = 1
    highprio: bool = False
    ceiling: int | None = None

    def check(self) -> None:
        if not _UUID.match(self.gpu):
            raise Refused(f"a slot of a grant names a GPU by its whole UUID, not by {env.shorten(self.gpu)}")
        if not 0 < self.memory_mib <= MIB_MAX:
            raise Refused(f"a slot of a grant has 1 to {MIB_MAX} MiB, not {self.memory_mib}")
        if not 0 < self.weight <= MAX_INST_BURST_MAX:
            raise Refused(f"a slot of a grant has a weight from 1 to {MAX_INST_BURST_MAX}, not {self.weight}")
        if self.ceiling is not None and not self.weight <= self.ceiling <= MAX_INST_BURST_MAX:
            raise Refused(
                f"a slot of a grant has a ceiling from its weight, {self.weight}, to {MAX_INST_BURST_MAX}, or none, "
                f"not {self.ceiling}"
            )


class GrantMps(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of the memory of a GPU with an MPS server, and the most of its multiprocessors."""

    memory_mib: int
    threads: int = 100  # percent

    def check(self) -> None:
        if not 0 < self.memory_mib <= MIB_MAX:
            raise Refused(f"a grant of MPS has 1 to {MIB_MAX} MiB, not {self.memory_mib}")
        if not 0 < self.threads <= 100:
            raise Refused(f"a grant of MPS has 1 to 100 percent of the threads, not {self.threads}")


class Grant(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    subject: Subject
    variables: dict[str, str]
    slots: tuple[GrantSlot, ...] = ()
    claim: str = ""
    whole: str = ""  # UUID
    mps: GrantMps | None = None
    asked: bool = False  # set by cgpud: it requested the grant for a promise, and does so at each later start

    def check(self) -> None:
        """Raises Refused if the grant gives no slice, or in a way that a container's own variables could not."""
        self.subject.check()
        for name in self.variables:
            if not (name in _GRANTED or self._is_shown(name)):
                raise Refused(f"a grant has the variables {', '.join(sorted(_GRANTED))}, not {env.shorten(name)}")
        if self.claim and not (self.slots and _CLAIM.match(self.claim)):
            raise Refused("the claim of a grant is 1 to 64 letters, digits, dots and dashes, and needs slots")
        if self.mps is not None:
            if not self.whole:
                raise Refused("a grant of MPS names its GPU in `whole`")
            self.mps.check()
        if self.whole:
            if self.slots or not _UUID.match(self.whole):
                raise Refused("a grant of a whole GPU names it by its UUID and has no slots")
            return
        if self.slots:
            self._check_slots()
            return
        wanted = env.parse(self.variables, default_memsize=True)
        if isinstance(wanted, NotSliced):
            raise Refused(f"a grant of no slice: {wanted.why}")

    def _is_shown(self, name: str) -> bool:
        """May the variable be there for programs to read, although it gives nothing?"""
        if name == env.DISABLE:
            return bool(self.whole)
        return name in env.OF_SCHEDULERS and bool(self.whole or self.slots)

    def _check_slots(self) -> None:
        for slot in self.slots:
            slot.check()
        if len(self.slots) > MAX_GPUS or len({slot.gpu.lower() for slot in self.slots}) < len(self.slots):
            raise Refused(f"a grant has at most {MAX_GPUS} slots, each on another GPU")

    def request(self, *, default_memsize: bool) -> Request | NotSliced:
        """What it gives, as the variables of a container would ask for it."""
        if not self.slots:
            return env.parse(self.variables, default_memsize=default_memsize)
        return Request(
            Devices(f"the grant for {self.subject}", items=tuple(slot.gpu for slot in self.slots)),
            (),
            0,
            exact=tuple(
                SlotRequest(slot.gpu, slot.memory_mib, slot.weight, slot.highprio, slot.ceiling) for slot in self.slots
            ),
        )


def subjects(container_id: str, spec: Mapping[str, Any]) -> tuple[Subject, ...]:
    """The subjects that name this container, the most specific first. Raises Refused."""
    out = [Subject(id=container_id)]
    found = labels.of_engine(spec)
    pod = Subject("", *(found.get(field, "") for field in ("namespace", "pod", "uid", "name")))
    if pod.namespace and pod.pod and pod.container and found.get("type") != labels.SANDBOX:
        out += [pod] if not pod.uid else [pod, msgspec.structs.replace(pod, uid="")]
    return tuple(out)


class Grants:
    """The grants in memory and in their directory. @records: the daemon's, of containers that have not ended."""

    def __init__(self, directory: Path, records: Mapping[Any, Record]) -> None:
        self._directory = directory
        self._records = records
        self._grants: dict[Subject, Grant] = {}  # the one that was used last is the last

    def load(self) -> list[str]:
        """Read the files. Returns the names of invalid ones: such a grant counts for nothing. When each was
        used is not in them, so the order is any."""
        damaged = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                grant = msgspec.json.decode(path.read_bytes(), type=Grant)
                grant.check()
            except (msgspec.MsgspecError, ValueError, OSError, Refused):
                damaged.append(path.name)
            else:
                self._grants[grant.subject] = grant
        return damaged

    def __len__(self) -> int:
        return len(self._grants)

    def _path(self, subject: Subject) -> Path:
        name = hashlib.sha256(msgspec.json.encode(subject)).hexdigest()[:32]
        return self._directory / f"{name}.json"

    def _write(self, grant: Grant) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(grant.subject), grant)

    def _spare(self) -> Subject | None:
        """The grant that was not used for the longest time, of a container that has ended and at whose next start
        cgpud requests another one. One that was given would be missed, and so would one without a record."""
        live = {(record.pod_uid, record.container) for record in self._records.values()}
        for subject, grant in self._grants.items():
            has_record = not grant.whole or grant.mps is not None
            named = ((subject.uid, subject.container), (subject.uid, ""))  # "": of a version before this
            if grant.asked and has_record and live.isdisjoint(named):
                return subject
        return None

    def add(self, body: Any, asked: bool = False) -> Grant:
        """Add or replace. Raises Refused; then nothing has changed. @asked: cgpud has requested it."""
        try:
            grant = msgspec.structs.replace(msgspec.convert(body, type=Grant), asked=asked)
        except msgspec.ValidationError as error:
            raise Refused(f"not a grant: {error}") from error
        grant.check()
        is_more = grant.subject not in self._grants and len(self._grants) >= GRANTS_MAX
        spare = self._spare() if is_more else None
        if is_more and spare is None:
            raise Refused(f"there are {GRANTS_MAX} grants already, each given or of a container that is there")
        try:
            self._write(grant)
            if spare is not None:
                self._drop(spare)
        except OSError as error:
            if spare is not None:
                with contextlib.suppress(OSError):
                    self._path(grant.subject).unlink(missing_ok=True)
            raise Refused(f"cgpud cannot write its state: {error}") from error
        self._grants.pop(grant.subject, None)  # else a replaced one keeps its place
        self._grants[grant.subject] = grant
        return grant

    def _drop(self, subject: Subject) -> bool:
        self._path(subject).unlink(missing_ok=True)
        return self._grants.pop(subject, None) is not None

    def revoke(self, body: Any) -> bool:
        """False: there is no such grant. A container that has its slice keeps it."""
        try:
            subject = msgspec.convert(body, type=Subject)
        except msgspec.ValidationError as error:
            raise Refused(f"not the subject of a grant: {error}") from error
        return self._drop(subject)

    def restore(self) -> None:
        """Write the files again that are missing: /run may have been cleared."""
        for grant in self._grants.values():
            if not self._path(grant.subject).exists():
                self._write(grant)

    def subjects(self) -> list[Any]:
        """Of all grants, as JSON has them."""
        return [msgspec.to_builtins(subject) for subject in self._grants]

    def gpus(self) -> list[list[str]]:
        """Of each of subjects(), the GPUs that it names by their UUIDs: none of a grant by variables."""
        return [[one.whole] if one.whole else [slot.gpu for slot in one.slots] for one in self._grants.values()]

    def find(self, container_id: str, spec: Mapping[str, Any]) -> Grant | None:
        """Raises Refused."""
        subject = next((one for one in subjects(container_id, spec) if one in self._grants), None)
        if subject is None:
            return None
        self._grants[subject] = grant = self._grants.pop(subject)
        return grant
