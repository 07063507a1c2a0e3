# SPDX-License-Identifier: MIT
"""The status of all GPUs as text, JSON or CSV, once or again and again; the body of cgpu-smi."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import click

from cgpu_common.output import flush, out
from cgpu_common.proc import Paths

from . import collect, overview, query
from .terminal import width
from .view import View, chosen


@dataclass(frozen=True)
class Wanted:
    """What to show. @interval_s None: no sample. @every_s None: once."""

    interval_s: float | None = 1.0
    every_s: float | None = None
    gpus: Sequence[str] = ()
    containers: Sequence[str] = ()
    sort: str = "name"
    as_json: bool = False
    full: bool = False
    xml: bool = False
    list_only: bool = False
    query_gpu: str | None = None
    query_container: str | None = None
    format: str = "csv"


def words(text: str | None) -> list[str]:
    """The words of an option that takes several, separated by commas."""
    return [] if text is None else text.split(",")


class _Writer:
    """Checks the options first, then makes the text of each view."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._form = query.parse_format(wanted.format)
        self._gpu_fields = (
            None if wanted.query_gpu is None else query.parse_fields(wanted.query_gpu, query.GPU_FIELDS, "--query-gpu")
        )
        self._fields = (
            None
            if wanted.query_container is None
            else query.parse_fields(wanted.query_container, query.CONTAINER_FIELDS, "--query-container")
        )

    def text(self, view: View, is_first: bool) -> str:
        form = self._form if is_first else query.Format(False, self._form.units)
        if self._gpu_fields:
            return query.gpu_csv(view, self._gpu_fields, form)
        if self._fields:
            return query.container_csv(view, self._fields, form)
        if self._wanted.list_only:
            return overview.list_text(view)
        looped = self._wanted.every_s is not None
        if self._wanted.full:
            from . import full

            data = overview.as_json(view)
            return full.xml(data) if self._wanted.xml else full.text(data)
        if self._wanted.as_json:
            import json  # slow to import

            return json.dumps(overview.as_json(view), indent=None if looped else 2)
        when = [datetime.now(timezone.utc).astimezone().strftime("%a %b %e %H:%M:%S %Y")] if looped else []
        return "\n".join([*when, overview.text(view, width()), *([""] if looped else [])])


def _views(paths: Paths, wanted: Wanted) -> Iterator[View]:
    if wanted.every_s is not None:
        return collect.stream(paths, wanted.every_s)
    needs_sample = not wanted.list_only and not wanted.query_gpu
    return iter([collect.once(paths, wanted.interval_s if needs_sample else None)])


def show(paths: Paths, wanted: Wanted, count: int | None = None) -> None:
    """Print the status of every GPU. @count: of a loop, how often; None: until it is interrupted."""
    if wanted.xml and not wanted.full:
        raise click.UsageError("-x is the form of -q: cgpu-smi -q -x")
    forms = (wanted.as_json, wanted.full, wanted.list_only, wanted.query_gpu, wanted.query_container)
    if sum(map(bool, forms)) > 1:
        raise click.UsageError("--json, -q, -L, --query-gpu and --query-container exclude each other")
    writer = _Writer(wanted)
    is_first = True
    for view in itertools.islice(_views(paths, wanted), count):
        found = writer.text(chosen(view, wanted.gpus, wanted.containers, wanted.sort), is_first)
        if found:
            out(found)
            flush()
        is_first = False
