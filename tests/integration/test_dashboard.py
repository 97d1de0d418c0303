"""The dashboard in a real browser: Debian's Chromium, driven by Playwright."""

import asyncio
import itertools
import json
import shutil
import threading
import time

import numpy as np
import pytest

from sanderling.api import build
from sanderling.core.errors import SanderlingError
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.emulation.table import article_table
from sanderling.run.policy.document import parse_policy
from sanderling.run.session import load
from sanderling.serve.server import Server
from sanderling.serve.settings import Settings
from tests.models import conv_classifier, random_arrays, save

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
TOKEN = "the-token"
SEEN_MS = 15_000
TEXTS = (".tile h2", ".tile b", ".tile small", ".head h2", ".legend li", "#events .why", ".status", "p.soft")
POLICY = {
    "devicePriorities": ["npu", "gpu"],
    "precisionLadder": ["int8"],
    "fallbackThresholds": {"npu": {"temp": 75, "cooldownTemp": 65}},
    "sensorInterval": 100,
}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")


class Running:
    """A server in a thread of its own, with ``camera`` on emulated devices and ``tiny`` on the processor."""

    def __init__(self, package):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        settings = Settings(packages=(package,), http_port=0, grpc_port=None, metrics_port=None, token=TOKEN)
        self.server = Server(settings)
        self._call(self.server.start())
        devices = EmulatedDevices(article_table(), "mobilenetv3", seconds_a_second=60.0)
        self.session = load(package, policy=parse_policy(json.dumps(POLICY)), emulate=devices)
        self.plane = self.server.services.plane
        self.plane.add(self.session, name="camera")
        self.url = f"http://127.0.0.1:{self.server.ends['http'].port}/"
        self._ending = threading.Event()
        self._client = threading.Thread(target=self._send, daemon=True)
        self._client.start()

    def _send(self):
        images = random_arrays({"image": (1, 3, 8, 8)}, seed=1)
        for number in itertools.count():
            if self._ending.wait(0.02):
                return
            name = "tiny" if number % 4 == 0 else "camera"
            try:
                self.plane.submit(self.plane.model(name), images, deadline_ms=1000.0)
            except SanderlingError:
                continue

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self):
        self._ending.set()
        self._client.join(10)
        if self._thread.is_alive():
            self._call(self.server.stop(1.0))
            self.session.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dashboard")
    calibration = folder / "calibration.npz"
    np.savez(calibration, **random_arrays({"image": (24, 3, 8, 8)}, seed=1))
    source = save(conv_classifier(), folder / "tiny.onnx")
    build(source, folder / "tiny.sdl", calibration=calibration, precision="fp32,int8", repeats=3)
    return folder / "tiny.sdl"


@pytest.fixture(scope="module")
def running(package):
    running = Running(package)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Open the dashboard in a fresh context; what goes wrong in it, and what it asks for, is kept."""
    contexts = []

    def open_(url, *, width=1280, height=900, colours="light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
        contexts.append(context)
        page = context.new_page()
        page.faults, page.addresses = [], []
        page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("request", lambda request: page.addresses.append(request.url))
        page.goto(url)
        page.wait_for_selector("#status[data-state=live]", timeout=SEEN_MS)
        return page

    yield open_
    for context in contexts:
        context.close()


def until(page, expression):
    """Wait until a script's expression holds; the page's own policy forbids Playwright's way, which needs ``eval``."""
    end_s = time.monotonic() + SEEN_MS / 1e3
    while not page.evaluate(expression):
        assert time.monotonic() < end_s, f"{expression} did not come true"
        page.wait_for_timeout(50)


def unlock(page, token=TOKEN):
    page.fill("#token", token)
    page.click("#unlock button")


def test_numbers_move_under_load(running, open_page):
    page = open_page(running.url)
    until(page, "Number(document.querySelector('#tile-requests').textContent) > 5")
    page.wait_for_selector("#requests .curve", timeout=SEEN_MS)
    seen = {page.inner_text("#tile-p50") for _ in range(40) if page.wait_for_timeout(150) is None}
    assert len(seen) > 1
    assert page.query_selector_all("#batches .column")
    assert "°C" in page.inner_text("#heat .legend")
    assert "npu is left at 75 °C" in page.text_content("#heat svg")
    assert page.faults == []


def test_page_asks_nobody_else_and_stays_small(running, open_page):
    page = open_page(running.url)
    page.wait_for_selector("#requests .curve", timeout=SEEN_MS)
    assert all(address.startswith((running.url, "data:")) for address in page.addresses)
    sizes = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.transferSize)")
    assert sum(sizes) < 300_000


