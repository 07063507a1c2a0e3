# SPDX-License-Identifier: MIT
"""structlog, set up once. Events are short fixed words; everything that varies is a field."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

FORMATS = ("text", "json")


def configure(fmt: str = "text", level: str = "info") -> None:
    chain: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if fmt == "json":
        chain.append(structlog.processors.JSONRenderer(ensure_ascii=False))
    else:
        chain.append(structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]))
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def get() -> Any:
    return structlog.get_logger()
