"""Gated DeltaNet in readable PyTorch: the delta rule, its tree form, its commit, and the short convolution.

``delta_rule`` holds the definition (token by token) and the chunked form, ``tree`` verifies a whole draft tree without
touching the state and commits an accepted path in closed form, ``convolution`` does both for the short convolution.
``step`` and ``step_convolution`` do the same for batches of trees, with the commit put off to the next step, as an
engine needs it; they have names of their own: ``from tfm_lab.gdn import step``.

Layout everywhere: ``[..., heads, tokens, dim]``; gates ``[..., heads, tokens]``; state
``[..., value_heads, key_dim, value_dim]``. Value head h reads key head ``h // (value_heads / key_heads)``.

Dtypes: everything is computed in float32, or in float64 when an input is float64, and never under autocast. States and
writes come back in that dtype, outputs in the dtype of the values. On a GPU, float32 products obey
``torch.set_float32_matmul_precision``; its default "highest" is what every tolerance of this project assumes.
"""

from tfm_lab.gdn.convolution import causal_convolution, commit_window, convolution_ancestors, tree_convolution
from tfm_lab.gdn.delta_rule import (
    delta_rule_chunked,
    delta_rule_recurrent,
    gates,
    normalise,
    normalised_query_and_key,
)
from tfm_lab.gdn.tree import TreeImplementation, TreeVerification, TreeWrites, commit_path, tree_verify

__all__ = [
    "TreeImplementation",
    "TreeVerification",
    "TreeWrites",
    "causal_convolution",
    "commit_path",
    "commit_window",
    "convolution_ancestors",
    "delta_rule_chunked",
    "delta_rule_recurrent",
    "gates",
    "normalise",
    "normalised_query_and_key",
    "tree_convolution",
    "tree_verify",
]
