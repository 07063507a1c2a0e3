#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An inference service in PyTorch: requests arrive by chance, each is timed from its arrival to its last token.

The model is the decode step of a transformer with random weights, batch 1, as a CUDA graph; a request is some tokens.
Arrivals are exponential and do not wait for each other: a late answer delays those behind it, as for a user.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import sys
import time

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


def decoder(torch, layers: int, width: int, context: int):
    """Returns a function that decodes a token. Weights: 12 * layers * width^2 half floats."""
    nn = torch.nn
    heads = width // 128

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.register_buffer("keys", torch.randn(1, heads, context, 128))
            self.register_buffer("values", torch.randn(1, heads, context, 128))

        def forward(self, x):
            query = self.qkv(self.norm1(x))[..., :width].view(1, heads, 1, 128)
            seen = nn.functional.scaled_dot_product_attention(query, self.keys, self.values)
            x = x + self.out(seen.reshape(1, 1, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    net = nn.Sequential(*(Layer() for _ in range(layers))).half().cuda().eval()
    token = torch.randn(1, 1, width, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for _ in range(3):
            net(token)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(token)
    return graph.replay


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
    parser.add_argument("--state", help="file that says whether there is work")
    parser.add_argument("--json", action="store_true", help="accepted: there is nothing else")
    options = parser.parse_args()
    torch = load_torch()
    if isinstance(torch, int):
        return torch
    stop = stop_on_sigterm()
    decode = decoder(torch, options.layers, options.width, options.context)
    state, chance = State(options.state or os.environ.get("SERVELOAD_STATE")), random.Random(options.seed)
    say(event="ready", pid=os.getpid(), monotonic=time.monotonic(), tokens=options.tokens, rate=options.rate)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
