# SPDX-License-Identifier: MIT
"""Prometheus' HTTP API: instant queries. The standard library's client is enough for four requests."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cgpu_common.exits import CgpuError, Exit

from .columns import printable
from .fleet import METRICS, SHARE, Fleet, Sample, of_prometheus

TIMEOUT_S = 30.0
ANSWER_MAX = 512 << 20  # two hundred nodes of eight GPUs with ten containers each are some 40 MiB
VALUE_END = 1 << 63  # every figure of cgpud's is below
TOKEN_MAX = 16 << 10
WINDOW = "1m"
KNOWN_FOR = "24h"  # a target without figures is a node of cgpu's if it had some in this time


@dataclass(frozen=True)
class Prometheus:
    """@url: its address, with the path before /api/v1. @token: of a bearer. @ca: authorities, not the system's."""

    url: str
    token: str = ""
    ca: Path | None = None

    def query(self, text: str) -> list[Sample]:
        """The series of an instant query. Raises CgpuError with the address and what went wrong there."""
        data = self._get(text)
        try:
            if data["data"]["resultType"] != "vector":
                raise KeyError(data["data"]["resultType"])
            found: Sequence[Any] = data["data"]["result"]
            out: list[Sample] = [
                ({str(k): str(v) for k, v in one["metric"].items()}, float(one["value"][1])) for one in found
            ]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            raise self._error("its answer is no result of a query", "is it a Prometheus?") from None
        for labels, value in out:
            if not 0 <= value < VALUE_END:  # nor is NaN
                name = f"{labels.get('__name__') or 'a series'} of {labels.get('instance', '?')}"
                raise self._error(f"{name} is {value}, which cgpud never exports", "--match takes a part of the series")
        return out

    def _no_address(self, why: str = "") -> CgpuError:
        text = f"--prometheus: {printable(self.url)!r} is no address of HTTP{f': {printable(why)}' if why else ''}"
        return CgpuError(Exit.USAGE, "usage", text, "http://prometheus.example:9090")

    def _error(self, why: str, hint: str = "") -> CgpuError:
        return CgpuError(Exit.REFUSED, printable(self.url), printable(why), hint)

    def _get(self, text: str) -> Any:
        address = f"{self.url.rstrip('/')}/api/v1/query"
        if not self.url.startswith(("http://", "https://")):
            raise self._no_address()
        try:
            _origin(self.url)  # a port above 65535 would be taken modulo 65536, for another server
        except ValueError as error:
            raise self._no_address(str(error)) from None
        try:
            request = urllib.request.Request(address, urllib.parse.urlencode({"query": text}).encode())
        except ValueError as error:
            raise self._no_address(str(error)) from None
        request.add_header("User-Agent", "cgpu")
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            tls = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise _bad_file("--ca-file", self.ca, error.strerror or str(error)) from None
        try:
            opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls), _SameOrigin(self._error))
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                body = answer.read(ANSWER_MAX + 1)
        except urllib.error.HTTPError as error:
            raise self._error(f"HTTP status {error.code}: {_said(error)}", _hint(error.code)) from None
        except urllib.error.URLError as error:
            raise self._error(f"does not answer: {_reason(error.reason)}") from None
        except http.client.InvalidURL as error:
            raise self._no_address(str(error)) from None
        except (OSError, http.client.HTTPException) as error:  # while it is read
            raise self._error(f"does not answer: {_reason(error)}") from None
        except ValueError:  # its text may have a header's value, and so the token
            raise self._no_address() from None
        if len(body) > ANSWER_MAX:
            raise self._error(f"its answer is larger than {ANSWER_MAX >> 20} MiB", "--match takes a part of the nodes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self._error("its answer is no JSON", "is it a Prometheus?") from None


def _origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises ValueError."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows a redirect within a server, with the query and the token; one to elsewhere is an error that names it:
    the token is not for it, and what it says may not be of this fleet."""

    def __init__(self, error: Callable[[str, str], CgpuError]) -> None:
        self._error = error

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request:
        try:
            scheme, host, port = there = _origin(newurl)
        except ValueError:
            raise self._error(f"HTTP status {code}: leads to what is no address", "") from None
        if there != _origin(req.full_url):
            at = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
            raise self._error(
                f"HTTP status {code}: leads to {at}, which is not asked", "give that address if it is right"
            )
        found = urllib.request.Request(newurl, req.data, req.headers)
        for name, value in req.unredirected_hdrs.items():
            if name == "Authorization":
                found.add_unredirected_header(name, value)
        return found


def _reason(error: object) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _said(error: urllib.error.HTTPError) -> str:
    """Prometheus' own sentence, else HTTP's."""
    try:
        found = json.loads(error.read(1 << 16)).get("error")
    except (OSError, ValueError, AttributeError, RecursionError, http.client.HTTPException):
        found = None
    return " ".join(str(found or error.reason).split())[:200]


def _hint(status: int) -> str:
    return {401: "--token-file", 403: "--token-file", 404: "the address of Prometheus itself, without /graph"}.get(
        status, ""
    )


def _bad_file(option: str, path: Path | None, why: str) -> CgpuError:
    return CgpuError(Exit.USAGE, "usage", f"{option}: {path}: {why}")


def bearer(path: Path) -> str:
    """The token in a file. Raises CgpuError without any of what the file has: it may be a key, by mistake."""
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_MAX + 1).strip()
    except OSError as error:
        raise _bad_file("--token-file", path, error.strerror or str(error)) from None
    if not token or len(token) > TOKEN_MAX or not all(0x21 <= byte <= 0x7E for byte in token):
        why = f"has no token: that is one line of printable ASCII without blanks, at most {TOKEN_MAX >> 10} KiB"
        raise _bad_file("--token-file", path, why)
    return token.decode("ascii")


def fleet(source: Prometheus, match: str) -> Fleet:
    """@match: more matchers of a selector, as job="cgpu"; "": none."""
    more = f", {match}" if match else ""
    samples = source.query(f'{{__name__=~"{"|".join(METRICS)}"{more}}}')
    known = source.query(f"max_over_time(cgpu_module_loaded{{{match}}}[{KNOWN_FOR}])")
    if not samples and not known:
        hint = "docs/user/metrics.md has the scrape configuration" + ("; --match may fit nothing" if match else "")
        raise CgpuError(Exit.NOT_FOUND, source.url, "has no figures of cgpud", hint)
    jobs = sorted({labels["job"] for labels, _ in (*samples, *known) if "job" in labels})
    up = source.query(f'up{{job=~"{"|".join(map(_quoted, jobs))}"{more}}}') if jobs else []
    shares = source.query(f"rate({SHARE}{{{match}}}[{WINDOW}])")
    return of_prometheus(samples, shares, up, known)


def _quoted(job: str) -> str:
    """As a regular expression within a string of PromQL."""
    import re  # re.escape also escapes a space, which RE2 takes

    return re.escape(job).replace("\\", "\\\\").replace('"', '\\"')
