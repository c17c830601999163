"""JupyterLab in a real browser: every notebook runs, nothing is asked of another server, the console stays clean."""

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.server import CHROMIUM_OPTIONS, LabServer, NotebookPage, lab_server, open_notebook
from notebook_builder import METRIC, write_notebook
from playwright.sync_api import Browser, expect, sync_playwright

from tfm_lab.environment import find_chromium

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))

WIDGETS = """import ipywidgets
import plotly.graph_objects as go
figure = go.FigureWidget([go.Scatter(x=[0, 1], y=[0, 1], mode="markers")], {"title": {"text": "size 8"}})
slider = ipywidgets.IntSlider(8, 2, 30)
def resize(change):
    figure.layout.title.text = f"size {change['new']}"
slider.observe(resize, "value")
ipywidgets.VBox([slider, figure])"""

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
    request = 'from IPython.display import HTML\nHTML(\'<img src="http://127.0.0.1:9/outside.png" alt="a test">\')'
    write_notebook(root, METRIC, request, "1 / 0", "print('never')", name="bad")
    with lab_server(root, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), headless=True, args=list(CHROMIUM_OPTIONS)
        )
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Browser, server: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    """The notebook that the test names, closed afterwards together with its kernel."""
    notebook = open_notebook(browser, server, request.param)
    yield notebook
    notebook.close()


@pytest.mark.parametrize("opened", NOTEBOOKS, indirect=True)
def test_a_notebook_runs_in_the_browser(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=180)
    assert opened.errors() == []
    assert all(opened.executed_cells())
    assert opened.outside == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["06_growing_trees.ipynb"], indirect=True)
def test_the_player_steps_through_a_growing_tree(opened: NotebookPage) -> None:
    """By mouse and by keyboard: the sentence below the tree, the number of nodes and the table all follow."""
    opened.run_all_cells(seconds=180)
    page = opened.page
    player = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="next")).first
    nodes = player.locator(".scatterlayer .trace").last.locator(".point")
    status = player.locator('[role="status"]')
    status.get_by_text("TfM, 1 of 16.").wait_for()
    expect(nodes).to_have_count(3, timeout=60_000)
    player.locator("button", has_text="next").click()
    status.get_by_text("TfM, 2 of 16.").wait_for()
    expect(nodes).to_have_count(5, timeout=60_000)
    player.locator(".noUi-handle").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    status.get_by_text("TfM, 5 of 16.").wait_for()
    player.get_by_label("show as table").check()
    player.get_by_role("columnheader", name="probability", exact=True).wait_for()
    assert opened.errors() == []
    assert opened.outside == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["01_lossless_by_construction.ipynb"], indirect=True)
def test_the_drafter_is_dragged_and_the_step_switched(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=180)
    page = opened.page
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="no residual")).first
    status = explorer.locator('[role="status"]')
    status.get_by_text("70.0% of the drafts are accepted").wait_for()
    explorer.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    status.get_by_text("73.1% of the drafts are accepted").wait_for()
    explorer.locator("button", has_text="accept everything").click()
    status.get_by_text("biased by TV = 0.269").wait_for()
    assert opened.errors() == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["03_chain_to_tree.ipynb"], indirect=True)
def test_a_budget_is_spent_by_hand_and_by_the_rule(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=180)
    page = opened.page
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="add node")).first
    status = explorer.locator('[role="status"]')
    explorer.locator("select").select_option(index=2)
    explorer.locator("button", has_text="add node").click()
    status.get_by_text("1 of 8 nodes spent").wait_for()
    explorer.locator("button", has_text="best-first").click()
    status.get_by_text("8 of 8 nodes spent: 2.953 expected tokens").wait_for()
    assert opened.errors() == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["04_weaver_conditionals.ipynb"], indirect=True)
