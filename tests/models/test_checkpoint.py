"""Checkpoint folders: round trips, shards, wrappers, and what is said about files that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from models.oracle import oracle_logits, oracle_model, random_tokens, relative_error
from models.small import drafter_for, tiny_target, weaver_for
from safetensors.torch import load_file, save_file

from tfm_lab.models import (
    load_drafter,
    load_target,
    load_weaver,
    save_drafter,
    save_target,
    save_weaver,
)
from tfm_lab.models.checkpoint import atomic_folder, check_target


def test_a_saved_target_is_read_by_transformers_as_the_same_model(tmp_path: Path) -> None:
    for name, kind in (("hybrid-grouped", "Qwen3_5ForCausalLM"), ("llama-plain", "LlamaForCausalLM")):
        target = tiny_target(name, torch.float32)
        save_target(target, tmp_path / name)
        reread = load_target(tmp_path / name)
        oracle = getattr(transformers, kind).from_pretrained(tmp_path / name, dtype=torch.float32).eval()
        tokens = random_tokens(20)
        assert relative_error(reread(torch.tensor([tokens]))[0], oracle_logits(oracle, tokens)) < 1e-4
        assert reread.fingerprint() == target.fingerprint()


def test_sharded_checkpoints_are_read_like_single_ones(tmp_path: Path) -> None:
    oracle = oracle_model("hybrid-plain")
    oracle.save_pretrained(tmp_path / "one")
    oracle.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load_target(tmp_path / "one"), load_target(tmp_path / "many")
    for left, right in zip(one.parameters(), many.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_text_part_of_a_vision_language_wrapper_is_found(tmp_path: Path) -> None:
    oracle_model("hybrid-plain").save_pretrained(tmp_path / "text")
    tensors = load_file(tmp_path / "text" / "model.safetensors")
    wrapped = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    wrapped |= {"model.visual.patch.weight": torch.zeros(2), "mtp.norm.weight": torch.zeros(2)}
    config = json.loads((tmp_path / "text" / "config.json").read_text())
    (tmp_path / "wrapper").mkdir()
    save_file(wrapped, tmp_path / "wrapper" / "model.safetensors")
    wrapper = {"model_type": "qwen3_5", "text_config": config, "tie_word_embeddings": False}
    (tmp_path / "wrapper" / "config.json").write_text(json.dumps(wrapper))
    assert load_target(tmp_path / "wrapper").fingerprint() == load_target(tmp_path / "text").fingerprint()


@pytest.mark.parametrize("form", [{}, {"positions": "rotary", "mlp": "swiglu"}])
def test_drafter_and_weaver_come_back_as_saved(tmp_path: Path, form: dict[str, str]) -> None:
    target = tiny_target(dtype=torch.float32)
    drafter, weaver = drafter_for(target), weaver_for(target, **form)
    save_drafter(drafter, target, tmp_path / "drafter")
    save_weaver(weaver, target, tmp_path / "weaver")
    reread_drafter = load_drafter(tmp_path / "drafter", target)
    reread_weaver = load_weaver(tmp_path / "weaver", target)
    assert reread_drafter.config == drafter.config
    assert reread_weaver.config == weaver.config
    for left, right in ((drafter, reread_drafter), (weaver, reread_weaver)):
        for name, tensor in left.state_dict().items():
            assert torch.equal(tensor.bfloat16().float(), right.state_dict()[name])


def test_a_drafter_and_a_weaver_of_other_weights_are_refused(tmp_path: Path) -> None:
    target, other = tiny_target(dtype=torch.float32), tiny_target("hybrid-plain", torch.float32)
    save_drafter(drafter_for(target), target, tmp_path / "drafter")
    save_weaver(weaver_for(target), target, tmp_path / "weaver")
    with pytest.raises(ValueError, match="the drafter was trained for another target"):
        load_drafter(tmp_path / "drafter", other)
    with pytest.raises(ValueError, match="the Weaver was trained for another target"):
        load_weaver(tmp_path / "weaver", other)


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def add_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors") | {"model.extra": torch.zeros(1)}
    save_file(tensors, folder / "model.safetensors")


def reshape_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors") | {"model.norm.weight": torch.zeros(3)}
    save_file(tensors, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def nest_config(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def cast_weights(dtype: torch.dtype) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")

    return damage


def spoil_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, folder / "model.safetensors")


def change_config(**changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return damage


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (drop_tensor, "missing model.norm.weight"),
        (add_tensor, "unknown model.extra"),
        (reshape_tensor, r"model.norm.weight has shape \(3,\), expected \(48,\)"),
        (truncate, "is damaged"),
        (remove_weights, "lacks its weights file model.safetensors"),
        (break_config, "is not valid JSON"),
        (change_config(model_type="gpt2"), "target type 'gpt2' is not supported"),
        (change_config(hidden_act="gelu"), "activation 'gelu' is not supported"),
        (change_config(attention_bias=True), "attention_bias are not supported"),
        (change_config(num_experts=4), "mixture-of-experts"),
        (change_config(rope_parameters={"rope_type": "yarn"}), "rotary embedding type 'yarn'"),
        (change_config(hidden_size="48"), "needs a whole number from 1 to 16777216 for 'hidden_size', got '48'"),
        (change_config(layer_types=["full_attention"]), "lists 1 layers but num_hidden_layers is 5"),
        (change_config(linear_num_value_heads=5), "needs a multiple of 2 value heads"),
        (change_config(linear_num_key_heads=0), "for 'linear_num_key_heads', got 0"),
        (change_config(num_attention_heads=-1), "for 'num_attention_heads', got -1"),
        (change_config(num_hidden_layers=10**9), "from 1 to 1000 for 'num_hidden_layers'"),
        (change_config(hidden_size=-4), "for 'hidden_size', got -4"),
        (change_config(vocab_size=True), "for 'vocab_size', got True"),
        (change_config(head_dim="x"), "for 'head_dim', got 'x'"),
        (change_config(head_dim=None, num_attention_heads=64), "num_attention_heads is 64, which is more than"),
        (change_config(num_key_value_heads=0), "for 'num_key_value_heads', got 0"),
        (change_config(max_position_embeddings=-5), "for 'max_position_embeddings', got -5"),
        (change_config(rms_norm_eps=float("nan")), "needs a finite number above 0 for 'rms_norm_eps', got nan"),
        (change_config(rms_norm_eps=-1), "for 'rms_norm_eps', got -1"),
        (change_config(rope_theta="x"), "for 'rope_theta', got 'x'"),
        (change_config(rope_theta=3.0), "rope_theta is 3.0 in the model config, but another in its rope settings"),
        (change_config(rope_parameters=5), "needs an object for 'rope_parameters', got 5"),
        (change_config(rope_parameters={"rope_theta": None}), "for 'rope_theta', got None"),
        (change_config(rope_parameters={"full_attention": {"rope_type": "yarn"}}), "that differ between layers"),
        (change_config(rope_scaling={"type": "linear", "factor": 4}), "rotary embedding type 'linear'"),
        (change_config(layer_types=5), "needs a list of texts for 'layer_types', got 5"),
        (change_config(model_type=[]), r"needs a text for 'model_type', got \[\]"),
        (change_config(model_type="qwen3_5", text_config=5), "needs an object for 'text_config', got 5"),
        (change_config(tie_word_embeddings="no"), "needs true or false for 'tie_word_embeddings', got 'no'"),
        (change_config(eos_token_id="abc"), "for 'eos_token_id', got 'abc'"),
        (change_config(eos_token_id={}), "for 'eos_token_id', got {}"),
        (change_config(eos_token_id=3.5), "for 'eos_token_id', got 3.5"),
        (change_config(eos_token_id=[97]), "a list of whole numbers from 0 to 96 for 'eos_token_id'"),
        (change_config(quantization_config={"quant_method": "fp8"}), "quantised weights are not supported"),
        (change_config(attn_output_gate=False), "needs gated attention"),
        (change_config(final_logit_softcapping=30.0), "capped logits"),
        (change_config(use_sliding_window=True), "sliding-window layers"),
        (nest_config, "config.json is nested too deeply"),
        (cast_weights(torch.int8), "model.embed_tokens.weight does not hold floating-point numbers"),
        (spoil_weights, "model.norm.weight holds numbers that are not finite in torch.float32"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_a_sentence(
    tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    save_target(tiny_target(dtype=torch.float32), tmp_path / "target")
    damage(tmp_path / "target")
    with pytest.raises(ValueError, match=sentence):
        load_target(tmp_path / "target")


def test_a_llama_with_a_gate_or_other_layers_is_refused(tmp_path: Path) -> None:
    save_target(tiny_target("llama-plain", torch.float32), tmp_path / "llama")
    change_config(attn_output_gate=True)(tmp_path / "llama")
    with pytest.raises(ValueError, match="has no gated attention"):
        load_target(tmp_path / "llama")
    change_config(attn_output_gate=False, layer_types=["linear_attention"] * 3)(tmp_path / "llama")
    with pytest.raises(ValueError, match="layer_types of a llama must all be full_attention"):
        load_target(tmp_path / "llama")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change_config(use_sliding_window=True), "sliding-window layers"),
        (change_config(layer_types=5), "needs a list of texts for 'layer_types', got 5"),
        (change_config(layer_types=["full_attention", "sliding_attention"]), "sliding-window or other layers"),
        (change_config(block_size=None), "from 2 to 16777216 for 'block_size', got None"),
        (change_config(dflash_config=5), "needs an object for 'dflash_config', got 5"),
        (change_config(dflash_config={"mask_token_id": 3, "block_size": 4}), "block_size is 8, but 4 in dflash_config"),
        (change_config(dflash_config={"target_layer_ids": [0, 1]}), "for 'mask_token_id', it is missing"),
        (change_config(dflash_config={"mask_token_id": 3, "target_layer_ids": 5}), "for 'target_layer_ids', got 5"),
        (change_config(dflash_config={"mask_token_id": 3, "target_layer_ids": [9]}), "from 0 to 4"),
        (change_config(num_target_layers="x"), "for 'num_target_layers', got 'x'"),
        (change_config(architectures=5), "needs a list of texts for 'architectures', got 5"),
        (cast_weights(torch.int64), "does not hold floating-point numbers"),
        (cast_weights(torch.complex64), "does not hold floating-point numbers"),
    ],
)
def test_what_is_wrong_with_a_drafter_is_said_in_a_sentence(
    tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    target = tiny_target(dtype=torch.float32)
    save_drafter(drafter_for(target), target, tmp_path / "drafter")
    damage(tmp_path / "drafter")
    with pytest.raises(ValueError, match=sentence):
        load_drafter(tmp_path / "drafter", target)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change_config(attention_heads=0), "for 'attention_heads', got 0"),
        (change_config(attention_heads=-1), "for 'attention_heads', got -1"),
        (change_config(layers="1"), "for 'layers', got '1'"),
        (change_config(max_depth=15.0), "for 'max_depth', got 15.0"),
        (change_config(pool_size="x"), "for 'pool_size', got 'x'"),
        (change_config(pool_size=-1), "for 'pool_size', got -1"),
        (change_config(norm_epsilon="x"), "needs a finite number above 0 for 'norm_epsilon', got 'x'"),
        (change_config(positions=3), "needs a text for 'positions', got 3"),
        (cast_weights(torch.bool), "does not hold floating-point numbers"),
    ],
)
def test_what_is_wrong_with_a_weaver_is_said_in_a_sentence(
    tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    target = tiny_target(dtype=torch.float32)
    save_weaver(weaver_for(target), target, tmp_path / "weaver")
    damage(tmp_path / "weaver")
    with pytest.raises(ValueError, match=sentence):
        load_weaver(tmp_path / "weaver", target)


def test_settings_that_published_checkpoints_carry_are_accepted(tmp_path: Path) -> None:
    target = tiny_target(dtype=torch.float32)
    rope = {"mrope_interleaved": True, "mrope_section": [1, 1, 2], "rope_type": "default", "rope_theta": 10000.0}
    save_target(target, tmp_path / "target")
    change_config(
        attn_output_gate=True,
        mlp_only_layers=[],
        num_experts=None,
        quantization_config=None,
        rope_parameters=rope | {"partial_rotary_factor": 0.25},
        rope_scaling=None,
        sliding_window=None,
        use_sliding_window=False,
    )(tmp_path / "target")
    assert load_target(tmp_path / "target").fingerprint() == target.fingerprint()
    drafter = drafter_for(target)
    save_drafter(drafter, target, tmp_path / "drafter")
    change_config(
        layer_types=["full_attention"] * 2,
        max_window_layers=2,
        rope_parameters=None,
        rope_scaling=None,
        sliding_window=4096,
        use_sliding_window=False,
    )(tmp_path / "drafter")
    assert load_drafter(tmp_path / "drafter", target).config == drafter.config


def test_the_headers_alone_betray_weights_that_are_no_floating_point_numbers(tmp_path: Path) -> None:
    save_target(tiny_target(dtype=torch.float32), tmp_path / "target")
    assert check_target(tmp_path / "target").layers == 5
    cast_weights(torch.int8)(tmp_path / "target")
    with pytest.raises(ValueError, match="does not hold floating-point numbers"):
        check_target(tmp_path / "target")


@pytest.mark.parametrize(
    "content",
    [b"{}", b"[]", b"{", b"\xff\xfe\x80", b'{"weight_map": null}', b'{"weight_map": [1]}', b'{"weight_map": {"a": 1}}'],
)
def test_a_damaged_index_of_shards_is_named(tmp_path: Path, content: bytes) -> None:
    save_target(tiny_target(dtype=torch.float32), tmp_path / "target")
    (tmp_path / "target" / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"target/model\.safetensors\.index\.json (is|must)"):
        load_target(tmp_path / "target")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        load_target(tmp_path / "nowhere")


def test_an_index_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    save_target(tiny_target(dtype=torch.float32), tmp_path / "target")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (tmp_path / "target" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="lacks its weights file"):
        load_target(tmp_path / "target")


def test_an_interrupted_write_leaves_the_old_folder_whole(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with atomic_folder(folder) as scratch:
        (scratch / "file").write_text("old")

    def broken_off() -> None:
        with atomic_folder(folder) as scratch:
            (scratch / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert (folder / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
