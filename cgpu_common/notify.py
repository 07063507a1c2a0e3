# SPDX-License-Identifier: MIT
"""sd_notify: one datagram to the service manager, and its watchdog."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping


def send(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """True if a service manager received it."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
            sock.send(text.encode())
    except OSError:
        return False
    return True


def reloading() -> bool:
    """The unit is `reloading` until READY=1. The manager relates it to its own reload request by the time."""
    return send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def ready(status: str = "") -> bool:
    """Report readiness and set the line in `systemctl status`; an empty `status` clears it."""
    return send("READY=1\nSTATUS=" + " ".join(status.split()))


def watchdog_period(environ: Mapping[str, str] = os.environ) -> float | None:
    """Half of the watchdog timeout, in seconds; None without a watchdog."""
    text = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not text.isdecimal() or int(text) == 0:
        return None
    return int(text) / 2e6


async def keep_alive() -> None:
    period = watchdog_period()
    while period is not None:
        send("WATCHDOG=1")
        await asyncio.sleep(period)
