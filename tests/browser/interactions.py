"""What is done by mouse and by keyboard in each notebook once it has run."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from playwright.sync_api import Page, expect


def step_through_a_growing_tree(page: Page) -> None:
    """By mouse and by keyboard: the sentence below the tree, the number of nodes and the table all follow."""
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


def drag_the_drafter_and_switch_the_step(page: Page) -> None:
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="no residual")).first
    status = explorer.locator('[role="status"]')
    status.get_by_text("70.0% of the drafts are accepted").wait_for()
    explorer.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    status.get_by_text("73.1% of the drafts are accepted").wait_for()
    explorer.locator("button", has_text="accept everything").click()
    status.get_by_text("biased by TV = 0.269").wait_for()


def spend_a_budget_by_hand_and_by_the_rule(page: Page) -> None:
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="add node")).first
    status = explorer.locator('[role="status"]')
    explorer.locator("select").select_option(index=2)
    explorer.locator("button", has_text="add node").click()
    status.get_by_text("1 of 8 nodes spent").wait_for()
    explorer.locator("button", has_text="best-first").click()
    status.get_by_text("8 of 8 nodes spent: 2.953 expected tokens").wait_for()


def choose_a_sibling_and_shrink_the_pool(page: Page) -> None:
    """The marginal's column stays from one sibling to the next; the words, the marked path and the pool follow."""
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


def compute_the_table_for_another_temperature(page: Page) -> None:
    page.locator("button", has_text="temperature 0.7").click()
    page.locator("svg", has_text="plain sampling, temperature 0.7").locator("text", has_text="0.195").first.wait_for()
    page.locator("button").get_by_text("temperature 0", exact=True).click()
    greedy = page.locator("svg", has_text="plain sampling, temperature 0.").locator("text", has_text="refused")
    expect(greedy).to_have_count(3, timeout=60_000)


def swap_two_writes_and_turn_their_keys(page: Page) -> None:
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


def step_through_a_solve_and_cut_it_otherwise(page: Page) -> None:
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
    microscope = page.locator(
        ".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="closure blocks")
    ).first
    words = microscope.locator('[role="status"]')
    words.get_by_text("tile by tile, stage 1 of 11.").wait_for()
    microscope.locator("button", has_text="next").click()
    words.get_by_text("tile by tile, stage 2 of 11.").wait_for()
    microscope.locator("button", has_text="closure blocks").click()
    words.get_by_text("closure blocks, stage 2 of 6.").wait_for()
    microscope.locator(".widget-hslider", has_text="node").last.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    words.get_by_text("Node 1 reads the writes of 0;").wait_for()


def make_a_step_longer_and_plan_a_decode(page: Page) -> None:
    """The kernel is exchanged and points moved with the arrow keys; the planner follows a slider and a typed curve."""
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


def look_up_a_claim(page: Page) -> None:
    ledger = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="falls short")).first
    card = ledger.locator('[role="status"]')
    card.get_by_text("holds · proved or enumerated").wait_for()
    ledger.locator("button", has_text="not reproduced").click()
    card.get_by_text("open · not reproduced").wait_for()
    ledger.locator("button", has_text="all claims").focus()
    page.keyboard.press("Enter")
    ledger.locator("select option", has_text="lossless").wait_for(state="attached")  # the list has all claims again
    ledger.locator("select").select_option(index=0)
    ledger.locator("button", has_text="▼").focus()
    page.keyboard.press("Enter")
    card.get_by_text("The text has the target's own law").wait_for()


def scrub_a_training_and_leak_its_answer(page: Page) -> None:
    """The live picture ends at the last training; slider and buttons of the explorer go through all eight."""
    page.locator('[role="status"]').get_by_text("CE, answer leaks, step 100 of 100").first.wait_for()
    explorer = page.locator(".jupyter-widgets.widget-vbox", has=page.locator("button", has_text="answer leaks")).first
    status = explorer.locator('[role="status"]')
    status.get_by_text("LK mixture, honest path, step 100 of 100").wait_for()
    status.get_by_text("longer than DDTree").wait_for()
    explorer.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowLeft")
    status.get_by_text("step 90 of 100").wait_for()
    expect(explorer.locator("svg text", has_text="after step 90")).to_have_count(1)
    explorer.locator("button", has_text="answer leaks").click()
    status.get_by_text("LK mixture, answer leaks, step 90 of 100").wait_for()
    status.get_by_text("shorter than DDTree").wait_for()
    explorer.locator("button").get_by_text("CE", exact=True).click()
    status.get_by_text("CE, answer leaks").wait_for()


INTERACTIONS: Mapping[str, Callable[[Page], None]] = MappingProxyType(
    {
        "01_lossless_by_construction.ipynb": drag_the_drafter_and_switch_the_step,
        "03_chain_to_tree.ipynb": spend_a_budget_by_hand_and_by_the_rule,
        "04_weaver_conditionals.ipynb": choose_a_sibling_and_shrink_the_pool,
        "05_train_the_weaver.ipynb": scrub_a_training_and_leak_its_answer,
        "06_growing_trees.ipynb": step_through_a_growing_tree,
        "07_verifying_trees.ipynb": compute_the_table_for_another_temperature,
        "08_matrix_memory.ipynb": swap_two_writes_and_turn_their_keys,
        "09_fused_kernel.ipynb": step_through_a_solve_and_cut_it_otherwise,
        "10_tokens_to_seconds.ipynb": make_a_step_longer_and_plan_a_decode,
        "11_claim_ledger.ipynb": look_up_a_claim,
    }
)
