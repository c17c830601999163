"""Recipe files: the shipped ones describe models that can be built, and every slip is one sentence."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tfm_lab.models import DrafterConfig, TargetConfig
from tfm_lab.models.config import FULL_ATTENTION, LINEAR_ATTENTION
from tfm_lab.training.recipe import SHIPPED, load_recipe

TINY = (SHIPPED / "tiny.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["hybrid", "tiny"])
def test_shipped_recipes_describe_models_that_fit_together(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.target is not None
    assert recipe.corpus is not None
    target = recipe.target.config(recipe.corpus.vocabulary, (0, 2))
    drafter = recipe.drafter.config(target, mask_token=3)
    weaver = recipe.weaver.config(target, drafter.draft_depth)
    assert target.layer_types == (*[LINEAR_ATTENTION] * 3, FULL_ATTENTION) * (target.layers // 4)
    assert (drafter.vocab_size, drafter.hidden_size) == (target.vocab_size, target.hidden_size)
    assert len(drafter.tap_layers) == recipe.drafter.taps == 5
    assert weaver.max_depth == drafter.draft_depth == 15
    assert TargetConfig.from_hugging_face(target.to_hugging_face()) == target
    assert DrafterConfig.from_hugging_face(drafter.to_hugging_face()) == drafter


def test_a_second_round_trains_models_of_the_same_shape() -> None:
    first, second = load_recipe("smollm2"), load_recipe("smollm2_more")
    assert second.fetched == first.fetched
    fit = load_recipe("tiny").drafter.fit
    for name in ("drafter", "weaver", "autoregressive"):
        shapes = [replace(getattr(recipe, name), compile=False, fit=fit) for recipe in (first, second)]
        if name != "weaver":
            assert [shape.labels for shape in shapes] == ["text", "law"]
            shapes[1] = replace(shapes[1], labels="text")
        assert shapes[0] == shapes[1]
    assert second.text.seed != first.text.seed


def test_a_third_round_goes_on_with_the_weaver_of_the_second_and_tells_it_the_temperature() -> None:
    second, third = load_recipe("smollm2_more"), load_recipe("smollm2_weaver")
    assert third.weaver.sees_temperature
    known = replace(third.weaver, sees_temperature=False, layers=second.weaver.layers, fit=second.weaver.fit)
    assert known == second.weaver
    assert third.drafter == replace(second.drafter, fit=third.drafter.fit)
    assert third.text.seed not in (second.text.seed, load_recipe("smollm2").text.seed)


def test_the_recipe_for_smollm2_fits_its_shape() -> None:
    recipe = load_recipe("smollm2")
    assert recipe.fetched == "smollm2"
    assert recipe.target is recipe.corpus is None
    layers = (FULL_ATTENTION,) * 30
    target = TargetConfig("llama", 49152, 576, 1536, layers, 9, 3, 64, 64, 1e5, 1e-5, 8192, tie_embeddings=True)
    assert recipe.autoregressive is not None
    for shape in (recipe.drafter, recipe.autoregressive):
        drafter = shape.config(target, mask_token=16)
        assert drafter.tap_layers == (1, 8, 14, 20, 27)
        assert recipe.weaver.config(target, drafter.draft_depth).max_depth == 15


def test_there_is_no_other_shipped_recipe() -> None:
    assert sorted(path.stem for path in SHIPPED.glob("*")) == [
        "hybrid",
        "smollm2",
        "smollm2_more",
        "smollm2_weaver",
        "tiny",
    ]


def test_a_recipe_can_be_any_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TINY.replace("vocabulary = 384", "vocabulary = 512"))
    recipe, tiny = load_recipe(str(tmp_path / "mine.toml")), load_recipe("tiny")
    assert recipe == replace(tiny, corpus=replace(tiny.corpus, vocabulary=512))


def test_whole_numbers_may_stand_where_fractions_are_meant(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TINY.replace("temperatures = [1.0, 0.0]", "temperatures = [1, 0]"))
    assert load_recipe(str(tmp_path / "mine.toml")) == load_recipe("tiny")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("vocabulary = 384", "vocabulry = 384", "mine.toml: corpus does not know 'vocabulry'; it takes vocabulary"),
        ("[text]", "[texts]", "mine.toml does not know 'texts'; it takes text, drafter, weaver, corpus, target"),
        ("hidden_size = 32\n", "", "mine.toml: target lacks 'hidden_size'"),
        ("steps = 30\n", "", "mine.toml: target: fit lacks 'steps'"),
        ("layers = 8", "layers = 8.0", "mine.toml: target: layers must be of type int, got 8.0"),
        ("layers = 8", "layers = true", "mine.toml: target: layers must be of type int, got True"),
        ("learning_rate = 3e-3", "learning_rate = '3e-3'", "target: fit: learning_rate must be of type float"),
        ("learning_rate = 3e-3", "learning_rate = true", "target: fit: learning_rate must be of type float"),
        ('["stdlib", "docstrings"]', '"stdlib"', "mine.toml: corpus: sources must be a list"),
        ('["stdlib", "docstrings"]', "[1]", "mine.toml: corpus: sources must be of type str, got 1"),
        ('["stdlib", "docstrings"]', "[]", "mine.toml: corpus: sources must name at least one source"),
        ("vocabulary = 384", "vocabulary = 70000", "mine.toml: corpus: vocabulary must be at most 65536"),
        ('optimiser = "muon"', 'optimiser = "sgd"', "target: fit: optimiser must be 'adamw' or 'muon', got 'sgd'"),
        ("steps = 30", "steps = 0", "target: fit: steps, evaluate_every and checkpoint_every must be at least 1"),
        ("texts = 48", "texts = 0", "mine.toml: text: texts must be at least 1, got 0"),
        ("prompt_tokens = 16", "prompt_tokens = 64", "text: length 64 leaves nothing to write after 64 prompt tokens"),
        ("[1.0, 0.0]", "[]", "text: temperatures must be one or more numbers, none of them negative"),
        ("[1.0, 0.0]", "[-1.0]", "text: temperatures must be one or more numbers, none of them negative"),
        ("taps = 5", "taps = 0", "mine.toml: drafter: taps must be at least 1, got 0"),
        ("pool_size = 64", "pool_size = 0", "mine.toml: weaver: pool_size must be at least 1, got 0"),
        ("[corpus]", "[corpus", "mine.toml is not valid TOML"),
        ("[corpus]", "fetched = 'x'\n[corpus]", "a recipe has corpus and target, or names an existing target"),
        (
            "batch = 32",
            "batch = 32\nprompts = ['songs']",
            "there are no prompts of kind 'songs'; use chat, maths",
        ),
        ("[drafter]\n", "[drafter]\nlabels = 'laws'\n", "drafter: labels must be one of text, law, got 'laws'"),
        ("width = 32\n", "width = 32\nobjective = 'l2'\n", "weaver: objective must be one of lk, kl, tv, ce, got 'l2'"),
        ("[corpus]", "corpus = 3\n[corpse]", "mine.toml does not know 'corpse'"),
    ],
)
def test_a_slip_in_a_recipe_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in TINY
    path = tmp_path / "mine.toml"
    path.write_text(TINY.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_recipe(str(path))


def test_a_table_cannot_be_a_number(tmp_path: Path) -> None:
    head, _, tail = TINY.partition("[corpus]")
    (tmp_path / "mine.toml").write_text("corpus = 3\n" + head + "[target]" + tail.partition("[target]")[2])
    with pytest.raises(ValueError, match=r"mine.toml: corpus must be a table"):
        load_recipe(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("name", ["nosuch", "no/such/file.toml", "..", ""])
def test_an_unknown_recipe_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"there is no recipe '{name}'; use one of hybrid, smollm2, smollm2_more, smollm2_weaver, tiny, or the",
    ):
        load_recipe(name)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"mine.toml is not valid TOML"):
        load_recipe(str(tmp_path / "mine.toml"))


def test_an_existing_target_needs_prompts_to_continue(tmp_path: Path) -> None:
    text = (SHIPPED / "smollm2.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(text.replace('prompts = ["chat", "maths", "code"]\n', ""))
    with pytest.raises(ValueError, match="has no corpus to continue: name the prompts"):
        load_recipe(str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text(text.replace('fetched = "smollm2"\n', ""))
    with pytest.raises(ValueError, match="a recipe has corpus and target, or names an existing target"):
        load_recipe(str(tmp_path / "mine.toml"))


def test_a_weaver_that_must_not_see_the_target_is_built_so() -> None:
    recipe = load_recipe("tiny")
    assert recipe.target is not None
    target = recipe.target.config(512, (0, 2))
    assert recipe.weaver.config(target, 15).sees_target
    assert not replace(recipe.weaver, sees_target=False).config(target, 15).sees_target


def test_changes_replace_single_values() -> None:
    plain = load_recipe("tiny")
    changed = load_recipe(
        "tiny",
        [
            "weaver.objective=kl",
            "weaver.fit.steps = 7",
            "text.temperatures=[0.0, 1]",
            "drafter.mask_token='<x>'",
            "drafter.labels=law",
        ],
    )
    assert changed.weaver.objective == "kl"
    assert changed.weaver.fit == replace(plain.weaver.fit, steps=7)
    assert changed.text.temperatures == (0.0, 1.0)
    assert changed.drafter == replace(plain.drafter, mask_token="<x>", labels="law")
    assert changed.target == plain.target


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("weaver.fit.steps", "a change of a recipe reads TABLE.NAME=VALUE, got 'weaver.fit.steps'"),
        ("=3", "a change of a recipe reads TABLE.NAME=VALUE, got '=3'"),
        ("weavr.width=3", "the recipe has no table 'weavr' for 'weavr.width=3'; it has corpus, target, text"),
        ("weaver.width.x=3", "the recipe has no table 'width' for 'weaver.width.x=3'; it has fit"),
        ("weaver.widht=3", "tiny.toml: weaver does not know 'widht'"),
        ("weaver.width=wide", "tiny.toml: weaver: width must be of type int, got 'wide'"),
        ("weaver.objective=l2", "objective must be one of lk, kl, tv, ce, got 'l2'"),
    ],
)
def test_a_change_that_fits_nowhere_is_one_sentence(change: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_recipe("tiny", [change])
