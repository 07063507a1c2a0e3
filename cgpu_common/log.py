# SPDX-License-Identifier: MIT
"""structlog, set up once. The text of an entry is fixed, variable parts are fields; kernel events are sentences.

With the journal as stderr a line starts with its priority and has no time stamp.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

if "rich" in sys.modules:
    import structlog
else:
    # structlog imports rich where that is installed, for traces in colours, which no log of ours has: a quarter of the
    # time that the daemon takes to start.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]

FORMATS = ("text", "json")
PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}  # syslog(3)


def is_journal(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Is this descriptor a stream to the journal (systemd.exec(5), $JOURNAL_STREAM)?"""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def journal_line(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> str:
    priority = PRIORITIES.get(str(fields.pop("level", "info")), 6)
    fields.pop("timestamp", None)
    trace = str(fields.pop("exception", ""))
    words = [str(fields.pop("event", "")), *(f"{name}={value!r}" for name, value in fields.items())]
    lines = " ".join(words).splitlines() + trace.splitlines()
    return "\n".join(f"<{priority}>{line}" for line in lines)


def configure(fmt: str = "text", level: str = "info") -> None:
    chain: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if fmt == "json":
        chain.append(structlog.processors.JSONRenderer(ensure_ascii=False))
    elif is_journal(2):
        chain.append(journal_line)
    else:
        chain.append(structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]))
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def get() -> Any:
    return structlog.get_logger()
