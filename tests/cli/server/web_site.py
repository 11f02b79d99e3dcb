"""The chat page in a real browser, for its tests: fixtures, and what they do on it."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fake_api
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
expect = sync_api.expect
PATIENCE_MS = 30_000  # a machine may have much else to do
expect.set_options(timeout=PATIENCE_MS)

HERE = Path(__file__).parent
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


# Timers of more than 1.5 s end what the page shows for a moment (a toast, "Copied") and the wait
# for a busy server: here they fire when a test says so, as it may be held up for longer than that.
HELD_TIMERS = """(() => {
  const { setTimeout: begin, clearTimeout: end } = window;
  const held = new Map();
  window.setTimeout = (call, ms, ...rest) => {
    if (!(ms > 1500)) return begin(call, ms, ...rest);
    const id = begin(() => {}, 1e9);
    held.set(id, () => call(...rest));
    return id;
  };
  window.clearTimeout = (id) => {
    held.delete(id);
    end(id);
  };
  window.fireTimers = () => {
    const calls = [...held.values()];
    held.clear();
    for (const call of calls) call();
    return calls.length;
  };
})()"""
# Resolves when all that the page has begun to write into its database is there.
WRITTEN = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("llamba");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const database = opening.result;
    const transaction = database.transaction(["heads", "bodies"], "readwrite");
    transaction.objectStore("heads").count();
    transaction.oncomplete = () => resolve(database.close());
    transaction.onabort = () => reject(transaction.error);
  };
})"""
PROBES = (HERE / "web_probes.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with fake_api.serving(fake_api.FakeApi()) as running:
        yield running


@pytest.fixture
def api(server) -> Any:
    """The fake API, as new."""
    url, app = server.api.url, server.api.app
    fresh = fake_api.FakeApi()
    vars(server.api).update(vars(fresh) | {"url": url, "app": app})
    return server.api


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium on the PATH")
    # A sandbox needs rights that containers often lack; the pages are our own.
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=4 * PATIENCE_MS
        )
        yield browser
        browser.close()


class Site:
    """A browser profile on the page; every request and error of it is kept."""

    def __init__(self, chrome, api, **options: Any) -> None:
        self.api = api
        self.context = chrome.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.add_init_script(HELD_TIMERS)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.context.on("weberror", lambda error: self.errors.append(str(error.error)))
        self.context.on("console", self.on_console)
        self.page = self.open()

    def on_console(self, message) -> None:
        # A refused script or style shows as an error of the console; failed loads are scripted.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def open(self, path: str = "") -> Any:
        page = self.context.new_page()
        page.goto(self.api.url + path)
        return page

    def ready(self) -> None:
        """Wait until the page is put together, which may be after it has loaded."""
        expect(self.page.locator("#model")).to_be_enabled()

    def reload(self) -> None:
        """Again, with what was kept: a page that goes may take with it what it still writes."""
        self.page.evaluate(WRITTEN)
        self.page.reload()
        self.ready()

    def fire_timers(self) -> None:
        """End the waits of more than 1.5 s, of which there is at least one."""
        until(lambda: self.page.evaluate("fireTimers()"))

    def ask(self, text: str, *, wait: bool = True) -> None:
        """Type and send; by default until the answer is complete."""
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        if wait:
            self.idle()

    def idle(self) -> None:
        expect(self.page.locator("#send")).to_have_attribute("data-mode", "send")

    @property
    def answers(self) -> Any:
        return self.page.locator(".answer")

    @property
    def questions(self) -> Any:
        return self.page.locator(".bubble")

    def last(self, selector: str = "> .markdown") -> Any:
        return self.answers.last.locator(selector)

    def show_tools(self) -> None:
        self.page.locator(".question").last.hover()

    def close(self) -> None:
        self.context.close()
        ours = urlsplit(self.api.url).netloc
        foreign = [
            each
            for each in self.requests
            if not each.startswith(("blob:", "data:")) and urlsplit(each).netloc != ours
        ]
        assert not foreign, f"left the origin: {foreign}"
        assert not self.errors


@pytest.fixture
def site(chrome, api) -> Iterator[Site]:
    site = Site(
        chrome,
        api,
        viewport={"width": 1100, "height": 800},
        color_scheme="light",
        permissions=["clipboard-read", "clipboard-write"],
    )
    site.ready()
    yield site
    site.close()


@pytest.fixture
def phone(chrome, api) -> Iterator[Site]:
    site = Site(
        chrome,
        api,
        viewport={"width": 360, "height": 740},
        device_scale_factor=2,
        has_touch=True,
        is_mobile=True,
    )
    site.ready()
    yield site
    site.close()


@pytest.fixture(scope="module")
def blank(chrome, server) -> Iterator[Any]:
    """A page whose modules the tests import; nothing of it is changed."""
    page = chrome.new_page()
    page.goto(server.api.url)
    yield page
    page.close()


def probe(page, name: str, argument: Any = None) -> Any:
    """Runs one of web_probes.js in the page."""
    return page.evaluate(f"(argument) => {PROBES.strip()}.{name}(argument)", argument)


def until(check, timeout_s: float = PATIENCE_MS / 1000) -> None:
    """Waits for something that no locator shows."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
