"""What can go wrong with an object store: kinds of failure, what is tried again, and what may be shown of it.

A store's own words may hold credentials (signed queries, keys in XML bodies), so nothing of them reaches a user but
through :func:`redact`.
"""

from __future__ import annotations

import random
import re
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from ..errors import ConfigError, JobError, RefusedError, TokenreelError
from ..settings import store_environment

__all__ = [
    "FailureKind",
    "StoreError",
    "Transfer",
    "changed_error",
    "location_problem",
    "redact",
    "url_problem",
    "with_retries",
]

FailureKind = Literal["again", "denied", "changed", "missing", "unsupported", "exists"]
"""``again``: connections, 5xx, stalls, short answers. ``denied``: 401, 403, expired. ``changed``: another version is
there now. ``missing``: no such object. ``unsupported``: the server cannot do that. ``exists``: it is there already."""

_R = TypeVar("_R")
_SHOWN_CHARACTERS = 300
_DENIED_ATTEMPTS = 4
_QUERY = re.compile(r"((?:[a-z][a-z0-9+.-]*://|/)[^\s?\"'<>()]*)\?[^\s\"'<>()]+", re.I)
_USER = re.compile(r"(://)[^/\s@\"']+@")
_BODY = re.compile(r"<\?xml.*|<Error>.*|<html.*|<!doctype.*", re.I | re.S)
_XML_WORD = re.compile(r"<(Code|Message)>([^<]{1,200})</")


@dataclass(frozen=True)
class Transfer:
    """How much is asked for at once and how long is waited.

    Attributes:
        range_bytes: of one request; all that is asked for at once must arrive within ``request_timeout_s``: by default
            450 kB/s together are the floor.
        ranges: requests at once, of all objects together: ``range_bytes * ranges`` bound the memory.
        attempts: at one range, the first included.
        backoff_s: before the second attempt; doubles up to 20 s, with jitter.
        request_timeout_s: for a whole request.
        idle_timeout_s: for a connection to be made, and without a byte received.
    """

    range_bytes: int = 8 << 20
    ranges: int = 16
    attempts: int = 8
    backoff_s: float = 0.5
    request_timeout_s: float = 300.0
    idle_timeout_s: float = 30.0


class StoreError(Exception):
    """One failed request; ``reason`` is already redacted."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: FailureKind = kind
        self.reason = reason


def redact(text: str) -> str:
    """``text`` of a store or its client on one short line, without queries, users in URLs, bodies beyond code and
    message, and values of the environment's credentials.
    """
    for secret in store_environment().secrets:
        for form in (secret, urllib.parse.quote(secret, safe="")):
            text = text.replace(form, "***")
    text = text.split("\n\nDebug source:", 1)[0]
    words = "".join(f" {name}: {value.rstrip('.')}." for name, value in _XML_WORD.findall(text))
    text = _BODY.sub("", text) + words
    text = _USER.sub(r"\1***@", _QUERY.sub(r"\1?***", text))
    return " ".join(text.split())[:_SHOWN_CHARACTERS]


def url_problem(url: str) -> str | None:
    """Why ``url`` cannot be the root of a source; None if it can. Never repeats the URL, which may hold a password."""
    scheme, _, rest = url.partition("://")
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        return "no URL: a scheme in small letters, such as s3://bucket/folder"
    host = rest.split("/", 1)[0]
    if "@" in host and scheme not in ("abfs", "abfss"):
        return "a URL with a user or a password: credentials come from the environment, never from the configuration"
    if "@" in host and ":" in host.split("@", 1)[0]:
        return "a URL with a password: credentials come from the environment, never from the configuration"
    port = host.rpartition("@")[2].partition(":")[2]
    if ":" in host and not port.isdecimal() and not host.startswith("["):
        return "a URL whose host has something else than a port behind its colon"
    if "?" in rest or "#" in rest:
        return "a URL with a query or a fragment: credentials come from the environment, never from the configuration"
    if not host and scheme != "memory":
        return "a URL without a bucket or a host"
    chained = "::" in (rest.partition("]")[2] if host.startswith("[") else rest)
    segments = rest.rstrip("/").split("/")[1:]
    if any(segment in ("", ".", "..") for segment in segments) or chained or not url.isprintable():
        return "a URL whose path has empty parts, '.', '..', '::' or characters that are not printable"
    return None


def location_problem(location: str) -> str | None:
    """Why ``location``, a folder or a URL, cannot be where a Dataset is; None if it can. Never repeats it."""
    return url_problem(location) if "://" in location and not location.startswith("file://") else None


def with_retries(
    attempt: Callable[[], _R], place: str, transfer: Transfer, renew: Callable[[], None], stop: threading.Event
) -> _R:
    """``attempt()`` until it succeeds: ``again`` is tried again with growing pauses, ``denied`` once more with renewed
    credentials after each pause.

    Args:
        attempt: one request.
        place: URL and range, for the error.
        transfer: attempts and pauses.
        renew: makes a new client, which reads the credentials again.
        stop: ends waiting when another transfer of the job has failed for good.

    Raises:
        JobError: ``TR-REMOTE-FAILED``, ``TR-REMOTE-DENIED`` after the last attempt.
        ConfigError: ``TR-REMOTE-MISSING``.
        StoreError: ``changed``, ``unsupported`` and ``exists``, for the caller to decide.
    """
    for number in range(1, transfer.attempts + 1):
        try:
            return attempt()
        except StoreError as failure:
            if failure.kind in ("changed", "unsupported", "exists"):
                raise
            last = min(_DENIED_ATTEMPTS, transfer.attempts) if failure.kind == "denied" else transfer.attempts
            if failure.kind == "missing" or number >= last or stop.is_set():
                raise _final(failure, place, number) from None
            if failure.kind == "denied":
                renew()
        pause_s = min(20.0, transfer.backoff_s * 2 ** (number - 1))
        stop.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
    raise AssertionError("attempts start at 1")


def _final(failure: StoreError, place: str, attempts: int) -> TokenreelError:
    if failure.kind == "missing":
        return ConfigError("TR-REMOTE-MISSING", f"no such object: {failure.reason}", place, "the object, readable")
    if failure.kind == "denied":
        return JobError(
            "TR-REMOTE-DENIED",
            f"the store refuses the credentials, after {attempts} attempts: {failure.reason}",
            place,
            "credentials in the environment that may list and read, and write where something is uploaded",
            "set them, then the same command again: what was transferred is kept",
        )
    return JobError(
        "TR-REMOTE-FAILED",
        f"the transfer failed, after {attempts} attempts: {failure.reason}",
        place,
        next_command="the same command again: what was transferred is kept",
    )


def changed_error(place: str) -> RefusedError:
    """The object is another one than was listed."""
    return RefusedError(
        "TR-REMOTE-CHANGED",
        "the object changed while it was being read",
        place,
        "objects that stay as they are while a job fetches them",
        "run the same command again; it starts from the new content",
    )
