#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training or inference in PyTorch, with the loads' lines of JSON: resnet50 where torchvision is, else a small net."""

from __future__ import annotations

import argparse
import os
import sys
import time

from torchbase import load_torch, say, stop_on_sigterm


def small_net(torch, nn):
    """Some convolutions and a line, about the shape of a resnet's beginning."""
    layers = []
    for here, there in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(here, there, 3, stride=2, padding=1), nn.BatchNorm2d(there), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))


def make_net(torch):
    try:
        from torchvision.models import resnet50

        return "resnet50", resnet50()
    except ImportError:
        return "small conv net", small_net(torch, torch.nn)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="0: until SIGTERM")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--infer", action="store_true", help="forward only")
    parser.add_argument("--interval", type=float, default=0)
    parser.add_argument("--json", action="store_true", help="accepted: there is nothing else")
    options = parser.parse_args()
    torch = load_torch()
    if isinstance(torch, int):
        return torch
    stop = stop_on_sigterm()
    name, net = make_net(torch)
    net = net.cuda().train(not options.infer)
    images = torch.randn(options.batch, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (options.batch,), device="cuda")
    descent = torch.optim.SGD(net.parameters(), lr=0.01)
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> None:
        if options.infer:
            with torch.no_grad():
                net(images)
        else:
            descent.zero_grad()
            loss_of(net(images), labels).backward()
            descent.step()
        torch.cuda.synchronize()

    step()
    free, total = torch.cuda.mem_get_info()
    what = {"name": torch.cuda.get_device_name(), "model": name, "total_bytes": total, "free_bytes": free}
    say(event="ready", pid=os.getpid(), monotonic=time.monotonic(), torch=torch.__version__, **what)
    begin = last = time.monotonic()
    works = 0
    while not stop and (not options.seconds or time.monotonic() - begin < options.seconds):
        step()
        works += 1
        if options.interval and time.monotonic() - last >= options.interval:
            last = time.monotonic()
            say(event="progress", monotonic=last, works=works)
    took = time.monotonic() - begin
    say(event="result", works=works, seconds=took, work_per_s=works / took, **what, simulated=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
