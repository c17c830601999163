"""tfm_lab: a workbench for understanding, proving and measuring tree speculative decoding (arXiv 2607.06763).

Importing the package settles one thing and nothing else: without a GPU, Triton's kernels run in its interpreter. Triton
reads that choice (the variable ``TRITON_INTERPRET``) while it is imported, and torch imports Triton as soon as an
optimizer is built, so the choice has to be made first: import ``tfm_lab`` before you build anything.
"""

import os
import sys
from pathlib import Path

__version__ = "0.1.0"


def _choose_triton_mode() -> None:
    if "TRITON_INTERPRET" in os.environ or "triton" in sys.modules:
        return
    if not _may_have_gpu() or not _torch_sees_gpu():
        os.environ["TRITON_INTERPRET"] = "1"


def _may_have_gpu() -> bool:
    """False only where no GPU driver can be loaded; spares a machine without one the slow import of torch."""
    if sys.platform != "linux":
        return True
    return any(any(Path("/dev").glob(pattern)) for pattern in ("nvidia*", "nvhost*", "kfd", "dxg"))


def _torch_sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


_choose_triton_mode()
