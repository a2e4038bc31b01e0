"""A server that says nothing of when an object changed: what it sent once is not taken for what it has now."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dataprep.remote.listing import look_up
from dataprep.remote.mirror import fetch_all, mirrored, to_fetch
from loader.cli_options import Output
from loader.remote.store import open_store
from loader.remote.store_failures import Transfer

QUICK = Transfer(range_bytes=64 << 10, ranges=4, attempts=4, backoff_s=0.01, request_timeout_s=2, idle_timeout_s=1)


class _Versionless(BaseHTTPRequestHandler):
    """Answers with bytes and their number, and no word on when they changed."""

    content = b"first"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_what_has_no_version_is_never_taken_from_the_mirror(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Versionless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        store = open_store(f"http://127.0.0.1:{server.server_port}", QUICK)
        for content in (b"first", b"other"):
            _Versionless.content = content
            (file,) = look_up(store, ["a.bin"], QUICK)
            lacking, notes = to_fetch([mirrored(tmp_path, store, file)])
            assert (file.version, notes) == ("", {})
            fetch_all(lacking, Output(quiet=True), QUICK)
            assert lacking[0].location.read_bytes() == content
    finally:
        server.shutdown()
        server.server_close()
