"""The forward pass against its oracle, and against itself cut in every way: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
import reference_forward

from glassbox.errors import ContextOverflow, ModelFormatError, PromptError, UnknownPoint, Unsupported
from glassbox.model.execute import Part
from glassbox.model.model import TransformerModel, forward
from glassbox.model.points import all_points
from glassbox.weights.gguf import read_gguf

T = gguf.GGMLQuantizationType
SMALL = [T.F32, T.F16, T.Q4_1, T.Q5_0, T.Q8_0]
CASES = {
    "llama": ("llama", "llama", SMALL),
    "llama-untied": ("llama", "llama", SMALL[::-1]),
    "gemma3": ("gemma3", "gemma3", SMALL),
    "k-quants": ("llama", "wide", [T.Q4_K, T.Q6_K, T.Q8_0]),
}
IDS = [int(i) for i in np.random.default_rng(3).integers(0, random_gguf.VOCAB, 41)]


@pytest.fixture(scope="module", params=CASES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch, shape, kinds = CASES[request.param]
    to = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return random_gguf.write(to, arch, shape, kinds, tied=request.param != "llama-untied")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[TransformerModel]:
    yield TransformerModel(read_gguf(path), threads=2)


def run(model: TransformerModel, ids: list[int], **how: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    cache = model.new_cache()
    out = forward(model, ids, cache, **how)
    cache.release()
    return out


def test_every_point_is_the_textbooks(model: TransformerModel, path: Path) -> None:
    right = reference_forward.forward(read_gguf(path), IDS)
    logits, seen = run(model, IDS, observe=all_points(model.layers), rows="all")
    assert np.array_equal(logits, seen["logits"])
    for name in right:
        assert seen[name].shape == right[name].shape, name
        finite = np.isfinite(right[name])
        assert np.array_equal(np.isfinite(seen[name]), finite), name
        off = np.abs(seen[name][finite] - right[name][finite]).max() / np.abs(right[name][finite]).max()
        assert off < 2e-5, f"{name} is off by {off:.1e}"


def test_scores_and_probabilities_belong_together(model: TransformerModel) -> None:
    _, seen = run(model, IDS, observe=["q.0", "k.0", "attn_scores.0", "attn_probs.0"])
    scores, probs = seen["attn_scores.0"], seen["attn_probs.0"]
    assert np.allclose(probs.sum(-1), 1, atol=1e-6)
    assert (probs[~np.isfinite(scores)] == 0).all()
    group = model.spec.heads // model.spec.kv_heads
    last = np.einsum("hw,shw->hs", seen["q.0"][-1], seen["k.0"].repeat(group, 1)) * np.float32(model.spec.attn_scale)
    shown = np.isfinite(scores[-1])
    assert np.allclose(scores[-1][shown], last[shown], atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_change_no_bit(model: TransformerModel, chunk: int) -> None:
    points = ["resid_post.0", "attn_probs.1", "v.1"]
    whole, seen = run(model, IDS, rows="all", observe=points)
    cut, seen_cut = run(model, IDS, rows="all", observe=points, chunk=chunk)
    assert whole.tobytes() == cut.tobytes()
    for name in points:
        assert seen[name].tobytes() == seen_cut[name].tobytes(), name


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(model: TransformerModel, path: Path, threads: int) -> None:
    other = TransformerModel(read_gguf(path), threads=threads)
    assert run(model, IDS, rows="all")[0].tobytes() == run(other, IDS, rows="all")[0].tobytes()
    assert run(model, IDS, rows="all", chunk=1)[0].tobytes() == run(other, IDS, rows="all", chunk=5)[0].tobytes()


def test_cached_equals_uncached(model: TransformerModel) -> None:
    whole, _ = run(model, IDS, rows="all")
    cache = model.new_cache()
    for i in range(len(IDS)):
        row, _ = forward(model, IDS[i : i + 1], cache)
        assert row[0].tobytes() == whole[i].tobytes(), f"position {i}"
    assert cache.length == len(IDS)


def test_truncated_and_continued_equals_uncached(model: TransformerModel) -> None:
    cache = model.new_cache()
    forward(model, IDS[:20] + IDS[:20], cache)
    cache.truncate(20)
    rest, _ = forward(model, IDS[20:], cache, rows="all")
    whole, _ = run(model, IDS, rows="all")
    assert rest.tobytes() == whole[20:].tobytes()


def test_company_changes_no_bit(model: TransformerModel) -> None:
    """Two sequences in one pass, at different lengths, against each alone."""
    alone = [run(model, ids)[0] for ids in (IDS, IDS[5:30])]
    a, b = model.new_cache(), model.new_cache()
    for cache, n in ((a, len(IDS)), (b, 25)):
        cache.reserve(n)
    forward(model, IDS[:-3], a)
    parts = [
        Part(np.array(IDS[5:30]), b, range(24, 25)),
        Part(np.array(IDS[-3:]), a, range(2, 3)),
    ]
    together = model.forward_parts(parts).logits
    assert together[0].tobytes() == alone[1][0].tobytes()
    assert together[1].tobytes() == alone[0][0].tobytes()


def test_pages_come_back(model: TransformerModel) -> None:
    before = model.pool.used
    run(model, IDS * 3)
    assert model.pool.used == before


def test_looking_changes_no_bit(model: TransformerModel) -> None:
    plain, _ = run(model, IDS)
    looked, _ = run(model, IDS, observe=all_points(model.layers))
    assert plain.tobytes() == looked.tobytes()


def test_unknown_point_lists_those_that_exist(model: TransformerModel) -> None:
    with pytest.raises(UnknownPoint, match=r"no point 'resid_pst.0'; there are: .*resid_post.0"):
        run(model, IDS, observe=["resid_pst.0"])
    with pytest.raises(UnknownPoint):
        run(model, IDS, observe=[f"resid_post.{model.layers}"])


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([], "no token ids"),
        ([-1], "id -1 is outside"),
        ([random_gguf.VOCAB], "id 96 is"),
        ([1.7], "whole numbers"),
        ([True], "whole numbers"),
    ],
)
def test_bad_ids_are_refused(model: TransformerModel, ids: list[int], error: str) -> None:
    with pytest.raises(PromptError, match=error):
        run(model, ids)


def test_context_is_the_limit(model: TransformerModel) -> None:
    run(model, [1] * random_gguf.CONTEXT)
    with pytest.raises(ContextOverflow, match="257 tokens, but the context holds 256"):
        run(model, [1] * (random_gguf.CONTEXT + 1))


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17])
def test_window_boundary(tmp_path: Path, length: int) -> None:
    """Around the window's length, where an off-by-one shows (C08-07)."""
    to = random_gguf.write(tmp_path / "w.gguf", "gemma3", "gemma3", [T.F32], window=8)
    model = TransformerModel(read_gguf(to), threads=1)
    right = reference_forward.forward(read_gguf(to), IDS[:length])["logits"]
    got, _ = run(model, IDS[:length], rows="all", chunk=1)
    assert np.abs(got - right).max() < 1e-4


def test_long_enough_for_several_pages_and_new_rope_tables(path: Path) -> None:
    model = TransformerModel(read_gguf(path), threads=2)
    model._ropes.positions = 16  # as if tables had been made for few positions
    ids = (IDS * 5)[:150]
    right = reference_forward.forward(read_gguf(path), ids)["logits"]
    got, _ = run(model, ids, rows="all", chunk=13)
    assert np.abs(got - right).max() / np.abs(right).max() < 2e-5


def test_missing_and_strange_tensors_are_named(tmp_path: Path) -> None:
    good = random_gguf.write(tmp_path / "good.gguf", "llama", "llama", [T.F32])
    data = good.read_bytes()
    for old, new, error in (
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_pu.weight", "blk.1.ffn_up.weight: is missing"),
        (b"blk.2.attn_norm.weight", b"blk.7.attn_norm.weight", "blk.2.attn_norm.weight: is missing"),
    ):
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(data.replace(old, new))
        with pytest.raises(ModelFormatError, match=error):
            TransformerModel(read_gguf(bad))


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    w = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with pytest.raises(
        Unsupported, match=r"architecture 'mamba' is not supported \(known: bloom, command-r, .*llama, "
    ):
        TransformerModel(read_gguf(tmp_path / "x.gguf"))
