"""The shipped drafters and Weaver for SmolLM2. What needs the target is skipped where it was not fetched."""

import json

import pytest
from safetensors import safe_open

from tfm_lab.bundle import SHIPPED, Bundle, load_bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.fetching import fetched
from tfm_lab.methods import make_speculator
from tfm_lab.metrics import mean_accepted_length

FOLDER = SHIPPED / "smollm2"
PARTS = ("drafter", "weaver", "autoregressive")
QUESTIONS = ("What is the capital of France?", "Tom has 3 bags of 12 apples and eats 5 apples. How many are left?")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    try:
        fetched("smollm2")
    except ValueError as error:
        pytest.skip(str(error))
    return load_bundle("smollm2")


def test_drafters_and_weaver_name_one_target() -> None:
    assert json.loads((FOLDER / "bundle.json").read_text()) == {"target": "smollm2"}
    configs = [json.loads((FOLDER / part / "config.json").read_text()) for part in PARTS]
    assert len({config["target_fingerprint"] for config in configs}) == 1
    assert configs[0]["hidden_size"] == configs[1]["target_width"] == configs[2]["hidden_size"]
    for part in PARTS:
        with safe_open(FOLDER / part / "model.safetensors", framework="pt") as file:
            assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("sampling", [SamplingConfig(0.0), SamplingConfig(1.0, shared_noise=True)], ids=str)
def test_the_text_is_that_of_plain_decoding_in_fewer_calls(bundle: Bundle, sampling: SamplingConfig) -> None:
    config = DecodeConfig(16, sampling, TreeConfig(budget=32), bundle.target.config.stop_tokens)
    prompts = [bundle.chat(question) for question in QUESTIONS]
    plain = [autoregressive_decode(bundle.target, prompt, config).tokens for prompt in prompts]
    lengths = []
    for method in ("chain", "ddtree", "tfm", "ard-chain", "ard-tree"):
        speculator = make_speculator(
            method, bundle.drafter, bundle.weaver, sampling, autoregressive=bundle.autoregressive
        )
        traces = [speculative_decode(bundle.target, speculator, prompt, config) for prompt in prompts]
        assert [trace.tokens for trace in traces] == plain
        lengths.append(mean_accepted_length(traces).value)
    assert lengths[0] < lengths[1]
    assert lengths[2] > 2.0
    assert lengths[3] < lengths[4]
