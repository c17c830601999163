"""Triton kernels of tfm_lab: tensors in, tensors out, no model and no Triton at import.

``tfm_kernels.gdn_tree_dense.gdn_tree_dense`` verifies a draft tree with the gated delta rule. Each kernel has a
launcher module, importable anywhere, and a kernel module of the same name with a leading underscore, which imports
Triton and is loaded at the first launch.
"""
