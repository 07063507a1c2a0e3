#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An inference service in PyTorch: requests arrive by chance, each is timed from its arrival to its last token.

The model is the decode step of a transformer with random weights, as a CUDA graph; a request is some tokens.
Arrivals are exponential and do not wait for each other: a late answer delays those behind it, as for a user.

With --batches it is a loop instead: so many requests are decoded at once, and the next ones begin when they end. Each
line of stdin is the number of requests from then on, one of those named; 0, as at the start: the loop rests.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable

from torchbase import load_torch, say, stop_on_sigterm


class State:
    """One word in a file: 1 while there is work. conduct reads it in place of the run state."""

    def __init__(self, path: str | None):
        self._map = None
        if path:
            with open(path, "w+b") as file:
                file.write(bytes(4096))
                file.flush()
                self._map = mmap.mmap(file.fileno(), 4096)

    def set(self, busy: int) -> None:
        if self._map:
            self._map[0] = busy


def decoders(torch, layers: int, width: int, context: int, batches: list[int]) -> dict[int, Callable[[], None]]:
    """By batch: a function that decodes a token of each request. Weights: 12 * layers * width^2 half floats, once."""
    nn = torch.nn
    heads = width // 128

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.register_buffer("keys", torch.randn(max(batches), heads, context, 128))
            self.register_buffer("values", torch.randn(max(batches), heads, context, 128))

        def forward(self, x):
            batch = x.shape[0]
            query = self.qkv(self.norm1(x))[..., :width].view(batch, heads, 1, 128)
            seen = nn.functional.scaled_dot_product_attention(query, self.keys[:batch], self.values[:batch])
            x = x + self.out(seen.reshape(batch, 1, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    # Made on the GPU: the processor takes a minute for as many random numbers.
    with torch.device("cuda"):
        net = nn.Sequential(*(Layer().half() for _ in range(layers))).eval()
    found = {}
    with torch.no_grad():
        for batch in batches:
            token = torch.randn(batch, 1, width, device="cuda", dtype=torch.float16)
            for _ in range(3):
                net(token)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                net(token)
            found[batch] = graph.replay
    return found


class Wanted:
    """The batch that stdin's last line asks for."""

    def __init__(self, batches: list[int]):
        self.batch = 0
        self.changed = threading.Event()
        self._allowed = {0, *batches}
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for line in sys.stdin:
            if not line.strip().isdigit() or int(line) not in self._allowed:
                print(f"serveload: {line.strip()!r} is none of {sorted(self._allowed)}", file=sys.stderr, flush=True)
                continue
            self.batch = int(line)
            self.changed.set()


def loop(torch, options: argparse.Namespace, decode: dict[int, Callable[[], None]], stop: list[int]) -> None:
    """Tokens, as fast as they come; `works` counts those of all requests."""
    wanted = Wanted(list(decode))
    begin = last = time.monotonic()
    works = 0
    while not stop and (not options.seconds or time.monotonic() - begin < options.seconds):
        if time.monotonic() - last >= options.interval:
            last = time.monotonic()
            say(event="progress", monotonic=last, works=works)
        batch = wanted.batch
        if not batch:
            wanted.changed.wait(options.interval)
            wanted.changed.clear()
            continue
        decode[batch]()
        torch.cuda.synchronize()
        works += batch


def serve(torch, options: argparse.Namespace, decode: Callable[[], None], stop: list[int]) -> None:
    """Requests by chance, one after the other."""
    state, chance = State(options.state or os.environ.get("SERVELOAD_STATE")), random.Random(options.seed)
    begin = last = time.monotonic()
    due, works = begin + chance.expovariate(options.rate), 0
    while not stop and (not options.seconds or time.monotonic() - begin < options.seconds):
        now = time.monotonic()
        if now - last >= options.interval:
            last = now
            say(event="progress", monotonic=now, works=works)
        if now < due:
            time.sleep(min(due - now, options.interval))
            continue
        state.set(1)
        for _ in range(options.tokens):  # a token depends on the one before: each is waited for
            decode()
            torch.cuda.synchronize()
        end = time.monotonic()
        works += 1
        arrived, due = due, due + chance.expovariate(options.rate)
        if due > end:
            state.set(0)
        say(event="request", arrived=arrived, monotonic=end, ms=1000 * (end - arrived))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=5, help="requests per second")
    parser.add_argument("--tokens", type=int, default=16, help="of a request")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=0, help="0: until SIGTERM")
    parser.add_argument("--interval", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batches", type=lambda text: [int(one) for one in text.split(",")], help="loop: 1,2,4")
    parser.add_argument("--state", help="file that says whether there is work")
    parser.add_argument("--json", action="store_true", help="accepted: there is nothing else")
    options = parser.parse_args()
    torch = load_torch()
    if isinstance(torch, int):
        return torch
    stop = stop_on_sigterm()
    decode = decoders(torch, options.layers, options.width, options.context, options.batches or [1])
    say(event="ready", pid=os.getpid(), monotonic=time.monotonic(), tokens=options.tokens, rate=options.rate)
    if options.batches:
        loop(torch, options, decode, stop)
    else:
        serve(torch, options, decode[1], stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
