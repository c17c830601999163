"""A toy world with real models in it: a target whose law is exact, small enough to train a drafter and a Weaver on.

The target is an ordinary :class:`TargetModel` with weights set by hand: one-hot embeddings, layers that add nothing,
and an output head that holds the logarithms of a Markov world's transition matrix. So everything that trains, drafts
and verifies runs unchanged, and what a tree is worth can still be computed without sampling.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.models import DrafterConfig, TargetModel, WeaverConfig
from tfm_lab.models.config import FULL_ATTENTION, TargetConfig
from tfm_lab.theory import MarkovWorld
from tfm_lab.training.data import WrittenTexts

VOCAB, MASK, BLOCK = 64, 63, 8
"""63 tokens that occur, and one that the drafter reads where a token is still to be drafted; a block drafts 7."""
LENGTH, POOL = 16, 32
FLOOR, NEVER = 0.02, 1e-7


def tiny_world(concentration: float, seed: int) -> MarkovWorld:
    """A Markov world of ``VOCAB`` tokens in which ``MASK`` never occurs and every other token is possible.

    Args:
        concentration: how open the future is, see :meth:`MarkovWorld.dirichlet`.
    """
    words = MarkovWorld.dirichlet(MASK, concentration, seed).transitions
    rows = torch.full((VOCAB, VOCAB), 1.0 / MASK, dtype=torch.float64)
    rows[:MASK, :MASK] = (1.0 - FLOOR) * words + FLOOR / MASK
    rows[:, MASK] = NEVER
    rows = rows / rows.sum(1, keepdim=True)
    return MarkovWorld(rows, int(MarkovWorld(rows).stationary().argmax()))


def target_of(world: MarkovWorld) -> TargetModel:
    """A target that gives exactly the world's next-token law, after any text; float32, frozen.

    With one-hot embeddings of length sqrt(width), the final norm leaves them alone, and a head whose column i is
    log p(. | i) divided by that length turns them into the logits.
    """
    size = world.vocab
    config = TargetConfig(
        model_type="llama",
        vocab_size=size,
        hidden_size=size,
        intermediate_size=8,
        layer_types=(FULL_ATTENTION,),
        attention_heads=1,
        key_value_heads=1,
        head_dim=8,
        rotary_dim=8,
        rope_theta=1e4,
        rms_norm_epsilon=1e-12,
        max_positions=4 * LENGTH,
        tie_embeddings=False,
    )
    target = TargetModel(config)
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        scale = math.sqrt(size)
        target.model.embed_tokens.weight.copy_(scale * torch.eye(size))
        target.head_weight.copy_(world.transitions.log().T / scale)
    return target.requires_grad_(False).eval()


def drafter_shape() -> DrafterConfig:
    """A block drafter of one layer for :func:`target_of`."""
    return DrafterConfig(
        vocab_size=VOCAB,
        hidden_size=VOCAB,
        intermediate_size=128,
        layers=1,
        attention_heads=2,
        key_value_heads=2,
        head_dim=32,
        rope_theta=1e4,
        rms_norm_epsilon=1e-6,
        max_positions=4 * LENGTH,
        target_layers=1,
        tap_layers=(0,),
        mask_token=MASK,
        block_size=BLOCK,
    )


def weaver_shape(pool_size: int = POOL) -> WeaverConfig:
    """A Weaver of one block for :func:`target_of`."""
    return WeaverConfig(
        target_width=VOCAB,
        width=64,
        layers=1,
        attention_heads=2,
        mlp_width=128,
        max_depth=BLOCK - 1,
        pool_size=pool_size,
    )


def written_texts(world: MarkovWorld, texts: int, seed: int) -> WrittenTexts:
    """Texts of the world, each from the stationary law on; all of a text counts as written by the target."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.empty(texts, LENGTH, dtype=torch.int64)
    rows[:, 0] = torch.multinomial(world.stationary(), texts, replacement=True, generator=generator)
    for place in range(1, LENGTH):
        rows[:, place] = torch.multinomial(world.transitions[rows[:, place - 1]], 1, generator=generator)[:, 0]
    return WrittenTexts(rows.numpy().astype(np.uint16), np.ones(texts, dtype=np.int32))


def path_chances(
    world: MarkovWorld, tokens: Int[Tensor, "texts nodes"], parents: Int[Tensor, "texts nodes"]
) -> Float[Tensor, "texts nodes"]:
    """The target's probability of the path to every node of many trees, float64; 1 at roots, 0 in unused columns.

    Args:
        tokens, parents: as in :class:`tfm_lab.drafting.batched.TreeBatch`.
    """
    before = parents.clamp_min(0)
    edges = world.transitions[tokens.gather(1, before), tokens]
    chances = torch.zeros_like(edges)
    chances[:, 0] = 1.0
    for node in range(1, tokens.shape[1]):
        above = chances.gather(1, before[:, node : node + 1])[:, 0]
        chances[:, node] = torch.where(parents[:, node] >= 0, above * edges[:, node], 0.0)
    return chances