def test_switched_device_shows_as_an_event_and_in_the_timeline(running, open_page):
    page = open_page(running.url)
    unlock(page)
    page.select_option("#command-model", "camera:1")
    page.select_option("#command-lane", "emulated/gpu/int8")
    page.click("#use")
    page.wait_for_selector("#answer:has-text('gpu, int8')", timeout=SEEN_MS)
    event = page.wait_for_selector("#events li[data-kind=switched]:has-text('asked for')", timeout=SEEN_MS)
    assert "camera: emulated/npu/int8 → emulated/gpu/int8" in event.inner_text()
    assert running.session.device == "gpu"
    page.wait_for_selector("#heat .band title:text('gpu · int8: asked for')", state="attached", timeout=SEEN_MS)
    page.click("#choose")
    page.wait_for_selector("#answer:has-text('The policy chose emulated/npu/int8')", timeout=SEEN_MS)
    assert page.faults == []


def test_wrong_token_opens_nothing(running, open_page):
    page = open_page(running.url)
    unlock(page, "wrong")
    page.wait_for_selector("#answer.wrong:has-text('wrong token')", timeout=SEEN_MS)
    assert not page.is_visible("#commands")
    assert page.evaluate("sessionStorage.length") == 0


def test_token_is_kept_for_the_tab_until_it_is_locked(running, open_page):
    page = open_page(running.url)
    unlock(page)
    page.wait_for_selector("#commands", timeout=SEEN_MS)
    page.reload()
    page.wait_for_selector("#commands", timeout=SEEN_MS)
    page.click("#lock")
    assert page.is_visible("#unlock")
    assert page.evaluate("sessionStorage.length") == 0


def test_policy_is_tried_on_the_twin_and_its_faults_are_told(running, open_page):
    page = open_page(running.url)
    unlock(page)
    page.select_option("#command-model", "camera:1")
    page.click("#policy summary")
    until(page, "document.querySelector('#policy-text').value.includes('devicePriorities')")
    page.wait_for_selector("#requests .curve", timeout=SEEN_MS)
    page.click("#try")
    page.wait_for_selector("#trial table:has-text('In time')", timeout=SEEN_MS)
    page.fill("#policy-text", '{"devicePriority": ["npu"]}')
    page.click("#try")
    page.wait_for_selector("#answer.wrong:has-text(\"did you mean 'devicePriorities'?\")", timeout=SEEN_MS)


def test_one_model_can_be_looked_at(running, open_page):
    page = open_page(running.url)
    page.select_option("#model", "tiny:1")
    until(page, "document.querySelectorAll('#heat .row-name').length === 1")
    assert page.text_content("#heat .row-name") == "tiny"
    assert page.inner_text("#tile-lane").startswith("cpu")


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (360, 740)], ids=["desk", "phone"])
def test_page_fits_and_its_text_stands_out(running, open_page, colours, width, height):
    page = open_page(running.url, width=width, height=height, colours=colours)
    page.wait_for_selector("#requests .curve", timeout=SEEN_MS)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.dataset.theme") == colours
    for selector in TEXTS:
        assert contrast(page, selector) >= 4.5, selector


def contrast(page, selector):
    """Contrast of a text with the card or page behind it, as WCAG 2.2 defines it."""
    texts = """selector => {
        const node = document.querySelector(selector);
        let behind = node;
        while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
        return [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor];
    }"""
    if page.query_selector(selector) is None:
        return float("inf")
    one, other = (luminance(text) for text in page.evaluate(texts, selector))
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def luminance(text):
    channels = np.array([int(part) for part in text[text.index("(") + 1 : -1].split(",")[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colours_can_be_chosen(running, open_page):
    page = open_page(running.url, colours="light")
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_keyboard_moves_the_cursor_through_time(running, open_page):
    page = open_page(running.url)
    page.wait_for_selector("#requests .curve", timeout=SEEN_MS)
    page.focus("#requests svg")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#latency .cursor", state="attached", timeout=SEEN_MS)
    page.keyboard.press("Escape")
    page.wait_for_selector("#latency .cursor", state="detached", timeout=SEEN_MS)


def test_page_says_when_the_server_is_gone(package, open_page):
    running = Running(package)
    page = open_page(running.url)
    began_s = time.monotonic()
    running.stop()
    assert time.monotonic() - began_s < 30
    page.wait_for_selector("#status[data-state=lost]", timeout=SEEN_MS)
    assert "Disconnected" in page.inner_text("#status")
