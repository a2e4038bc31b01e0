"""A headless Chromium over its DevTools protocol, by pipes: no port, no driver and no library between.

    with Chromium(folder) as browser:
        page = browser.open(path)
        page.evaluate("document.title")

Every page keeps what its console said, what threw, and what it asked of the network.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

__all__ = ["Chromium", "Page", "find_chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_LIMIT_S = 120.0
_KEYS = {"Backspace": 8, "Home": 36, "Tab": 9}


def find_chromium() -> str:
    """Where Chromium is; without one the test is skipped."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium on this machine ({', '.join(_NAMES)}): apt-get install chromium")
    return found


class Chromium:
    """One browser process with a profile of its own in ``folder``; it and its children end with the block."""

    def __init__(self, folder: Path) -> None:
        program = find_chromium()
        profile = folder / "chromium-profile"
        profile.mkdir(parents=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # The browser reads requests from descriptor 3 and writes answers to 4; those in the way are moved first.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (to_read, to_write)]  # to whatever is free there
        null = os.open(os.devnull, os.O_RDWR)
        moves = [(os.POSIX_SPAWN_DUP2, old, new) for old, new in ((null, 0), (null, 1), (null, 2), (high[0], 3))]
        self.process = os.posix_spawn(
            program,
            [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            {**os.environ, "HOME": str(profile)},
            file_actions=[*moves, (os.POSIX_SPAWN_DUP2, high[1], 4)],
            setpgroup=0,
        )
        for fd in (to_read, to_write, *high, null):
            os.close(fd)
        self._number = 0
        self._buffer = b""
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come first reach their pages."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda found: found.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def _until(self, is_wanted: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        deadline = time.monotonic() + _LIMIT_S
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                found = json.loads(text)
                page = self._pages.get(found.get("sessionId", ""))
                if page is not None and "method" in found:
                    page.heard(found["method"], found["params"])
                if is_wanted(found):
                    return found
            assert select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0], "Chromium is silent"
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "Chromium ended"
            self._buffer += chunk

    def open(self, path: Path, *, scripts: bool = True, dark: bool = False, width: int = 1200) -> Page:
        """Load a file in a new tab and wait until it has loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable", session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", session, **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", session, features=[feature])
        if not scripts:
            self.ask("Emulation.setScriptExecutionDisabled", session, value=True)
        self.ask("Page.navigate", session, url=path.resolve().as_uri())
        if not page.is_loaded:
            self._until(lambda found: page.is_loaded)
        return page


class Page:
    """A tab.

    Attributes:
        errors: exceptions that nobody caught, and what console and browser call errors or warnings.
        requests: URLs asked for, the file itself left out. dialogs: texts of alert() and its like.
    """

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.is_loaded = False

    def heard(self, method: str, told: Mapping[str, Any]) -> None:
        """Take in an event."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(told["args"])[:2000])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent" and told["type"] != "Document":
            self.requests.append(told["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(told["message"])
            # The tab waits for an answer: it is asked for without waiting for the answer's answer.
            self._browser.ask("Page.handleJavaScriptDialog", self._session, accept=True)
        elif method == "Page.loadEventFired":
            self.is_loaded = True

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self._browser.ask("Runtime.evaluate", self._session, **asked)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def write(self, text: str) -> None:
        """Type text, character by character, into what has the focus."""
        for character in text:
            self._key(character, text=character)

    def press(self, key: str) -> None:
        """Press a key of ``_KEYS``."""
        self._key(key, windowsVirtualKeyCode=_KEYS[key])

    def _key(self, key: str, **more: Any) -> None:
        self._browser.ask("Input.dispatchKeyEvent", self._session, type="keyDown", key=key, **more)
        self._browser.ask("Input.dispatchKeyEvent", self._session, type="keyUp", key=key, **more)

    def visible_text(self) -> str:
        """What a reader sees, also with scripts off."""
        root = self._browser.ask("DOM.getDocument", self._session, depth=0)["root"]["nodeId"]
        body = self._browser.ask("DOM.querySelector", self._session, nodeId=root, selector="main")["nodeId"]
        return str(self._browser.ask("DOM.getOuterHTML", self._session, nodeId=body)["outerHTML"])

    def screenshot(self, height: int | None = None) -> bytes:
        """PNG of the page's beginning."""
        import base64

        if height is not None:
            size = {"width": 1200, "height": height, "deviceScaleFactor": 1, "mobile": False}
            self._browser.ask("Emulation.setDeviceMetricsOverride", self._session, **size)
        return base64.b64decode(self._browser.ask("Page.captureScreenshot", self._session)["data"])
