# SPDX-License-Identifier: MIT
"""Every file that the programs write: all or nothing, and nothing but a plain file is ever replaced."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cgpu_common import files
from cgpu_common.files import check_target, write_file
from cgpud.store import replace_file


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


KINDS: dict[str, Callable[[Path], None]] = {
    "a folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a socket": _socket,
    "a symbolic link": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_stays(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    KINDS[kind](path)
    before = path.lstat()
    for write in (lambda: write_file(path, "text"), lambda: replace_file(path, [1]), lambda: check_target(path)):
        with pytest.raises(OSError, match=f"is {kind}, and only a plain file is replaced") as caught:
            write()
        assert caught.value.filename == str(path)
    assert path.lstat() == before
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_a_device_node_is_refused() -> None:
    """By the check alone: a write that went wrong would destroy this machine's."""
    with pytest.raises(OSError, match="is a character device"):
        check_target(Path("/dev/null"))


def test_a_link_to_a_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("kept")
    (tmp_path / "x").symlink_to("real")
    with pytest.raises(OSError, match="is a symbolic link"):
        write_file(tmp_path / "x", "new")
    assert (tmp_path / "real").read_text() == "kept"


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_text("before")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_file(path, "after")
    assert caught.value.filename == str(path), "the error has the file"
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_the_mode(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_file(tmp_path / "by the umask", "")
        write_file(tmp_path / "given", "", 0o644)
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o604)
        write_file(tmp_path / "old", "kept", 0o600, keep=True)
        (tmp_path / "wide").touch(0o666)
        write_file(tmp_path / "wide", "narrow", 0o600)
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"by the umask": 0o640, "given": 0o644, "old": 0o604, "wide": 0o600}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no folder {tmp_path}/none"):
        write_file(tmp_path / "none/x", "")
