"""JupyterLab and Notebook 7 in a real browser: all notebooks run, no other server is asked, the console stays clean."""

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.interactions import INTERACTIONS
from browser.server import LabServer, NotebookPage, chromium, lab_server, open_notebook
from notebook_builder import METRIC, write_notebook
from playwright.sync_api import Browser, expect

from tfm_lab.environment import find_chromium

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))

NOTEBOOK_7_WARNINGS = (  # its own, with an empty notebook too
    "Menu entry for command",
    "Command 'filebrowser:open-path' not registered.",
    "Cannot read properties of undefined (reading 'schema')",
    "[yjs#509] Not same Y.Doc",
)

WIDGETS = """import ipywidgets
import plotly.graph_objects as go
figure = go.FigureWidget([go.Scatter(x=[0, 1], y=[0, 1], mode="markers")], {"title": {"text": "size 8"}})
slider = ipywidgets.IntSlider(8, 2, 30)
def resize(change):
    figure.layout.title.text = f"size {change['new']}"
slider.observe(resize, "value")
ipywidgets.VBox([slider, figure])"""

EXPLORER = """from tfm_lab.explorer import ExplorerSession, Settings, TreeExplorer
session = ExplorerSession(Settings(budget=8, new_tokens=6))
session.decode(wait=True)
TreeExplorer(session, key="test")"""

PLAYER = """from show.samples import ROUNDS, TREE, decode
from tfm_lab.show import Frame, Player, growth_view
Player({"TfM": [Frame(growth_view(TREE, ROUNDS, last, decode), f"round {last}") for last in range(3)]})"""

