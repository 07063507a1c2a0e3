# SPDX-License-Identifier: MIT
"""The nine points that are published."""

import pytest

from cgpud.limits import limit_bytes, limit_mib


@pytest.mark.parametrize(
    ("total", "container", "dev", "published"),
    [
        (15109, 6, 15, 6043),
        (16130, 4, 15, 4301),
        (16130, 2, 15, 2150),
        (16130, 3, 15, 3226),
        (15079, 3, 14, 3231),
        (23028, 8, 22, 8373),
        (46068, 8, 44, 8376),
        (46068, 3, 44, 3141),
        (15360, 3, 15, 3072),
    ],
)
def test_published(total: int, container: int, dev: int, published: int) -> None:
    assert limit_mib(total, container, dev) == published


def test_bytes_as_the_page_has_them() -> None:
    assert limit_bytes(16130, 4, 15) == 4509925376


def test_everything_is_everything() -> None:
    assert limit_mib(15109, 15, 15) == 15109
