# SPDX-License-Identifier: MIT
"""A container that is fuzzed beside one that must be unaffected: the checks meanwhile and at quiet points.

At any time the ledger is within the limit, and so is the card but for calls in flight. Every five seconds all threads
stop: then memory on the card <= charged = `meminfo` <= limit (--no-contexts: equal by the byte), mappings and OS events
are nvsim's, and the other container is unchanged. At the end nothing is left, in the modules and on the card.

Runs in the guest. Serves the test of a minute and the run of hours, which differ in seconds and seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests/vm/guest/box")]

import kcov  # noqa: E402
from slicebox import CLIENTS, MIB, PROC, Box, fb_used, result, until  # noqa: E402

HOSTILE = "f0" * 32
VICTIM = "0f" * 32
LIMIT_MIB = 768
VICTIM_LIMIT_MIB = 512
HOST_LIMIT_MIB = 64
#: Of N/C/stat: zero when the container's processes have ended.
COUNTED = ("clients", "devices", "events", "os_events", "host_used_bytes", "bar1_bytes", "channels", "groups")
VICTIM_MIB = 24
QUIET_S = 5
CORPUS = REPO / "build/fuzz"  # of steps that reached something new, from run to run
#: If the driver selects the page size, an allocation can take up to 2 MiB more than was charged before the call. Until
#: the module has read the real size, the card has that much more in use, once for each call in flight.
IN_FLIGHT = 16 * 2 * MIB


def driver_counts() -> dict[str, int]:
    """What the simulated driver has of all containers, by its own count, beside video memory."""
    text = Path("/proc/driver/nvsim/0/state").read_text()
    return {name: int(re.search(rf"^{name}=(\d+)$", text, re.M)[1]) for name in ("bar1_used", "os_events")}


class Victim:
    """Memory of known size and content, and a channel that works now and then."""

    def __init__(self, box: Box):
        self.box = box
        self.client = box.client()
        self.gpu = self.client.gpu(0)
        self.words = random.Random(1).sample(range(0, VICTIM_MIB * MIB, 4), 512)
        status, memory = self.gpu.alloc_vidmem(VICTIM_MIB * MIB)
        assert status == 0
        self.view = self.gpu.map_cpu(memory, VICTIM_MIB * MIB)
        for at in self.words:
            self.view.write32(at, at ^ 0x5EED)
        self.channel = self.gpu.space().group().channel()
        self.used = box.used
        self.card = fb_used()
        self.counts = driver_counts()

    def check(self) -> None:
        assert all(self.view.read32(at) == at ^ 0x5EED for at in self.words), "the victim's memory was written"
        memory = self.gpu.memory()
        assert memory["ram"] == memory["total"] == VICTIM_LIMIT_MIB * MIB
        assert self.box.used == self.used, "the victim's account has changed"
        free, pids = self.box.meminfo()
        assert pids == {os.getpid(): self.used}
        assert free == VICTIM_LIMIT_MIB * MIB - self.used
        done = self.channel.done
        self.channel.submit(kernel_ns=1000)
        self.channel.wait(timeout=60)
        assert self.channel.done == done + 1

    def close(self) -> None:
        self.client.close()


class Watch(threading.Thread):
    """At any moment: within the limit by the ledger, and by the card except for calls in flight."""

    def __init__(self, box: Box, victim: Victim):
        super().__init__(daemon=True)
        self.box, self.victim = box, victim
        self.most_used = self.most_taken = self.looks = 0
        self.over = ""
        self._stop_it = threading.Event()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop_it.set()
        self.join()

    def run(self) -> None:
        while not self._stop_it.wait(0.2):
            used, taken = self.box.used, fb_used() - self.victim.card
            self.most_used, self.most_taken = max(self.most_used, used), max(self.most_taken, taken)
            self.looks += 1
            host = self.box.stat("host_used_bytes")
            if host > HOST_LIMIT_MIB * MIB:
                self.over = f"system memory {host} of {HOST_LIMIT_MIB * MIB}"
            if used > LIMIT_MIB * MIB or taken > LIMIT_MIB * MIB + IN_FLIGHT:
                self.over = f"limit {LIMIT_MIB * MIB}, ledger {used}, card {taken}"


def accounts_agree(box: Box, victim: Victim, exactly: bool) -> None:
    """At a quiet point: memory in use on the card is charged, and the charge is shown.

    A context is charged before its buffers are allocated; without contexts the two are equal.
    """

    def look() -> dict[str, int]:
        free, pids = box.meminfo()
        given = {name: count - victim.counts[name] for name, count in driver_counts().items()}
        counted = {"bar1_used": box.stat("bar1_bytes"), "os_events": box.stat("os_events")}
        return {name: given[name] - counted[name] for name in given} | {
            "card": fb_used() - victim.card,
            "ledger": box.used,
            "shown": sum(pids.values()),
            "free": free,
        }

    def agree(seen: dict[str, int]) -> bool:
        used = seen["ledger"]
        given = seen["card"] == used if exactly else seen["card"] <= used
        if seen["bar1_used"] or seen["os_events"]:  # more in the driver than the module counts, or less
            return False
        return given and used == seen["shown"] == LIMIT_MIB * MIB - seen["free"]

    end = time.monotonic() + 20  # memory of a killed process is freed in the background
    while not agree(seen := look()):
        assert time.monotonic() < end, f"the accounts do not agree: {seen} of {LIMIT_MIB * MIB}"
        time.sleep(0.1)


def what_is_left(box: Box, victim: Victim) -> str:
    """For a charge or memory on the card that stays when the client has ended."""
    living = subprocess.run(["pgrep", "-x", "abifuzz"], capture_output=True, text=True).stdout.split()
    return (
        f"charged {box.used}, on the card {fb_used() - victim.card}, by process {box.meminfo()[1]}, "
        f"processes {living}; {(box.proc / 'stat').read_text().splitlines()}"
    )


def fuzz(seconds: float, seed: int, *options: object) -> dict:
    """One run: the report of the client, and the observations from outside."""
    before = fb_used()
    with contextlib.ExitStack() as stack:
        neighbour = stack.enter_context(Box(VICTIM, VICTIM_LIMIT_MIB))
        box = stack.enter_context(Box(HOSTILE, LIMIT_MIB))
        (box.proc / "host_memsize").write_text(str(HOST_LIMIT_MIB * MIB))
        victim = stack.enter_context(contextlib.closing(Victim(neighbour)))
        watch = stack.enter_context(Watch(box, victim))
        words = command_line(box, (neighbour.dev, "/dev"), seconds, seed, "--quiet", QUIET_S, *options)
        quiets = 0
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            last = ""
            try:
                for last in client.stdout:
                    if last != "quiet\n":
                        break
                    accounts_agree(box, victim, "--no-contexts" in options)
                    victim.check()
                    assert not watch.over, watch.over
                    quiets += 1
                    client.stdin.write("go\n")
                    client.stdin.flush()
            except BaseException:
                client.kill()
                raise
        assert client.returncode == 0, f"abifuzz ended with {client.returncode}: {last}"
        assert not watch.over, watch.over
        until(lambda: not box.used and fb_used() == victim.card, why=lambda: what_is_left(box, victim))
        until(lambda: not any(box.stat(name) for name in COUNTED), why=lambda: what_is_left(box, victim))
        victim.check()
    until(lambda: fb_used() == before)
    found = json.loads(last) | {"quiets": quiets, "lost bytes": fb_used() - before}
    return found | {"most_used": watch.most_used, "most_taken": watch.most_taken}


def command_line(box: Box, strangers: tuple[str, ...], seconds: float, seed: int, *options: object) -> list[str]:
    words = [CLIENTS / "abifuzz", "--dev", box.dev, "--seconds", seconds, "--seed", seed, *options]
    return [str(word) for word in words] + [word for path in strangers for word in ("--wrong-dev", path)]


def works_beside(seconds: float, seed: int) -> tuple[int, int]:
    """Kernels completed by the victim and by the fuzzed container's honest half; equal weights, always with work."""
    policy = PROC / "0/policy"
    policy.write_text("2\n")
    try:
        with Box(VICTIM, VICTIM_LIMIT_MIB) as neighbour, Box(HOSTILE, LIMIT_MIB) as box:
            both = (neighbour, box)
            loads = [one.simload("--seconds", seconds, "--kernel-us", 500) for one in both]
            until(lambda: all(one.stat("opened") for one in both))
            # It has to end first: its remaining work would run in the other's place.
            words = command_line(box, (neighbour.dev, "/dev"), seconds * 0.7, seed)
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            victims, own = (result(load)["works"] for load in loads)
            return victims, own
    finally:
        policy.write_text("5\n")