# The two seconds that anywidget gives a widget to start pass in a fifth of one.
IMPATIENT = """const timeout = AbortSignal.timeout.bind(AbortSignal);
AbortSignal.timeout = (milliseconds) => timeout(milliseconds === 2000 ? 200 : milliseconds);"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (apt install chromium)"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab on a copy of the notebooks, with two more that test the harness."""
    root = tmp_path_factory.mktemp("served") / "notebooks"
    shutil.copytree(FOLDER, root, ignore=shutil.ignore_patterns(".*"))
    write_notebook(root, METRIC, WIDGETS, name="widgets")
    write_notebook(root, METRIC, EXPLORER, name="explorer")
    samples = f"import sys\nsys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})"
    write_notebook(root, METRIC, samples, PLAYER, name="player")
    request = 'from IPython.display import HTML\nHTML(\'<img src="http://127.0.0.1:9/outside.png" alt="a test">\')'
    write_notebook(root, METRIC, request, "1 / 0", "print('never')", name="bad")
    with lab_server(root, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser: Browser, server: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    """The notebook that the test names, perhaps with a front end; closed afterwards together with its kernel."""
    name, front_end = request.param if isinstance(request.param, tuple) else (request.param, "lab")
    notebook = open_notebook(browser, server, name, front_end)
    yield notebook
    notebook.close()


@pytest.mark.parametrize("opened", NOTEBOOKS, indirect=True)
def test_a_notebook_runs_and_is_operated(opened: NotebookPage) -> None:
    """Every cell runs; then its interactive pictures are used by mouse and by keyboard."""
    opened.run_all_cells(seconds=180)
    assert all(opened.executed_cells())
    if opened.name in INTERACTIONS:
        INTERACTIONS[opened.name](opened.page)
    assert opened.errors() == []
    assert opened.outside == []
    assert opened.console == []


@pytest.mark.parametrize("opened", [("11_claim_ledger.ipynb", "notebook")], indirect=True, ids=["notebook-7"])
def test_a_notebook_runs_and_is_operated_in_notebook_7(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=180)
    assert all(opened.executed_cells())
    INTERACTIONS[opened.name](opened.page)
    assert opened.errors() == []
    assert opened.outside == []
    assert [line for line in opened.console if not line.startswith(NOTEBOOK_7_WARNINGS)] == []


@pytest.mark.parametrize("opened", ["explorer.ipynb"], indirect=True)
def test_the_explorer_answers_to_mouse_and_keyboard(opened: NotebookPage) -> None:
    """Select, step, switch modes, place by hand, decode in the background; then run the cell again."""
    opened.run_all_cells(seconds=120)
    page = opened.page
    explorer = page.locator(".tfm-explorer")
    status = explorer.locator('[role="status"]').last
    nodes = explorer.locator(".scatterlayer .trace").last.locator(".point")
    status.get_by_text("Target call 1 of").wait_for()
    expect(nodes.nth(2)).to_be_attached(timeout=60_000)

    def click_node(number: int) -> None:
        nodes.nth(number).scroll_into_view_if_needed()
        place = nodes.nth(number).bounding_box()
        assert place is not None
        page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)

    def slide(name: str, key: str) -> None:
        slider = explorer.locator(".widget-hslider", has=page.locator(".widget-label", has_text=name))
        slider.locator(".noUi-handle").focus()
        page.keyboard.press(key)

    def press(name: str, key: str = "Enter") -> None:
        explorer.locator("button", has_text=name).focus()
        page.keyboard.press(key)

    status.get_by_text("Selected: 'the root'").wait_for()
    click_node(1)
    status.get_by_text("the target's probability of the whole path").wait_for()
    explorer.locator("svg text", has_text="Weaver’s conditional").wait_for()
    press("◀ parent")
    status.get_by_text("Selected: 'the root'").wait_for()
    slide("node", "ArrowRight")
    status.get_by_text("the target's probability of the whole path").wait_for()
    press("◀ growth", "Space")
    status.get_by_text("Round 8 of 8").wait_for()
    slide("growth", "ArrowLeft")
    status.get_by_text("Round 7 of 8: 7 of 8 nodes").wait_for()
    expect(nodes).to_have_count(8, timeout=60_000)
    press("side by side")
    status.get_by_text("DDTree, round 7 of 8").wait_for()
    press("what if")
    status.get_by_text("0 of 8 nodes placed by hand").wait_for()
    click_node(1)
    status.get_by_text("1 of 8 nodes placed by hand").wait_for()
    press("best-first")
    status.get_by_text("8 of 8 nodes placed by hand").wait_for()
    press("DFlash chain")
    explorer.get_by_text("The settings have changed: press Decode").wait_for()
    press("Decode")
    explorer.get_by_text("Decoded 6 tokens in").wait_for(timeout=60_000)
    press("one method")
    status.get_by_text("one method. A tree of").wait_for()
    opened.run_all_cells(seconds=120)
    status.get_by_text("Target call 1 of").wait_for()
    expect(explorer).to_have_count(1)
    assert opened.errors() == []
    assert opened.outside == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["widgets.ipynb"], indirect=True)
def test_a_slider_moves_a_figure(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=60)
    page = opened.page
    page.wait_for_selector(".js-plotly-plot .scatterlayer .point", timeout=60_000)
    slider = page.locator(".jupyter-widgets .noUi-handle").first
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.js-plotly-plot .gtitle')?.textContent === 'size 12'")
    assert opened.errors() == []
    assert opened.outside == []
    assert opened.console == []


def test_a_tree_moves_in_a_browser_that_starts_slowly(browser: Browser, server: LabServer) -> None:
    opened = open_notebook(browser, server, "player.ipynb", script=IMPATIENT)
    opened.run_all_cells(seconds=60)
    nodes = opened.page.locator(".scatterlayer .trace").last.locator(".point")
    expect(nodes).to_have_count(3, timeout=30_000)
    opened.page.locator("button", has_text="next").click()
    expect(nodes).to_have_count(5, timeout=30_000)
    assert opened.console == []
    opened.close()


@pytest.mark.parametrize("opened", ["bad.ipynb"], indirect=True)
def test_errors_and_outside_requests_are_noticed(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=60)
    assert opened.errors() == ["ZeroDivisionError: division by zero"]
    assert opened.executed_cells()[-2:] == [True, False]
    assert set(opened.outside) == {"http://127.0.0.1:9/outside.png"}
    assert opened.console != []


def test_the_server_wants_its_token(server: LabServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{server.url}/api/contents", timeout=10)
