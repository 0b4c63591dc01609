"""A real browser without a window, over Chromium's DevTools protocol."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = "chromium", "google-chrome", "chromium-browser"
PATIENCE = 60.0  # seconds, for a machine that does other things
INSTALL = "apt-get", "install", "--yes", "--no-install-recommends", "chromium"


def find_browser() -> str:
    """Return the path of a Chromium: in CI it is installed if absent, else the test is skipped."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found and os.environ.get("CI") and shutil.which("apt-get"):
        sudo = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
        subprocess.run([*sudo, *INSTALL], check=True, timeout=600)
        found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip("there is no Chromium here, and CI is not set, which installs it")
    return found[0]


class Page:
    """An open page; ``show`` evaluates JavaScript in it."""

    def __init__(self, runner: asyncio.Runner, socket: aiohttp.ClientWebSocketResponse):
        self._runner, self._socket, self._number = runner, socket, 0

    def show(self, script: str) -> Any:
        """Return the value of an expression."""
        return self._runner.run(self._ask(script))

    def wait(self, script: str) -> Any:
        """Return the value of an expression, once it is true."""
        until = time.monotonic() + PATIENCE
        while not (found := self.show(script)):
            assert time.monotonic() < until, f"{script} is {found!r}"
            time.sleep(0.1)
        return found

    async def _ask(self, script: str) -> Any:
        self._number += 1
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        await self._socket.send_json(
            {"id": self._number, "method": "Runtime.evaluate", "params": asked}
        )
        while True:
            reply = await self._socket.receive_json(timeout=PATIENCE)
            if reply.get("id") == self._number:
                assert "exceptionDetails" not in reply["result"], reply
                return reply["result"]["result"].get("value")


@contextmanager
def open_page(url: str, folder: Path) -> Iterator[Page]:
    """Open a page in a browser whose files are in a folder."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    command = [find_browser(), *flags, f"--user-data-dir={folder}", url]
    browser = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        with asyncio.Runner() as runner:
            session = runner.run(new_session())
            try:
                page = Page(runner, runner.run(connect(session, folder, url)))
                page.wait(
                    f"location.href.startsWith('{url}') && document.readyState === 'complete'"
                )
                yield page
            finally:
                runner.run(session.close())
    finally:
        browser.terminate()
        browser.wait(PATIENCE)


async def new_session() -> aiohttp.ClientSession:
    """Return a session of the running loop."""
    return aiohttp.ClientSession()


async def connect(
    session: aiohttp.ClientSession, folder: Path, url: str
) -> aiohttp.ClientWebSocketResponse:
    """Return the connection to a browser's page, once it has opened it."""
    port, until = folder / "DevToolsActivePort", time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if port.is_file() and (lines := port.read_text().split()):
            async with session.get(f"http://127.0.0.1:{lines[0]}/json/list") as reply:
                for page in await reply.json(content_type=None):
                    if page["type"] == "page" and page["url"].startswith(url):
                        return await session.ws_connect(page["webSocketDebuggerUrl"])
        await asyncio.sleep(0.1)
    raise TimeoutError("the browser did not open the page")
