"""Inner values of any step of a recorded run: what `observe` gives for its ids, proven by a hash, at a fair price."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import random_gguf
import safetensors.numpy
import tiny_gguf
import tiny_weights
from test_cli import Cli
from test_cli import cli as cli
from test_tiny import CASES

import glassbox
from glassbox.cli import tensor_file
from glassbox.errors import NotReproduced, ParameterError, PromptError, UnknownPoint
from glassbox.model.execute import Computed, Part
from glassbox.model.model import TransformerModel
from glassbox.model.points import all_points
from glassbox.policy.policy import Policy
from glassbox.text.absent import NoTokenizer
from glassbox.weights.gguf import read_gguf

T = gguf.GGMLQuantizationType
SEED = 20260512
RANDOM = ["llama", "gemma3"]  # the second with windows of 8 of 7 layers' 6
TINY = ["phi3-a", "mixtral-a", "gpt2-a", "bloom-a", "gemma2-a", "granite-a", "stablelm-a"]


def model_of(case: str, folder: Path) -> glassbox.Model:
    if case in RANDOM:
        path = random_gguf.write(folder / f"{case}.gguf", case, case, [T.Q8_0, T.Q4_1, T.F32], window=8)
        return glassbox.load(path, threads=2)
    path = tiny_gguf.write(folder / f"{case}.gguf", tiny_weights.checkpoint(case, CASES))
    return glassbox.Model(case, TransformerModel(read_gguf(path), threads=2), NoTokenizer(()), {}, case)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> glassbox.Model:
    return model_of("gemma3", tmp_path_factory.mktemp("model"))


def ran(model: glassbox.Model, prompt: int = 50, n: int = 40, **more: object) -> glassbox.Run:
    ids = np.random.default_rng(SEED).integers(0, min(90, model.model.vocab_size), prompt)
    asked = dict(ids=ids, policy=Policy(temperature=0.9), seed=5, max_tokens=n, ignore_eos=True) | more
    return model.generate(**asked)


class Counter:
    """How many passes a model makes, and over how many ids in all."""

    def __init__(self, model: glassbox.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes = self.ids = 0
        self._true = model.model.forward_parts
        monkeypatch.setattr(model.model, "forward_parts", self)

    def __call__(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed:
        self.passes += 1
        self.ids += sum(len(p.ids) for p in parts)
        return self._true(parts, look)

    def taken(self) -> tuple[int, int]:
        """Passes and ids since the last time."""
        told, self.passes, self.ids = (self.passes, self.ids), 0, 0
        return told


@pytest.mark.parametrize("case", RANDOM + TINY)
def test_every_point_is_what_observe_gives(case: str, tmp_path: Path) -> None:
    model = model_of(case, tmp_path)
    run = ran(model, 20, 60) if case in RANDOM else ran(model, 6, 9)
    points = all_points(model.model.layers)
    whole = model.observe([*run.prompt_ids, *run.ids[:-1]], points)
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    for step in rng.sample(range(len(run.steps)), 4):
        at = len(run.prompt_ids) - 1 + step
        here, upto = run.tensors(step, points), run.tensors(step, points, all_positions=True)
        assert list(here) == list(upto) == points
        for name in points:
            right = whole[name][: at + 1]
            if name.startswith(("attn_scores", "attn_probs")):
                right = right[..., : at + 1]
            assert here[name].shape == right[at].shape and upto[name].shape == right.shape, (name, step)
            assert here[name].tobytes() == right[at].tobytes(), (name, step)
            assert upto[name].tobytes() == right.tobytes(), (name, step)


def test_a_step_costs_one_prefill_and_the_next_question_one_token(
    model: glassbox.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.engine.prefixes is not None
    model.engine.prefixes.clear()
    run = ran(model, 50, 40, reuse=False)
    held = model.model.new_cache().pool.used
    count = Counter(model, monkeypatch)
    run.tensor(30, "resid_post.3")
    assert count.taken() == (2, 50 - 1 + 30 + 1)  # what stands before it, and the position itself
    for step, ids in ((30, 1), (12, 1), (0, 1), (39, 9)):  # 9: the positions that no step so far went up to
        run.tensor(step, "mlp_act.2")
        assert count.taken()[1] == ids, step
    assert run.tensor(39, "q.1").shape == (4, 32) and count.taken() == (1, 1)
    assert model.model.new_cache().pool.used > held
    model.engine.prefixes.clear()  # the pages are held in case only
    assert model.model.new_cache().pool.used == held == 0


def test_looking_changes_nothing_of_what_prompts_reuse(model: glassbox.Model) -> None:
    assert model.engine.prefixes is not None
    model.engine.prefixes.clear()
    run = ran(model, reuse=False)
    run.tensor(5, "embed")
    assert ran(model).usage.cached_tokens == 0


def test_a_long_run_goes_through_once(model: glassbox.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ran(model, 100, 150, reuse=False)
    count = Counter(model, monkeypatch)
    assert run.replay().equal
    assert count.taken()[1] == 249  # every id but the last


def test_what_is_not_proven_is_refused(model: glassbox.Model, tmp_path: Path) -> None:
    run = ran(model, 10, 5)
    spoiled = replace(run, steps=(*run.steps[:3], replace(run.steps[3], logits_hash="00" * 8), run.steps[4]))
    with pytest.raises(NotReproduced) as caught:
        spoiled.tensor(3, "embed")
    e = caught.value
    assert (e.field, e.recorded, e.found, e.exit_code) == ("logits_hash", "00" * 8, run.steps[3].logits_hash, 1)
    assert e.recorded in str(e) and e.found in str(e)
    assert spoiled.tensor(2, "embed").tobytes() == run.tensor(2, "embed").tobytes()
    assert spoiled.tensor(3, "embed", force=True).tobytes() == run.tensor(3, "embed").tobytes()

    other = glassbox.load(random_gguf.write(tmp_path / "o.gguf", "gemma3", "gemma3", [T.F32], seed=1), threads=1)
    with pytest.raises(NotReproduced, match="sha256 of the model") as caught:
        run.tensor(3, "embed", model=other)
    assert (caught.value.field, caught.value.recorded, caught.value.found) == ("model", model.sha256, other.sha256)
    ids = [*run.prompt_ids, *run.ids]
    forced = run.tensor(3, "logits", model=other, force=True)
    assert forced.tobytes() == other.logits(ids)[12].tobytes()


@pytest.mark.parametrize("case", ["gemma3", "mixtral-a"])  # fewer heads of keys and values than of queries
def test_one_head_of_what_interventions_take(case: str, tmp_path: Path) -> None:
    """Put in its own place it changes no bit, set to zero it reads as zero: what is read is what is written."""
    model = model_of(case, tmp_path)
    run, spec = ran(model, 6, 4), model.model.spec
    assert spec is not None and spec.kv_heads < spec.heads
    counts = {"q": spec.heads, "k": spec.kv_heads, "v": spec.kv_heads, "attn_out": spec.heads}
    for kind, heads in counts.items():
        names = [f"{kind}.1.head{h}" for h in range(heads)]
        whole = run.tensor(2, f"{'z' if kind == 'attn_out' else kind}.1", all_positions=True)  # [T, heads, W]
        read = run.tensors(2, names, all_positions=True)
        seen = model.observe([*run.prompt_ids, *run.ids[:2]], names)
        one = run.tensors(2, [f"{kind}.1", *names])
        for h, name in enumerate(names):
            right = np.ascontiguousarray(whole[:, h])  # [T, W]
            assert read[name].shape == right.shape == (8, spec.head_width), name
            assert read[name].tobytes() == seen[name].tobytes() == right.tobytes(), name
            assert one[name].tobytes() == right[-1].tobytes(), name
            same = glassbox.Intervention(name, "replace", right, positions=(0, len(right)))
            put = ran(model, 6, 4, interventions=[same])
            assert [s.logits_hash for s in put.steps[:3]] == [s.logits_hash for s in run.steps[:3]], name
            gone = ran(model, 6, 4, interventions=[glassbox.Intervention(name, "zero")])
            assert right.any() and not gone.tensor(2, name, all_positions=True).any(), name
    for name, why in {
        f"q.1.head{spec.heads}": f"head is {spec.heads}, but must be from 0 to {spec.heads - 1}",
        f"k.1.head{spec.kv_heads}": f"head is {spec.kv_heads}, but must be from 0 to {spec.kv_heads - 1}",
        "mlp_out.1.head0": "head is 0, but must be left out: mlp_out has none, only q, k, v, attn_out have",
    }.items():
        with pytest.raises(ParameterError, match=why):
            run.tensor(2, name)
    with pytest.raises(UnknownPoint, match=r"no point 'attn_out.1.head'"):
        run.tensor(2, "attn_out.1.head")


def test_bad_questions_are_named(model: glassbox.Model) -> None:
    run = ran(model, 10, 5)
    with pytest.raises(UnknownPoint, match=r"no point 'resid_post\.7'; there are: embed, .*resid_post\.0 … \.6"):
        run.tensor(0, "resid_post.7")
    for step in (5, -1):
        with pytest.raises(ParameterError, match=rf"step is {step}, but must be a step of the run, from 0 to 4"):
            run.tensor(step, "embed")
    with pytest.raises(ParameterError, match="the run generated no token"):
        replace(run, steps=()).tensor(0, "embed")
    with pytest.raises(PromptError, match="without its ids"):
        replace(run, retain="none").tensor(0, "embed")
    assert model.generate(ids=[1, 2], max_tokens=1, seed=0).tensors(0, []) == {}


# --- the command line ---


@pytest.fixture
def bigram(cli: Cli) -> Iterator[Cli]:
    cli.stored("trace", "ab", "--model", "bigram", "--max-tokens", "4", "--seed", "7")
    yield cli


def test_the_command_shows_and_writes(bigram: Cli, tmp_path: Path) -> None:
    out, _ = bigram.stored("tensor", "last", "--at", "0", "--point", "embed", "--point", "logits")
    assert "embed  float32 [4]" in out and "logits   xxh64" in out and "at position 1\n" in out
    told = json.loads(bigram.stored("tensor", "--at", "0", "--point", "embed", "--all-positions", "--json")[0])
    assert told["position"] == 1 and told["points"]["embed"]["shape"] == [2, 4]
    assert told["points"]["embed"]["first"] == [0, 1, 0, 0, 0, 0] and told["points"]["embed"]["norm"] == 2**0.5

    file = tmp_path / "e.npy"
    file.write_text("old")
    out, _ = bigram.stored("tensor", "--at", "0", "--point", "embed", "--all-positions", "--out", str(file))
    assert f"written  {file}" in out
    assert np.load(file).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    bigram.stored("tensor", "--at", "0", "--point", "embed", "--point", "logits", "--out", str(tmp_path / "two"))
    with np.load(tmp_path / "two.npz") as both:
        assert sorted(both) == ["embed", "logits"] and both["embed"].dtype == np.float32
    safe = tmp_path / "two.safetensors"
    bigram.stored("tensor", "--at", "0", "--point", "embed", "--point", "logits", "--out", str(safe))
    found = safetensors.numpy.load_file(safe)
    assert found["embed"].tolist() == [0, 0, 1, 0] and found["logits"].tolist() == [0.75, 0.5, -1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--at", "4", "--point", "embed"], "step is 4, but must be a step of the run, from 0 to 3"),
        (["--at", "-1", "--point", "embed"], "step is -1"),
        (["--at", "0", "--point", "q.0"], "no point 'q.0'; there are: embed, final_norm, logits"),
        (["--at", "0", "--point", "embed", "--point", "embed"], "point is"),
        (["--at", "0"], "Missing option '--point'"),
        (["--at", "0", "--point", "embed", "--out", "x.npz"], "ends in .npy"),
        (["--at", "0", "--point", "embed", "--out", "/nowhere/x.npy"], "/nowhere/x.npy: No such file or directory"),
    ],
)
def test_the_command_refuses(bigram: Cli, arguments: list[str], said: str) -> None:
    _, err = bigram.stored("tensor", "last", *arguments, code=2)
    assert said in err and err.count("\n") == 1


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npy"
    path.write_text("old")

    def full(file: object, value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file.np, "save", full)
    with pytest.raises(OSError, match="No space"):
        tensor_file.save(str(path), {"embed": np.zeros(3, np.float32)})
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["x.npy"]
    (tmp_path / "d.npy").mkdir()
    with pytest.raises(ParameterError, match="a file, not a folder"):
        tensor_file.save(str(tmp_path / "d"), {"embed": np.zeros(3, np.float32)})