def test_a_sibling_is_chosen_and_the_pool_made_smaller(opened: NotebookPage) -> None:
    """The marginal's column stays from one sibling to the next; the words, the marked path and the pool follow."""
    opened.run_all_cells(seconds=180)
    page = opened.page
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="same depth")).first
    status = explorer.locator('[role="status"]')
    status.get_by_text("After 'A database is a'").wait_for()
    marginal = explorer.locator("svg text", has_text="0.138")
    expect(marginal).to_have_count(1)
    explorer.locator("button", has_text="same depth ▶").click()
    status.get_by_text("After 'A database is like'").wait_for()
    expect(marginal).to_have_count(1)
    status.get_by_text("one from the Weaver with 99.9%").wait_for()
    explorer.locator("select").select_option(index=0)
    status.get_by_text("After 'A' (node 0)").wait_for()
    explorer.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowLeft")
    status.get_by_text("the 256 candidates hold").wait_for()
    assert opened.errors() == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["07_verifying_trees.ipynb"], indirect=True)
def test_the_table_of_rules_is_computed_anew_for_another_temperature(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=180)
    page = opened.page
    page.locator("button", has_text="temperature 0.7").click()
    page.locator("svg", has_text="plain sampling, temperature 0.7").locator("text", has_text="0.195").first.wait_for()
    page.locator("button").get_by_text("temperature 0", exact=True).click()
    greedy = page.locator("svg", has_text="plain sampling, temperature 0.").locator("text", has_text="refused")
    expect(greedy).to_have_count(3, timeout=60_000)
    assert opened.errors() == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["08_matrix_memory.ipynb"], indirect=True)
def test_two_writes_are_swapped_and_their_keys_turned(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=180)
    page = opened.page
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="B then A")).first
    status = explorer.locator('[role="status"]')
    status.get_by_text("differ by up to 0.32").wait_for()
    explorer.locator("button", has_text="B then A").click()
    status.get_by_text("order B then A").wait_for()
    explorer.locator(".noUi-handle").first.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    status.get_by_text("Keys 90 degrees apart").wait_for()
    status.get_by_text("makes no difference").wait_for()
    page.locator("button", has_text="equal keys").click()
    page.locator("svg", has_text="Equal keys: X and the inverse").first.wait_for()
    assert opened.errors() == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["09_fused_kernel.ipynb"], indirect=True)
def test_one_solve_is_stepped_through_and_compared_with_a_replay(opened: NotebookPage) -> None:
    opened.run_all_cells(seconds=180)
    page = opened.page
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="one solve")).first
    status = explorer.locator('[role="status"]')
    status.get_by_text("One solve, step 1 of 14.").wait_for()
    explorer.locator("button", has_text="next").click()
    status.get_by_text("One solve, step 2 of 14.").wait_for()
    explorer.locator(".noUi-handle").focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    status.get_by_text("One solve, step 14 of 14.").wait_for()
    expect(explorer.locator("svg text", has_text="skipped")).to_have_count(1)
    explorer.locator("button", has_text="branch by branch").click()
    status.get_by_text("Branch by branch, step 1 of 23.").wait_for()
    assert opened.errors() == []
    assert opened.console == []


@pytest.mark.parametrize("opened", ["10_tokens_to_seconds.ipynb"], indirect=True)
def test_a_step_is_made_longer_and_a_decode_planned(opened: NotebookPage) -> None:
    """The kernel is exchanged and points moved with the arrow keys; the planner follows a slider and a typed curve."""
    opened.run_all_cells(seconds=180)
    page = opened.page
    lines = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="fused kernel")).first
    status = lines.locator('[role="status"]')
    status.get_by_text("4.37 times, faster than the chain").wait_for()
    lines.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    status.get_by_text("Your step gives 3.1 tokens").wait_for()
    lines.locator("button", has_text="state per node").click()
    status.get_by_text("slower than the chain").wait_for()
    planner = page.locator(".jupyter-widgets.widget-vbox", has=page.get_by_label("or typed")).first
    advice = planner.locator('[role="status"]')
    advice.get_by_text("Best: TfM with B = 128").wait_for()
    planner.locator(".widget-hslider", has_text="batch").locator(".noUi-handle").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    advice.get_by_text("batch 4, kernel: fused. Best: TfM with B = 32").wait_for()
    planner.get_by_label("or typed").fill("tfm many")
    page.keyboard.press("Enter")
    advice.get_by_text("is not understood: write it like").wait_for()
    planner.get_by_label("or typed").fill("chain 15: 5; tfm 16: 3")
    page.keyboard.press("Enter")
    advice.get_by_text("typed, batch 4, kernel: fused. Best: DFlash chain").wait_for()
    assert opened.errors() == []
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
