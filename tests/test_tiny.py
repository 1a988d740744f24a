"""Every architecture and every rotary embedding against transformers' logits, and against itself cut in every way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_weights

from glassbox.errors import GlassboxError, ModelFormatError, Unsupported
from glassbox.model.config_hf import spec_from_config
from glassbox.model.config_rope import KINDS
from glassbox.model.execute import Part
from glassbox.model.model import TransformerModel, forward
from glassbox.model.points import all_points
from glassbox.model.rope import RopeTables, frequencies
from glassbox.model.transformer import write
from glassbox.model.weights import check_weights
from glassbox.weights.quant import decode

CASES, LOGITS = tiny_weights.load()


def load(case: str, threads: int = 1) -> TransformerModel:
    return TransformerModel(tiny_weights.checkpoint(case, CASES), threads=threads)


def run(model: TransformerModel, ids: list[int], **how: Any) -> np.ndarray:
    cache = model.new_cache()
    logits = forward(model, ids, cache, **how)[0]
    cache.release()
    return logits


def ids_of(case: str) -> list[int]:
    return tiny_weights.ids_of(case, CASES[case]["config"]["vocab_size"])


def off(got: np.ndarray, case: str, first: int = 0) -> float:
    """The largest difference from the golden's rows, over its largest logit (0.4 … 12)."""
    right = LOGITS[case]
    return float(np.abs(got - right[first : first + len(got)]).max() / np.abs(right).max())


@pytest.mark.parametrize("case", sorted(CASES))
def test_logits_are_those_of_transformers(case: str) -> None:
    got = run(load(case), ids_of(case), rows="all")
    assert got.shape == LOGITS[case].shape
    assert off(got, case) <= 1e-5


