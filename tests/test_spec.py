"""What a file says of its architecture: read, known to be harmless, or refused by name."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
import reference_forward

from glassbox.errors import GlassboxError, ModelFormatError
from glassbox.model import tensors
from glassbox.model.architectures import GGUF
from glassbox.model.arena import Arena
from glassbox.model.config_gguf import OFF, spec_from_gguf
from glassbox.model.model import TransformerModel, forward
from glassbox.model.rope import frequencies, longrope_gain, slopes, yarn_gain
from glassbox.model.spec import ModelSpec, Rope
from glassbox.weights.gguf import Gguf, read_gguf

T = gguf.GGMLQuantizationType
PLAIN = {
    "context_length": 256, "embedding_length": 64, "block_count": 3, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


def spec(arch: str, **changes: Any) -> ModelSpec:
    """The spec of a plain file with some keys changed; __ stands for the dot. None leaves a key out."""
    fields = PLAIN | {key.replace("__", "."): value for key, value in changes.items()}
    named = {f"{arch}.{key}": value for key, value in fields.items() if value is not None}
    return spec_from_gguf({"general.architecture": arch, **named}, 96)


@pytest.mark.model
def test_real_models_have_no_key_that_is_not_known(smollm2_gguf: Gguf, gemma3_gguf: Gguf) -> None:
    assert spec_from_gguf(smollm2_gguf.metadata, 49_152).layers == 30
    s = spec_from_gguf(gemma3_gguf.metadata, 262_144)
    assert (s.layers, s.window, s.local_rope.base) == (18, 512, 10000.0)
    assert s.local == frozenset(range(18)) - {5, 11, 17}
    assert s.attn_scale == 1 / 16


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("key", "on", "off"),
    [
        ("attention.causal", False, True),
        ("attention.clamp_kqv", 1.0, 0.0),
        ("attention.max_alibi_bias", 8.0, 0.0),
        ("embedding_scale", 3.0, 1.0),
        ("expert_used_count", 2, 0),
        ("logit_scale", 0.1, 1.0),
        ("residual_scale", 0.5, 1.0),
        ("rope.scale_linear", 8.0, 1.0),
        ("rope.scaling.attn_factor", 2.0, 1.0),
        ("rope.scaling.factor", 8.0, 1.0),
        ("rope.scaling.type", "dynamic", "none"),
        ("use_parallel_residual", True, False),
    ],
)
def test_what_is_not_done_is_refused_unless_it_is_off(arch: str, key: str, on: object, off: object) -> None:
    assert spec(arch, **{key: off}) == spec(arch)
    with pytest.raises(ModelFormatError, match=f"{arch}.{key}: is {on!r}, which is not supported") as caught:
        spec(arch, **{key: on})
    assert caught.value.field == f"{arch}.{key}"


@pytest.mark.parametrize(
    ("arch", "key", "on", "off"),
    [
        ("llama", "attn_logit_softcapping", 50.0, 0.0),
        ("llama", "final_logit_softcapping", 30.0, 0.0),
        ("gemma3", "attn_logit_softcapping", 50.0, 0.0),
        ("gemma3", "expert_count", 8, 0),
    ],
)
def test_what_other_architectures_do_is_refused(arch: str, key: str, on: object, off: object) -> None:
    assert spec(arch, **{key: off}) == spec(arch)
    with pytest.raises(ModelFormatError, match=f"{arch}.{key}: is {on!r}, which is not supported"):
        spec(arch, **{key: on})


@pytest.mark.parametrize("key", ["attention.layer_norm_epsilon", "moe.every_n_layers", "x\n\x1b[31m" + "x" * 999])
def test_what_nobody_knows_is_refused(key: str) -> None:
    with pytest.raises(ModelFormatError, match="is set, which Glassbox does not know") as caught:
        spec("llama", **{key: 1})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300
    assert spec_from_gguf({"general.architecture": "llama", "llamas.x": 1} | named("llama"), 9).vocab == 9


def named(arch: str) -> dict[str, Any]:
    return {f"{arch}.{key}": value for key, value in PLAIN.items()}


def test_what_changes_nothing_is_accepted() -> None:
    harmless = {"vocab_size": 5, "rope__dimension_count": 16, "attention__value_length": 16}
    assert spec("llama", **harmless) == spec("llama")
    assert spec("llama", attention__sliding_window=256) == spec("llama"), "a window of all positions is none"
    with pytest.raises(ModelFormatError, match=r"sliding_window: is 255, but layers .* see every position"):
        spec("llama", attention__sliding_window=255)


def test_what_gemma_files_say_of_windows_is_done() -> None:
    s = spec("gemma3", attention__sliding_window=8, attention__sliding_window_pattern=2, rope__freq_base_swa=500.0)
    assert [s.window_of(i) for i in range(3)] == [8, 0, 8]
    assert [s.rope_of(i).base for i in range(3)] == [500.0, 10000.0, 500.0]
    for key in ("attention.sliding_window_pattern", "rope.freq_base_swa"):
        with pytest.raises(ModelFormatError, match=f"llama.{key}: is set"):
            spec("llama", **{key: 2})


def test_the_scale_of_attention() -> None:
    assert spec("llama").attn_scale == spec("gemma3").attn_scale == 1 / 4
    assert spec("llama", attention__scale=0.5).attn_scale == 0.5
    largest = dict(block_count=62, embedding_length=5376, attention__head_count=32, attention__key_length=128)
    assert spec("gemma3", **largest).attn_scale == 1 / math.sqrt(168)  # Gemma 3 27B
    assert spec("llama", **largest).attn_scale == 1 / math.sqrt(128)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(embedding_length=4, attention__head_count=8, attention__key_length=None), "key_length: is 0, but a mult"),
        (dict(attention__key_length=24), "key_length: is 24, but a multiple of 16"),
        (dict(attention__head_count_kv=3), "head_count_kv: is 3, which does not divide 4 heads"),
        (dict(attention__value_length=32), "value_length: differs"),
        (dict(rope__dimension_count=8), "dimension_count: is 8, which is not supported for heads of 16"),
        (dict(block_count=None), "block_count: is missing"),
        (dict(block_count=[1] * 10**6), r"block_count: is \[1, 1, .{,20}\.\.\.\], but must be a whole number"),
        (dict(attention__layer_norm_rms_epsilon=math.nan), "rms_epsilon: is nan, but must be a positive number"),
    ],
)
def test_impossible_numbers_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFormatError, match=words):
        spec("llama", **changes)


STRANGE: list[Any] = [None, True, 0, -1, 1, 3, 1 << 40, 0.5, -2.0, math.nan, math.inf, "", "x", "yarn", [], [1, 2]]


@pytest.mark.parametrize("arch", sorted(GGUF))
def test_strange_values_are_errors_of_ours(arch: str) -> None:
    """Each key with each strange value: a spec, or a typed error of one line."""
    read = set(PLAIN) | set(OFF) | {
        "attention.layer_norm_epsilon", "attention.scale", "attention.sliding_window", "rope.freq_base",
        "attention.sliding_window_pattern", "rope.dimension_count", "rope.freq_base_swa", "attention.value_length",
        "expert_feed_forward_length", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast",
    }  # fmt: skip
    eps = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
    plain = PLAIN | (eps if GGUF[arch].norm == "layer" else {})
    plain |= {"expert_count": 4, "expert_used_count": 2} if GGUF[arch].experts else {}
    assert spec(arch, **plain).vocab == 96
    for stretched in ({}, {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}):
        for key in read:
            for value in STRANGE:
                try:
                    s = spec(arch, **{**plain, **stretched, key: value})
                except GlassboxError as e:
                    assert str(e).isprintable() and len(str(e)) < 300
                else:
                    ropes = {s.rope_of(i) for i in range(s.layers)} - {None}
                    assert all(np.isfinite(frequencies(r)).all() for r in ropes), (key, value)


# --- weights in pieces ---


@pytest.mark.parametrize("kinds", [[T.F32, T.F16, T.Q4_1, T.Q5_0, T.Q8_0], [T.Q8_0]], ids=["mixed", "q8_0"])
@pytest.mark.parametrize("vocab", [96, 93])
def test_pieces_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[T], vocab: int) -> None:
    """A few rows at a time, whole heads of Q and K, and rows that fill no tile."""
    monkeypatch.setattr(random_gguf, "VOCAB", vocab)
    path = random_gguf.write(tmp_path / "m.gguf", "llama", "llama", kinds, tied=False)

    def logits() -> np.ndarray:
        model = TransformerModel(read_gguf(path), threads=2)
        return forward(model, [1, 2, 3], model.new_cache(), rows="all")[0]

    whole = logits()
    right = reference_forward.forward(read_gguf(path), [1, 2, 3])["logits"]
    assert np.abs(whole - right).max() / np.abs(right).max() < 2e-5
    for at_once in (1, 3000, 10_000):
        monkeypatch.setattr(tensors, "AT_ONCE", at_once)
        assert logits().tobytes() == whole.tobytes()


# --- the embedding, and memory that is not there ---


def change_embedding(path: Path, to: Callable[[gguf.GGUFWriter], None]) -> Path:
    """A copy of a small model with another embedding."""
    good = gguf.GGUFReader(random_gguf.write(path.with_name("good.gguf"), "llama", "llama", [T.F32]))
    w = gguf.GGUFWriter(path, "llama")
    for key, field in good.fields.items():
        if key.startswith("llama."):
            w.add_key_value(key, field.contents(), field.types[0])
    to(w)
    for t in good.tensors[1:]:
        w.add_tensor(t.name, np.array(t.data))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((0, 64), "token_embd.weight.* has no elements"),
        ((64,), r"token_embd.weight: has shape \[64\], but a row of 64 numbers for each token is needed"),
        ((1, 96, 64), r"token_embd.weight: has shape \[1, 96, 64\], but a row of 64 numbers"),
        ((96, 32), r"token_embd.weight: has shape \[96, 32\], but \[96, 64\] is needed"),
        (None, "token_embd.weight: is missing"),
    ],
)
def test_an_embedding_that_is_none_is_named(tmp_path: Path, shape: tuple[int, ...] | None, words: str) -> None:
    def put(w: gguf.GGUFWriter) -> None:
        if shape is not None:
            w.add_tensor("token_embd.weight", np.zeros(shape, np.float32))

    with pytest.raises(ModelFormatError, match=words):
        TransformerModel(read_gguf(change_embedding(tmp_path / "m.gguf", put)))


def test_an_arena_that_does_not_fit_is_out_of_memory() -> None:
    with pytest.raises(GlassboxError, match=r"weights needs 1,000,000,000,000,000,000 bytes, but only [\d,]+ are"):
        Arena(10**18)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to RLIMIT_AS")
def test_under_a_limit_on_memory_the_numbers_tell_it(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from glassbox.errors import OutOfMemory
        from glassbox.model.arena import Arena, memory_left
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        try:
            Arena(1 << 32)
        except OutOfMemory as e:
            print(e.needed, e.available < 3 << 30, memory_left() == e.available)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"{1 << 32} True True\n"


def test_the_ramp_of_yarn_between_numbers_that_are_whole_or_not() -> None:
    """Peng et al. 2023 by hand: number n makes 64 · 100**(-n/4) / 2π turns in the original positions."""
    rope = Rope(100.0, 8, "yarn", factor=4.0, original=64, fast=8.0, slow=0.5, truncate=False)
    plain = [100.0 ** (-n / 4) for n in range(4)]
    low, high = (4 * math.log(64 / (turns * 2 * math.pi)) / math.log(100) for turns in (8.0, 0.5))
    for truncate, (begin, end) in ((False, (low, high)), (True, (math.floor(low), math.ceil(high)))):
        begin = max(begin, 0)
        ramp = [min(max((n - begin) / (end - begin), 0), 1) for n in range(4)]
        expected = [p / 4 * r + p * (1 - r) for p, r in zip(plain, ramp, strict=True)]
        made = frequencies(Rope(**{f: getattr(rope, f) for f in Rope.__slots__} | {"truncate": truncate}))
        np.testing.assert_allclose(made, expected, rtol=1e-14)
    assert low != math.floor(low) and high != math.ceil(high)


def test_what_is_not_stretched_is_not_made_longer() -> None:
    assert [yarn_gain(f) for f in (0.5, 1.0)] == [longrope_gain(f, 64) for f in (0.5, 1.0)] == [1.0, 1.0]
    assert yarn_gain(math.e) == pytest.approx(1.1) and longrope_gain(64.0, 64) == pytest.approx(math.sqrt(2))


def test_slopes_where_the_heads_are_no_power_of_two() -> None:
    """Press et al. 2022: of 6 heads those of 4, then every other one of 8."""
    assert slopes(4).tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
    assert slopes(7).tolist() == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3, 2**-5]
