# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from cgpu_common import config
from cgpu_common.address import Tcp, Unix, parse
from cgpu_common.errors import ConfigError


def configured(text: str) -> str:
    return config.merge([("cgpu.toml", {"metrics": text})]).metrics


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", None),
        ("unix:/run/cgpu-metrics/metrics.sock", Unix("/run/cgpu-metrics/metrics.sock")),
        ("127.0.0.1:9400", Tcp("127.0.0.1", 9400)),
        ("[::1]:1", Tcp("::1", 1)),
        ("10.0.0.5:65535", Tcp("10.0.0.5", 65535)),
    ],
)
def test_good(text: str, where: object) -> None:
    assert parse(text) == where
    assert configured(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(":9400", "9400", "localhost:9400", "224.0.0.1:9400", "::1:9400"),
        *("127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:+80", "127.0.0.1:http"),
        *("unix:", "unix:metrics.sock", "unix:/" + "x" * 107, "http://127.0.0.1:9400", "true"),
        # The way to cgpud's own socket.
        *("unix:/run/cgpu/metrics.sock", "unix:/var/run/cgpu/m", "unix://run/cgpu/m", "unix:/run/./cgpu/x/m"),
        *("unix:/run/cgpu-metrics/../cgpu/m", "unix:/run/m", "unix:/var/run/m"),
    ],
)
def test_bad(text: str) -> None:
    with pytest.raises(ConfigError, match="metrics must"):
        parse(text)
    with pytest.raises(ConfigError, match="metrics must"):
        configured(text)


@pytest.mark.parametrize("text", ["0.0.0.0:9400", "[::]:9400"])
def test_every_address_needs_tls(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^cgpu.toml: metrics must name the address .* or have metrics_tls"):
        configured(text)
    both = config.merge([("a.toml", {"metrics": text}), ("b.toml", {"metrics_tls": "/etc/cgpu/metrics"})])
    assert (both.metrics, both.metrics_tls) == (text, "/etc/cgpu/metrics")


def test_tls_is_for_an_address() -> None:
    with pytest.raises(ConfigError, match="metrics_tls is for an IP address"):
        config.merge([("cgpu.toml", {"metrics": "unix:/run/cgpu-metrics/m", "metrics_tls": "/etc/cgpu/metrics"})])
    with pytest.raises(ConfigError, match="metrics_tls = 'x' is not allowed"):
        config.merge([("cgpu.toml", {"metrics_tls": "x"})])
