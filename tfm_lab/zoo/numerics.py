"""WRONG ON PURPOSE. Numbers in two precisions where one was meant: exhibits 2 and 12."""

from collections.abc import Callable
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.draws import Draws
from tfm_lab.exact import Table
from tfm_lab.verification import rejection_swor
from tfm_lab.zoo.exhibit import Exhibit, Measurement
from tfm_lab.zoo.interpreted import SIDE, dot
from tfm_lab.zoo.laws import BIAS, BIASED, EXACT, EmittedText, Pair, sampled_chain

# Exhibit 2.

TEMPERATURE = 0.6
VOCAB, DEPTH, TABLES = 4, 2, 4
LEVEL = 20.0
"""Size of the logits at which the bias is judged; those of large language models are of this order."""


def draw_in_float32(logits: Float[Tensor, " vocab"], draws: Draws) -> tuple[int, Float[Tensor, " vocab"]]:
    """Right: one q, computed once in float32, to draw from and to judge by."""
    q = (logits.bfloat16().float() / TEMPERATURE).softmax(0).double()
    return draws.categorical(q), q


def wrong_draw_in_bfloat16(logits: Float[Tensor, " vocab"], draws: Draws) -> tuple[int, Float[Tensor, " vocab"]]:
    """WRONG in its first line: the model's logits are divided and exponentiated in the model's own bfloat16.

    The quotient has 8 significant bits: at 20 / 0.6 it is off by up to 1/8, and the probability in proportion.
    """
    drawn_from = (logits.bfloat16() / TEMPERATURE).softmax(0)
    q = (logits.bfloat16().float() / TEMPERATURE).softmax(0).double()
    return draws.categorical(drawn_from), q


def logits_near(level: float, seed: int) -> Table:
    """A table of random logits around ``level``, such as bfloat16 represents exactly."""
    generator = torch.Generator().manual_seed(seed)
    prefixes = [prefix for length in range(DEPTH + 1) for prefix in product(range(VOCAB), repeat=length)]
    rows = (level + 1.5 * torch.randn(len(prefixes), VOCAB, generator=generator, dtype=torch.float64)).bfloat16()
    return Table(VOCAB, dict(zip(prefixes, rows.double(), strict=True)))


def bias_by_level(pair: Pair) -> Measurement:
    """The tool: the exact law of the text, for logits of growing size; each point is the mean over a few tables.

    Target and drafter are the same table, so that everything is accepted and the text has the law of the draws.
    """
    config, sampling = TreeConfig(budget=DEPTH, max_depth=DEPTH), SamplingConfig(temperature=TEMPERATURE)
    found: dict[float, float] = {}
    for level in (5.0, 10.0, LEVEL, 30.0):
        tables = [logits_near(level, seed) for seed in range(TABLES)]
        tools = [EmittedText(table, table, config, DEPTH + 1, sampling) for table in tables]
        found[level] = sum(tool(pair).error for tool in tools) / TABLES
    return Measurement(found[LEVEL], found, dict.fromkeys(found, 0.0))


BFLOAT16_DRAW = Exhibit(
    number=2,
    name="bfloat16_draw",
    title="Draw in bfloat16, judge in float32",
    symptom="A small bias that grows with the size of the logits and is gone when the model runs in float32.",
    cause="The draft is drawn from a softmax in bfloat16, and the ratio p/q takes q from a softmax in float32.",
    fix="Convert the logits to float32 before temperature and softmax, once, and use that q for both.",
    threads=("https://github.com/deepseek-ai/DeepSpec/issues/31",),
    wrong=Pair(sampled_chain(wrong_draw_in_bfloat16), rejection_swor),
    right=Pair(sampled_chain(draw_in_float32), rejection_swor),
    tool=bias_by_level,
    figure_of_merit=BIAS,
    tolerance=EXACT,
    threshold=BIASED,
    x_title="size of the logits",
    y_title="total variation distance",
)

# Exhibit 12.

Tile = Float[Tensor, "16 16"]
Product = Callable[[Tile, Tile], Tile]


def wrong_product(a: Tile, b: Tile) -> Tile:
    """WRONG in its only line: the interpreter's numpy has no bfloat16, and multiplies the bit patterns."""
    return dot(a, b)


def right_product(a: Tile, b: Tile) -> Tile:
    """Right: float32 tiles. (The package's own kernel refuses bfloat16 under the interpreter.)"""
    return dot(a.float(), b.float())


def error_of_product(multiply: Product) -> Measurement:
    """The tool: largest error of a product of bfloat16 tiles against float64, over the largest entry.

    The points give it for operands of several sizes: the error depends on them, but is never small.
    """
    generator = torch.Generator().manual_seed(0)
    errors: dict[float, float] = {}
    for size in (0.25, 1.0, 4.0):
        a, b = ((size * torch.randn(SIDE, SIDE, generator=generator)).bfloat16() for _ in range(2))
        exact = a.double() @ b.double()
        errors[size] = float((multiply(a, b).double() - exact).abs().max() / exact.abs().max())
    return Measurement(max(errors.values()), errors)


INTERPRETED_BFLOAT16_DOT = Exhibit(
    number=12,
    name="interpreted_bfloat16_dot",
    title="A bfloat16 product in Triton's interpreter",
    symptom="A kernel that is right on a GPU returns numbers many orders too large in the interpreter, without a word.",
    cause="The interpreter's tl.dot multiplies the bit patterns of bfloat16 tiles as whole numbers, without refusing.",
    fix="Hand float32 to kernels under the interpreter, and let launchers refuse bfloat16 there.",
    threads=("https://github.com/triton-lang/triton/issues/11584", "https://github.com/triton-lang/triton/pull/11585"),
    wrong=wrong_product,
    right=right_product,
    tool=error_of_product,
    figure_of_merit="largest relative error of the product",
    tolerance=1e-6,
    threshold=1.0,
    x_title="size of the operands",
    y_title="largest relative error",
    needs="triton",
)
