"""What Gated DeltaNet layers keep for one request while a tree is verified, counted from a config. Nothing is measured.

A verification that snapshots keeps a whole state per node. One without rollback keeps a few rows per node, from which
:func:`tfm_lab.gdn.commit_path` and :func:`tfm_lab.gdn.commit_window` rebuild the state of any path.
"""

from typing import NamedTuple

from tfm_lab.models.config import DeltaNetConfig


class LayerBytes(NamedTuple):
    """Bytes of one layer and one request.

    Attributes:
        matrix: the associative memory of all value heads.
        window: the committed inputs that the short convolution still needs.
        node: what one tree node leaves for a commit: key, update, log decay, input of the convolution.
    """

    matrix: int
    window: int
    node: int

    @property
    def state(self) -> int:
        """Matrix and window: what a snapshot copies."""
        return self.matrix + self.window


def layer_bytes(config: DeltaNetConfig, *, memory_bytes: int = 4, model_bytes: int = 2) -> LayerBytes:
    """Count one layer.

    Args:
        config: head layout.
        memory_bytes: of a number in the memory and its writes: 4 is float32, which this package never goes below.
        model_bytes: of a number of the model: 2 is bfloat16.
    """
    channels = config.convolution_channels
    matrix = config.value_heads * config.key_dim * config.value_dim
    writes = config.key_heads * config.key_dim + config.value_heads * (config.value_dim + 1)
    return LayerBytes(
        memory_bytes * matrix,
        model_bytes * channels * (config.convolution_width - 1),
        memory_bytes * writes + model_bytes * channels,
    )
