"""The shipped bundle on a GPU: the same greedy text and the same states as on the CPU."""

import pytest
import torch

from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.evaluation import load_contexts
from tfm_lab.methods import METHODS, make_speculator

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def bundles() -> tuple[Bundle, Bundle]:
    return load_bundle(dtype=torch.float64), load_bundle(dtype=torch.float64, device="cuda")


@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_on_the_gpu_is_that_of_the_cpu(bundles: tuple[Bundle, Bundle], method: str) -> None:
    on_cpu, on_gpu = bundles
    config = DecodeConfig(24, stop_tokens=on_cpu.target.config.stop_tokens)
    for context in load_contexts(limit=4):
        prompt = on_cpu.encode(context.prompt)
        wanted = autoregressive_decode(on_cpu.target, prompt, config).tokens
        speculator = make_speculator(method, on_gpu.drafter, on_gpu.weaver, config.sampling)
        assert speculative_decode(on_gpu.target, speculator, prompt, config).tokens == wanted


@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_through_the_tree_kernels_is_that_of_the_reference(method: str) -> None:
    reference, fused = load_bundle(device="cuda"), load_bundle(device="cuda")
    fused.target.use_kernels("triton")
    config = DecodeConfig(64, stop_tokens=fused.target.config.stop_tokens)
    for context in load_contexts(limit=8):
        prompt = fused.encode(context.prompt)
        traces = [
            speculative_decode(
                models.target, make_speculator(method, models.drafter, models.weaver, config.sampling), prompt, config
            )
            for models in (reference, fused)
        ]
        assert traces[1].tokens == traces[0].tokens
        assert traces[0].tokens == autoregressive_decode(reference.target, prompt, config).tokens
