"""The tree explorer as a page (``make explorer``) in a real browser: it decodes, sliders move, nobody else is asked."""

import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser.server import LabServer, WatchedPage, chromium, explorer_server
from playwright.sync_api import expect

from tfm_lab.environment import find_chromium

ROOT = Path(__file__).resolve().parents[2]

VOILA_WARNINGS = ("Unsatisfied version", "No satisfying version")  # it brings an older JupyterLab than the widgets' own
WHOLE = 34  # the root, 32 drafted nodes and the bonus token

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("voila") is None, reason="no Voila here (make test and make explorer bring it)"),
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (apt install chromium)"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    with explorer_server(ROOT, tmp_path_factory.mktemp("state")) as running:
        yield running


def test_the_page_decodes_and_follows_its_sliders(server: LabServer) -> None:
    with chromium() as browser:
        opened = WatchedPage.of(browser, server)
        page = opened.page
        page.goto(f"{server.url}/?token={server.token}", wait_until="domcontentloaded")
        explorer = page.locator(".tfm-explorer")
        status = explorer.locator('[role="status"]').last
        nodes = explorer.locator(".scatterlayer .trace").last.locator(".point")
        explorer.get_by_text("Decoded 24 tokens in").wait_for(timeout=180_000)
        status.get_by_text("Target call 1 of").wait_for()
        expect(nodes).to_have_count(WHOLE, timeout=60_000)

        def slide(name: str, key: str) -> None:
            slider = explorer.locator(".widget-hslider", has=page.locator(".widget-label", has_text=name))
            slider.locator(".noUi-handle").focus()
            page.keyboard.press(key)

        slide("growth", "ArrowLeft")
        status.get_by_text("Round 16 of 16: 32 of 32 nodes").wait_for()
        expect(nodes).to_have_count(WHOLE - 1, timeout=60_000)
        slide("growth", "Home")
        status.get_by_text("Round 1 of 16: 2 of 32 nodes").wait_for()
        expect(nodes).to_have_count(3, timeout=60_000)
        slide("target call", "ArrowRight")
        status.get_by_text("Target call 2 of").wait_for()
        expect(page.locator("text=TreeExplorer(session")).to_have_count(0)
        assert opened.outside == []
        assert [line for line in opened.console if not line.startswith(VOILA_WARNINGS)] == []


def test_the_page_wants_its_token(server: LabServer) -> None:
    with urllib.request.urlopen(server.url, timeout=10) as answer:
        assert "/login" in answer.url
        assert b"tfm" not in answer.read()
