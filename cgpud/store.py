# SPDX-License-Identifier: MIT
"""Records on disk: one JSON file per container in the state directory, replaced atomically."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from cgpu_common import log
from cgpu_common.errors import Refused
from cgpu_common.files import write_file
from cgpud.state import is_valid
from cgpud.values import Record


def replace_file(path: Path, value: object) -> None:
    """Write the value as JSON. OSError: the file is as before."""
    write_file(path, msgspec.json.encode(value) + b"\n")


class Store:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, record: Record) -> Path:
        """The name is a hash: an id may contain any character, and two runs of one id may overlap."""
        key = f"{record.id}\0{record.cookie}".encode()
        return self.directory / f"{hashlib.sha256(key).hexdigest()[:32]}.json"

    def save(self, record: Record) -> None:
        try:
            replace_file(self._path(record), record)
        except FileNotFoundError:  # /run was cleared
            self.open()
            replace_file(self._path(record), record)

    def save_or_refuse(self, record: Record) -> None:
        """save(); raises Refused."""
        try:
            self.save(record)
        except OSError as error:
            raise Refused(f"cgpud cannot write its state: {error}") from error

    def save_or_log(self, record: Record) -> None:
        """save() for a release, which a full /run must not prevent: the next cgpud finds the container ended by the old
        file too."""
        try:
            self.save(record)
        except OSError as error:
            log.get().error("cannot save a state file", id=record.id, error=str(error))

    def forget(self, record: Record) -> None:
        self._path(record).unlink(missing_ok=True)

    def missing(self, records: Iterable[Record]) -> list[Record]:
        """The records whose file no longer exists."""
        return [record for record in records if not self._path(record).exists()]

    def load(self) -> tuple[list[Record], list[str]]:
        """All records, and the names of invalid files, which are kept for the administrator."""
        records: list[Record] = []
        damaged: list[str] = []
        for path in sorted(self.directory.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=Record)
            except (msgspec.MsgspecError, ValueError, RecursionError, OSError):
                damaged.append(path.name)
                continue
            if is_valid(record):
                records.append(record)
            else:
                damaged.append(path.name)
        return records, damaged
