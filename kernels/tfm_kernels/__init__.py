"""Triton kernels of tfm_lab: tensors in, tensors out, no model and no Triton at import.

``gdn_tree`` verifies batches of draft trees with the gated delta rule and commits lazily, ``tree_layout`` and
``tree_convolution`` belong to it; ``gdn_tree_dense`` is the dense form, to be read. Each kernel has a launcher module,
importable anywhere, and a kernel module of the same name with a leading underscore, which imports Triton and is loaded
at the first launch.
"""
