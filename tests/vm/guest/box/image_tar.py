# SPDX-License-Identifier: MIT
"""Images of static programs, as tar files: nothing comes from a registry."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def rootfs(programs: Mapping[str, Path], applets: Sequence[str], folders: Sequence[str]) -> bytes:
    """Programs by their path there, links to busybox, and folders."""
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for name, source in programs.items():
            add(tar, name, source.read_bytes(), 0o755)
        for name in applets:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name in folders:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
    return blob.getvalue()


def saved(layer: bytes, names: Sequence[str], command: Sequence[str]) -> bytes:
    """An image of one layer, as `docker save` would write it."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": list(names), "Layers": ["layer.tar"]}]
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        add(tar, "config.json", json.dumps(config).encode())
        add(tar, "layer.tar", layer)
        add(tar, "manifest.json", json.dumps(manifest).encode())
    return blob.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