def coverage(found: dict) -> dict[str, dict[str, int]]:
    """By kind of call: the number of rows, of rows called, answered with success, with a status."""
    kinds: dict[str, dict[str, int]] = {}
    for row in found["rows"]:
        kind = kinds.setdefault(row["kind"], {"rows": 0, "called": 0, "ok": 0, "refused": 0})
        kind["rows"] += 1
        kind["called"] += bool(row["ok"] or row["status"] or row["failed"])
        kind["ok"] += bool(row["ok"])
        kind["refused"] += bool(row["status"] or row["failed"])
    return kinds


def main() -> None:
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    options = [*kcov.option(), *sys.argv[3:]]
    if "--module" in options and not {"--corpus", "--unguided", "--rewrite"} & set(options):
        options += ["--corpus", str(CORPUS)]
    found = fuzz(seconds, seed, *options)
    rows = found.pop("rows")
    reached = found.pop("reached", None)
    if reached is not None:
        files = kcov.by_file(reached)
        found |= {"files": kcov.by_name(files)}
        found |= dict(zip(("functions", "blocks", "of blocks", "edges"), found["files"]["all"], strict=True))
        print(f"functions, blocks and edges of cgpu_km that were reached:\n{kcov.table(files)}", file=sys.stderr)
    report = json.dumps(found | coverage({"rows": rows}))
    if run := os.environ.get("CGPU_RUN"):
        Path(run, "fuzz.json").write_text(report + "\n")
    print(report)


if __name__ == "__main__":
    main()
