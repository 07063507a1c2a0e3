# SPDX-License-Identifier: MIT
"""Each test's report names the engines that it has used (build/engines.json)."""

from __future__ import annotations

from collections.abc import Iterator

import engines_used
import pytest


@pytest.fixture(autouse=True)
def report_engines(request: pytest.FixtureRequest) -> Iterator[None]:
    """As record_property() does, which warns about each test with the reports' default schema."""
    yield
    request.node.user_properties += [("engine", " ".join(found)) for found in engines_used.taken()]
