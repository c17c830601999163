"""Compile the fused tree kernels without a GPU and print what each variant uses, as JSON.

A script of its own, since Triton must not have been told to interpret in this process. Its first argument is the
compute capability: 90 (Hopper), or 100 (Blackwell), for which the variants of Qwen3.6-27B's heads alone are compiled.
``--all`` adds variants that a search for good settings may choose; ``--record`` writes the figures to
``sm90_resources.json`` or ``sm100_resources.json``, under this Triton.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import triton
from compiling import CUOBJDUMP, compile_kernel
from tfm_kernels import _gdn_tree, _gdn_tree_prepare, _tree_attention, _tree_convolution, _tree_layout, _weave_round
from tfm_kernels.gdn_tree import Settings, settings_for
from tfm_kernels.tree_attention import KEY_TILE, MOST_ROWS
from tfm_kernels.weave_round import CANDIDATES, CHANNEL_TILE

POINTERS = {
    "fp32": "A_log dt_bias state pending_update pending_weight pending_decay mixing factors log_decays "
    "key_norms scratch update",
    "i32": "path words slots pending_length parents taps accepted",
    "rows": "query key value a b output pending_key x weight windows y",
}
WEAVE_POINTERS = {
    "rows": "read table pool_logits",
    "i64": "pool tokens parents depths offered",
    "fp32": "scores",
    "fp64": "totals frontier",
    "u8": "ancestors",
}
ATTENTION_POINTERS = {
    "rows": "query key value output",
    "i64": "length",
    "u8": "own",
    "fp32": "sums highest totals",
}
ALIGNED = {"row_batch", "row_node", "value_batch", "value_node", "gate_batch", "gate_node", "x_batch", "x_node"}
ALIGNED |= {"query_batch", "query_shared", "query_row", "key_row", "value_row"}
ALIGNED |= {"path_rows", "channels", "x_layer", "layer_windows", "key_layer", "key_batch", "key_node"}
CAPABILITY = int(sys.argv[1])
RECORD = Path(__file__).with_name(f"sm{CAPABILITY}_resources.json")
QWEN = {"HK": 16, "HV": 48, "DK": 128, "DV": 128}
SMALL = {"HK": 2, "HV": 4, "DK": 64, "DV": 64}


def variant(
    kernel: Any,
    element: str,
    warps: int,
    constants: dict[str, Any],
    pointers: dict[str, str] = POINTERS,
    **options: Any,
) -> dict[str, int]:
    types = {
        name: f"*{kind if kind != 'rows' else element}" for kind, names in pointers.items() for name in names.split()
    }
    types |= {name: "i32" for name in kernel.arg_names if name not in types}
    types["scale"] = "fp32"
    known = constants | {"WIDE": element == "fp32", "CHAINED": constants.get("CHAINED", False)}
    known = {name: value for name, value in known.items() if name in kernel.arg_names}
    return compile_kernel(kernel, types, known, {"num_warps": warps} | options, ALIGNED, CAPABILITY)


def tree_variants(
    element: str, heads: dict[str, int], settings: Settings, walk: Settings, label: str
) -> dict[str, dict[str, int]]:
    common = heads | {
        "KEY_STEP": min(settings.key_step, heads["DK"]),
        "GROUPS": settings.groups,
        "FOLD_TILE": settings.fold_tile,
        "PENDING": 16,
        "CHAINED": settings.chained,
    }
    one_each = common | {"VALUE_TILE": settings.value_tile, "LOOPS": False}
    walking = common | {"VALUE_TILE": walk.value_tile, "KEY_STEP": min(walk.key_step, heads["DK"])}
    chained = {"launch_pdl": True} if settings.chained else {}
    kernels = _gdn_tree
    table = {
        f"prepare {label}": variant(
            _gdn_tree_prepare.prepare_kernel, element, settings.prepare_warps, common, **chained
        ),
        f"prepare for walk {label}": variant(
            kernels.prepare_walk_kernel, element, walk.prepare_warps, walking, **chained
        ),
        f"block {label}": variant(kernels.blocks_kernel, element, settings.warps, one_each, **chained),
        f"walk {label}": variant(kernels.walk_kernel, element, walk.warps, walking, num_stages=1, **chained),
    }
    if element == "bf16":
        table[f"blocks {label}"] = variant(
            kernels.blocks_kernel, element, settings.warps, one_each | {"LOOPS": True},
            num_stages=settings.stages, maxnreg=settings.registers, **chained,
        )  # fmt: skip
    return table


def main() -> None:
    if not CUOBJDUMP.exists():
        sys.exit(77)
    default, walk = (settings_for(129, 1, 128, 128, wide=False, walks=walks) for walks in (False, True))
    table = hopper_variants() if CAPABILITY == 90 else tree_variants("bf16", QWEN, default, walk, "bf16 128")
    table |= weave_variants(("bf16", "fp32") if CAPABILITY == 90 else ("bf16",))
    table |= attention_variants()
    if "--all" in sys.argv:
        table |= searched_variants()
    if "--record" in sys.argv:
        recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        RECORD.write_text(json.dumps(recorded | {triton.__version__: table}, indent=1) + "\n")
    print(json.dumps({"triton": triton.__version__, "variants": table}))


def hopper_variants() -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for element, wide in (("bf16", False), ("fp32", True)):
        for label, heads in (("128", QWEN), ("64", SMALL)):
            sizes = (129, 1, heads["DK"], heads["DV"])
            settings, walk = (settings_for(*sizes, wide=wide, walks=walks) for walks in (False, True))
            table |= tree_variants(element, heads, settings, walk, f"{element} {label}")
    chained, walk = (
        settings_for(129, 1, 128, 128, wide=False, walks=walks)._replace(chained=True) for walks in (False, True)
    )
    table |= tree_variants("bf16", QWEN, chained, walk, "bf16 128 chained")
    table |= tree_variants("bf16", QWEN, settings_for(65, 1, 128, 128, wide=False), walk, "bf16 128, folds of 32")
    table["fold bf16 128"] = variant(_gdn_tree.flush_kernel, "bf16", 2, QWEN | {"PENDING": 16, "FOLD_TILE": 16})
    table["gather bf16 128"] = variant(_gdn_tree.gather_kernel, "bf16", 2, QWEN | {"PENDING": 16})
    tiles = {"WIDTH": 4, "NODE_TILE": 16, "CHANNEL_TILE": 128, "SILU": True, "ROWS": 4}
    table["convolution bf16"] = variant(_tree_convolution.convolution_kernel, "bf16", 4, tiles)
    table["window bf16"] = variant(_tree_convolution.window_kernel, "bf16", 4, tiles)
    table["layout"] = variant(_tree_layout.layout_kernel, "bf16", 1, {"WIDTH": 4})
    return table


def weave_variants(elements: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """A Weaver's round with 512 candidates, in the smallest and the largest tree of a model's benchmark."""
    table: dict[str, dict[str, int]] = {}
    for element in elements:
        tiles = {"POOL": 512, "CANDIDATES": CANDIDATES, "CHANNEL_TILE": CHANNEL_TILE}
        table[f"scores {element}"] = variant(_weave_round.scores_kernel, element, 4, tiles, WEAVE_POINTERS)
    for nodes, width in ((16, 1), (128, 8)):
        tiles = {"POOL": 512, "POOL_TILE": 512, "WIDTH_TILE": width, "NODE_TILE": nodes, "FRONTIER_TILE": 8 * nodes}
        table[f"grow {nodes} nodes"] = variant(_weave_round.grow_kernel, "fp32", 8, tiles, WEAVE_POINTERS)
    return table


def attention_variants() -> dict[str, dict[str, int]]:
    """One row and a tree of rows, with the head sizes of Qwen3.6-27B and of its drafter."""
    table: dict[str, dict[str, int]] = {}
    kernels = _tree_attention
    for size in (128, 256):
        for tile, warps in ((16, 4), (MOST_ROWS, 8)):
            tiles = {"SIZE": size, "ROW_TILE": tile, "KEY_TILE": KEY_TILE}
            table[f"attention bf16 {size}, {tile} rows"] = variant(
                kernels.parts_kernel, "bf16", warps, tiles, ATTENTION_POINTERS, num_stages=2
            )
        tiles = {"SIZE": size, "ROW_TILE": 8}
        table[f"merge bf16 {size}"] = variant(kernels.merge_kernel, "bf16", 4, tiles, ATTENTION_POINTERS)
    return table


def searched_variants() -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for value_tile in (16, 32, 64, 128):
        for warps in (1, 2, 4, 8):
            products = QWEN | {"VALUE_TILE": value_tile, "GROUPS": 1, "KEY_STEP": 128}
            label = f"bf16 128, tile {value_tile}, {warps} warps"
            table[f"block {label}"] = variant(_gdn_tree.blocks_kernel, "bf16", warps, products | {"LOOPS": False})
            for stages, registers in itertools.product((1, 2, 3), (None, 200)):
                table[f"blocks {label}, {stages} stages, {registers} registers"] = variant(
                    _gdn_tree.blocks_kernel, "bf16", warps, products | {"LOOPS": True},
                    num_stages=stages, maxnreg=registers,
                )  # fmt: skip
            table[f"walk {label}"] = variant(_gdn_tree.walk_kernel, "bf16", warps, products, num_stages=1)
    for key_step, fold_tile in itertools.product((64, 128), (8, 16, 32)):
        constants = QWEN | {"KEY_STEP": key_step, "PENDING": 16, "FOLD_TILE": fold_tile}
        label = f"bf16 128, {key_step} columns, fold tile {fold_tile}"
        table[f"prepare {label}"] = variant(_gdn_tree_prepare.prepare_kernel, "bf16", 2, constants)
    return table


if __name__ == "__main__":
    main()
