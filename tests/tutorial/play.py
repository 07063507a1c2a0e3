# SPDX-License-Identifier: MIT
"""In the machine: runs the commands of the pages as a newcomer types them, and shows them as a terminal does.

play.py docker|kube FILE : FILE gets a list of {page, ok, commands}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(REPO / "tests"), str(REPO / "tests/vm/guest/box")]

import pages  # noqa: E402

COLUMNS = "100"
COMMAND_S = 300


def play(command: str, environ: dict[str, str]) -> pages.Played:
    begin = time.monotonic()
    try:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", env=environ, timeout=COMMAND_S, check=False,
        )  # fmt: skip
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, output = 124, f"{(error.stdout or b'').decode(errors='replace')}\nno end within {COMMAND_S} s"
    return pages.Played(command, status, output, round(time.monotonic() - begin, 1))


def play_page(page: str, mark: str, environ: dict[str, str]) -> dict[str, object]:
    """Stops at the first command that fails: the ones after it rest on it."""
    wanted = pages.commands((REPO / page).read_text(), mark)
    print(f"== {page}", flush=True)
    played: list[pages.Played] = []
    for command in wanted:
        played.append(play(command, environ))
        found = pages.record(page, played[-1:], 1)["commands"][0]
        print("\n".join(map(pages.shortened, pages.session(found))), flush=True)
        if played[-1].status:
            print(f"== {page}: that command ended with status {played[-1].status}", flush=True)
            break
    return pages.record(page, played, len(wanted))


@contextmanager
def docker() -> Iterator[dict[str, str]]:
    import machine

    yield machine.prepare()


@contextmanager
def kube() -> Iterator[dict[str, str]]:
    """A node with two GPUs in a Kubernetes cluster, where the kubelet, containerd and cgpu-kube run."""
    import docker_box
    from cluster import stand

    files = {"bin/busybox": Path("/bin/busybox"), "bin/simload": docker_box.find_simload()}
    with stand.Stand(Path(os.environ["CGPU_RUN"]), fake=False, files=files, seconds=240) as found:
        found.label("default")  # the page labels it
        path = f"{stand.PROGRAMS}:{os.environ['PATH']}"
        more = {"IMAGE": stand.PAUSE_IMAGE, "KUBECONFIG": str(found.cluster.kubeconfig("admin")), "PATH": path}
        words = ["kubectl", "apply", "-f", str(stand.DEPLOY / "base/runtimeclass.yaml")]
        subprocess.run(words, env=os.environ | more, check=True, stdout=subprocess.DEVNULL)
        yield more


def main() -> int:
    kind, file = sys.argv[1:]
    done = []
    with {"docker": docker, "kube": kube}[kind]() as more:
        environ = os.environ | {"COLUMNS": COLUMNS} | more
        for page, mark in pages.PAGES[kind].items():
            done.append(play_page(page, mark, environ))
            Path(file).write_text(json.dumps(done, indent=1))
            if kind == "docker":
                docker_clean()
    return 0 if all(one["ok"] for one in done) else 1


def docker_clean() -> None:
    """A page that broke off leaves containers; the next one begins with none."""
    names = subprocess.run(["docker", "ps", "-aq"], capture_output=True, text=True, check=False).stdout.split()
    if names:
        subprocess.run(["docker", "rm", "-f", *names], capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