@pytest.mark.parametrize("case", sorted(CASES))
def test_cache_chunks_threads_and_looking_change_no_bit(case: str) -> None:
    model, other, ids = load(case), load(case, threads=2), ids_of(case)
    whole = run(model, ids, rows="all").tobytes()
    assert run(model, ids, rows="all", chunk=1).tobytes() == whole
    assert run(other, ids, rows="all", chunk=7).tobytes() == whole
    assert run(other, ids, rows="all", observe=all_points(model.layers)).tobytes() == whole
    cache = model.new_cache()
    forward(model, ids[:30], cache)
    cache.truncate(20)
    assert forward(model, ids[20:], cache, rows="all")[0].tobytes() == whole[len(whole) // 2 :]


@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
@pytest.mark.parametrize("case", sorted(case for case in CASES if case.endswith("-b")))
def test_company_changes_no_bit(case: str, kv: str) -> None:
    """Two sequences in one pass, at different lengths, against each alone."""
    model, ids = TransformerModel(tiny_weights.checkpoint(case, CASES), threads=2, kv=kv), ids_of(case)
    other = ids[5:30]
    alone = [run(model, ids)[0], run(model, other)[0]]
    a, b = model.new_cache(), model.new_cache()
    a.reserve(len(ids))
    b.reserve(len(other))
    forward(model, ids[:-3], a)
    parts = [Part(np.array(other), b, range(24, 25)), Part(np.array(ids[-3:]), a, range(2, 3))]
    together = model.forward_parts(parts).logits
    assert together[0].tobytes() == alone[1].tobytes()
    assert together[1].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize("case", sorted(CASES))
def test_points_add_up(case: str) -> None:
    model, ids = load(case), ids_of(case)
    cache, s = model.new_cache(), model.spec
    seen = forward(model, ids, cache, observe=all_points(model.layers))[1]
    cache.release()
    for i in range(s.layers):
        pre, mid, post = (seen[f"resid_{name}.{i}"] for name in ("pre", "mid", "post"))
        assert np.array_equal(mid, pre + seen[f"attn_out.{i}"])
        assert np.array_equal(post, mid + seen[f"mlp_out.{i}"])
        assert np.array_equal(pre, seen[f"resid_post.{i - 1}"] if i else seen["embed"])
        assert seen[f"q.{i}"].shape == (len(ids), s.heads, s.head_width)
        mlp = (s.experts_used, s.mlp_width) if s.experts else (s.mlp_width,)
        assert seen[f"mlp_act.{i}"].shape == (len(ids), *mlp)
        shown = seen[f"attn_probs.{i}"] > 0
        far = np.tri(len(ids), k=0, dtype=bool) & ~np.tri(len(ids), k=-(s.window_of(i) or len(ids)), dtype=bool)
        assert np.array_equal(shown, np.broadcast_to(far[:, None], shown.shape))


def test_nothing_is_written_that_a_model_does_not_need() -> None:
    """llama and gemma3 are what they were before others came: 16 and 20 instructions a layer."""
    for case, per_layer in (("llama-a", 16), ("gemma3-a", 20)):
        model = load(case)
        program = write(model.spec, model.weights, RopeTables(64)).program
        assert len(program.code) == 1 + per_layer * model.layers + 3


WINDOWED = [case for case in sorted(CASES) if spec_from_config(CASES[case]["config"]).local]


@pytest.mark.parametrize("case", WINDOWED)
def test_around_the_window(case: str) -> None:
    """Sequences of W−1, W and W+1 tokens, token by token, with what no query reads again given back."""
    model, ids = load(case), ids_of(case)
    window = model.spec.window
    for length in (window - 1, window, window + 1):
        cache = model.new_cache()
        for i in range(length):
            row = forward(model, ids[i : i + 1], cache)[0]
            cache.trim()
        assert off(row, case, length - 1) <= 1e-5, length
        cache.release()


def test_every_architecture_and_rope_is_there() -> None:
    specs = [(CASES[case]["config"], spec_from_config(CASES[case]["config"])) for case in CASES]
    assert {s.architecture for _, s in specs} == {
        "gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "smollm3",
        "granite", "starcoder2", "stablelm", "gpt_neox", "cohere", "opt", "bloom", "mixtral", "qwen3_moe",
    }  # fmt: skip
    kinds = {(c.get("rope_parameters") or {}).get("rope_type", "none") for c, _ in specs}
    assert kinds >= {"default", "linear", "dynamic", "llama3", "yarn", "longrope"}


# --- formats of the weights ---


def bfloat16(a: np.ndarray) -> np.ndarray:
    """The upper halves of float32, which is what bfloat16 is."""
    return (np.ascontiguousarray(a).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
@pytest.mark.parametrize("case", ["llama-a", "gpt2-a", "gpt_neox-a", "mixtral-a", "opt-a", "bloom-b", "stablelm-b"])
def test_halves_are_the_float32_that_they_say(case: str, kind: str) -> None:
    file = tiny_weights.checkpoint(case, CASES)
    pack = bfloat16 if kind == "BF16" else lambda a: a.astype(np.float16)
    halves = tiny_weights.Memory(file.config, {name: pack(a) for name, a in file.arrays.items()})
    whole = {n: decode(t.format, halves.raw(n), t.shape) for n, t in halves.tensors.items()}
    ids = ids_of(case)
    got = run(TransformerModel(halves, threads=1), ids, rows="all")
    assert (
        got.tobytes()
        == run(TransformerModel(tiny_weights.Memory(file.config, whole), threads=1), ids, rows="all").tobytes()
    )
    assert np.median(np.abs(got - LOGITS[case])) < 0.05  # the largest is larger: another expert may be chosen


# --- spellings ---


def older(config: dict[str, Any]) -> dict[str, Any]:
    """The same config as it was written before rope_parameters."""
    out = dict(config)
    new = dict(out.pop("rope_parameters", None) or {})
    if "full_attention" in new:
        out["rope_local_base_freq"] = new["sliding_attention"]["rope_theta"]
        new = dict(new["full_attention"])
    names = (
        ("rotary_emb_base", "rotary_pct")
        if config["model_type"] == "gpt_neox"
        else ("rope_theta", "partial_rotary_factor")
    )
    for name, key in zip(names, ("rope_theta", "partial_rotary_factor"), strict=True):
        if key in new:
            out[name] = new.pop(key)
    if new.get("rope_type", "default") != "default":
        out["rope_scaling"] = new
        if config["model_type"] == "phi3":  # once called so, and `type`
            new["type"] = "su"
            del new["rope_type"]
    return out


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_older_spelling_says_the_same(case: str) -> None:
    config = CASES[case]["config"]
    assert spec_from_config(older(config)) == spec_from_config(config)


# --- refusals ---


def changed(case: str, **changes: Any) -> dict[str, Any]:
    return {**CASES[case]["config"], **changes}


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        ("llama-a", dict(sliding_window=8), "sliding_window: is set, which Glassbox does not know"),
        ("llama-a", dict(quantization_config={"bits": 4}), "quantization_config: is set"),
        ("llama-a", dict(hidden_act="mish"), "hidden_act: is 'mish', which is not supported"),
        ("llama-a", dict(head_dim=24), "head_dim: is 24, but a multiple of 16"),
        ("llama-a", dict(num_key_value_heads=3), "num_key_value_heads: is 3, which does not divide 4"),
        ("llama-a", dict(num_attention_heads=5, head_dim=None), "num_attention_heads: is 5, which does not divide"),
        ("llama-a", dict(rope_parameters={"rope_type": "3d"}), "rope_type: is '3d', which is not supported"),
        ("llama-a", dict(rope_parameters={"rope_type": "linear"}), "factor: is missing"),
        ("llama-a", dict(rope_parameters={"rope_type": "default", "x": 1}), "rope_parameters x: is set"),
        ("llama-a", dict(rope_scaling=[1]), "rope_scaling: must be an object"),
        ("llama-a", dict(hidden_size=None), "hidden_size: is missing"),
        ("llama-a", dict(attention_bias="yes"), "attention_bias: is 'yes', but must be true or false"),
        ("phi3-longrope-a", dict(rope_parameters={"rope_type": "longrope", "long_factor": [1]}), "short_factor: is m"),
        ("qwen2-a", dict(layer_types=["full_attention"]), r"layer_types: is \[.*\], but must be a list of 2"),
        ("qwen2-a", dict(layer_types=["full_attention", "sliding_attention"]), "use_sliding_window is false"),
        ("gemma3-a", dict(layer_types=["full_attention", "chunked"]), "layer_types: names 'chunked'"),
        ("gemma3-a", dict(use_bidirectional_attention=True), "use_bidirectional_attention: is True, which is not"),
        ("gpt2-a", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx: is True"),
        ("opt-a", dict(do_layer_norm_before=False), "do_layer_norm_before: is False"),
        ("opt-a", dict(word_embed_proj_dim=32), "word_embed_proj_dim: differs from the width of 64"),
        ("bloom-a", dict(apply_residual_connection_post_layernorm=True), "post_layernorm: is True"),
        ("qwen3_moe-a", dict(mlp_only_layers=[0]), r"mlp_only_layers: is \[0\]"),
        ("qwen3_moe-a", dict(num_experts_per_tok=7), "num_experts_per_tok: is 7, but there are 6 experts"),
    ],
)  # fmt: skip
def test_what_would_change_the_model_is_refused_by_name(case: str, changes: dict[str, Any], words: str) -> None:
    spec_from_config(CASES[case]["config"])
    with pytest.raises(ModelFormatError, match=words) as caught:
        spec_from_config(changed(case, **changes))
    assert "config.json" in str(caught.value)


STRANGE: list[Any] = [
    None, True, 0, -1, 1, 3, 1 << 70, 0.5, -2.0, 1e300, float("nan"), float("inf"), "", "x", "full_attention", [], [1],
    ["x"] * 2, [None] * 3, [1e400] * 8, {}, {"rope_type": "yarn"}, {"full_attention": []},
]  # fmt: skip


@pytest.mark.parametrize("case", sorted(case for case in CASES if case.endswith("-a")))
def test_strange_values_are_errors_of_ours(case: str) -> None:
    """Each key of each config, and of its rope, with each strange value: a spec, or a typed error of one line."""
    config = CASES[case]["config"]
    rope = config.get("rope_parameters") or {}
    changes = [{key: value} for key in config for value in STRANGE]
    changes += [{"rope_parameters": {**rope, key: value}} for key in [*rope, "factor"] for value in STRANGE]
    changes += [{"rope_scaling": {"type": kind, "factor": f}} for kind in KINDS for f in STRANGE]
    for change in changes:
        try:
            spec = spec_from_config({**config, **change})
        except GlassboxError as e:
            assert str(e).isprintable() and len(str(e)) < 400
        else:
            ropes = {spec.rope_of(i) for i in range(spec.layers)} - {None}
            assert all(np.isfinite(frequencies(r)).all() and np.isfinite(r.gain) for r in ropes), change


def test_unknown_architectures_are_named() -> None:
    with pytest.raises(Unsupported, match=r"architecture 'mamba' is not supported .known: bloom, cohere"):
        spec_from_config({"model_type": "mamba"})
    with pytest.raises(ModelFormatError, match="model_type: is missing"):
        spec_from_config({})


def test_a_null_is_not_a_default() -> None:
    """gemma2 caps its logits if its config says nothing of it, and does not if it says null."""
    config = CASES["gemma2-a"]["config"]
    absent = {key: value for key, value in config.items() if not key.endswith("softcapping")}
    assert (spec_from_config(absent).attn_cap, spec_from_config(absent).logit_cap) == (50.0, 30.0)
    null = spec_from_config({**config, "attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (null.attn_cap, null.logit_cap) == (0.0, 0.0)
    assert not spec_from_config(changed("mistral-a", sliding_window=None)).local


NAN = ["gemma2-a:model.norm.weight", "gemma2-a:model.layers.1.self_attn.k_proj.weight",
       "mixtral-a:model.layers.0.post_attention_layernorm.weight", "opt-a:model.decoder.layers.0.fc1.bias"]  # fmt: skip


@pytest.mark.parametrize("where", NAN)
def test_nan_in_weights_is_nan_in_logits(where: str) -> None:
    """Whatever stands between: a cap, a softmax, a choice of experts, ReLU."""
    case, name = where.split(":")
    file = tiny_weights.checkpoint(case, CASES)
    arrays = {**file.arrays, name: np.full_like(file.arrays[name], np.nan)}
    model = TransformerModel(tiny_weights.Memory(file.config, arrays), threads=1)
    assert np.isnan(run(model, ids_of(case), rows="all")).all()


@pytest.mark.parametrize("case", ["llama-b", "gpt2-a", "mixtral-a", "stablelm-b", "bloom-a"])
def test_each_tensor_is_needed_and_no_other_taken(case: str) -> None:
    file = tiny_weights.checkpoint(case, CASES)
    for name in file.tensors:
        less = tiny_weights.checkpoint(case, CASES)
        del less.tensors[name]
        with pytest.raises(ModelFormatError) as caught:
            TransformerModel(less, threads=1)
        assert caught.value.field == name
        with pytest.raises(ModelFormatError, match="missing"):
            check_weights(less, spec_from_config(less.config))
    more = tiny_weights.Memory(file.config, {**file.arrays, "model.layers.0.extra.weight": np.zeros(3, np.float32)})
    with pytest.raises(ModelFormatError, match=r"extra.weight: is not part of the"):
        TransformerModel(more, threads=1)
    with pytest.raises(ModelFormatError, match=r"extra.weight: is not part of the"):
        check_weights(more, spec_from_config(more.config))


@pytest.mark.parametrize("case", sorted(CASES))
def test_headers_are_checked_without_data(case: str) -> None:
    """As loading does, of every model that loads and of each tensor that is too long."""
    file = tiny_weights.checkpoint(case, CASES)
    file.raw = file.read = None
    check_weights(file, spec_from_config(file.config))
    for name, t in file.tensors.items():
        file.tensors[name] = replace(t, shape=(t.shape[0] + 8, *t.shape[1:]))
        with pytest.raises(ModelFormatError, match=r"has shape .*, but .* needed"):
            check_weights(file, spec_from_config(file.config))
        file.tensors[name] = t


def test_a_tied_head_may_stand_twice_but_must_be_the_embedding() -> None:
    file = tiny_weights.checkpoint("llama-b", CASES)
    table = file.arrays["model.embed_tokens.weight"]
    twice = tiny_weights.Memory(file.config, {**file.arrays, "lm_head.weight": table})
    assert run(TransformerModel(twice, threads=1), [1, 2]).tobytes() == run(load("llama-b"), [1, 2]).tobytes()
    other = tiny_weights.Memory(file.config, {**file.arrays, "lm_head.weight": table + 1})
    with pytest.raises(ModelFormatError, match=r"lm_head.weight: is not the embedding"):
        TransformerModel(other, threads=1)


def test_norms_of_many_heads_in_halves() -> None:
    """They become float32, twice as large as in the file."""
    config = changed("cohere-b", num_attention_heads=48, num_key_value_heads=48, head_dim=128)
    shapes = {name: list(shape) for name, shape in CASES["cohere-b"]["shapes"].items()}
    for name, shape in shapes.items():
        if "self_attn" in name:
            shapes[name] = [48, 128] if "norm" in name else [shape[0], 6144] if "o_proj" in name else [6144, shape[1]]
    arrays = {name: np.full(shape, 0.01, np.float16) for name, shape in shapes.items()}
    assert np.isfinite(run(TransformerModel(tiny_weights.Memory(config, arrays), threads=1), [1, 2])).all()


def test_names_without_their_first_part() -> None:
    """As bodies saved without a head have them."""
    file = tiny_weights.checkpoint("gpt2-a", CASES)
    bare = {name.removeprefix("transformer."): a for name, a in file.arrays.items()}
    got = run(TransformerModel(tiny_weights.Memory(file.config, bare), threads=1), ids_of("gpt2-a"), rows="all")
    assert off(got, "gpt2-a") <= 1e-5
