"""glassbox models and show-model, and what loads without a tokenizer."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
from gguf_writer import ARRAY, STRING, array, build, kv, tensor, text
from safetensors_writer import folder, tensors

import glassbox
from glassbox.cli.main import run
from glassbox.cli.models import size_of
from glassbox.errors import ParameterError, PromptError, Unsupported
from glassbox.model.bigram import BigramModel
from glassbox.provenance import folder_metadata, tokenizer_digest

T = gguf.GGMLQuantizationType


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "400")

    def told(*arguments: str, code: int = 0) -> str:
        assert run(list(arguments)) == code
        out, err = capsys.readouterr()
        assert "Traceback" not in err and len(err.splitlines()) <= 1
        return out if code == 0 else err

    return told


def shown(say: Any, path: Path, *more: str) -> Any:
    return json.loads(say("show-model", str(path), "--json", *more))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return random_gguf.write(tmp_path / "m.gguf", "llama", "llama", [T.Q8_0, T.F16])


def test_formats_are_counted_as_the_public_reader_counts_them(say: Any, llama: Path) -> None:
    got = shown(say, llama)
    theirs = gguf.GGUFReader(llama).tensors
    for f in got["formats"]:
        of_it = [t for t in theirs if t.tensor_type.name == f["name"]]
        assert (f["tensors"], f["bytes"]) == (len(of_it), sum(t.n_bytes for t in of_it))
    assert {f["name"] for f in got["formats"]} == {"F32", "F16", "Q8_0"}
    assert got["parameters"] == sum(int(t.n_elements) for t in theirs)
    assert got["tensors"] == len(theirs) and got["files"] == [{"name": "m.gguf", "bytes": llama.stat().st_size}]


def test_what_a_model_is(say: Any, llama: Path) -> None:
    got = shown(say, llama)
    assert (got["kind"], got["architecture"], got["problem"]) == ("GGUF", "llama", None)
    assert {k: got["spec"][k] for k in ("layers", "width", "heads", "kv_heads", "head_width", "vocab", "context")} == {
        "layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "head_width": 16, "vocab": 96, "context": 256,
    }  # fmt: skip
    text = got["tokenizer"]
    assert (text["model"], text["tokens"], text["kinds"]) == ("gpt2", 96, {"normal": 95, "control": 1})
    assert text["special"] == {"eos": [95, "<|end|>"]} and text["ends"] == [95]
    assert text["missing_bytes"] == 256 - 93 - 1  # it has the printable letters and a space
    assert got["templates"] == []
    out = say("models", "--show", str(llama))
    for words in (
        "architecture   llama",
        "Q8_0",
        "96 tokens: 95 normal, 1 control",
        "eos 95 '<|end|>'",
        "none: prompts",
    ):
        assert words in out, words
    assert say("show-model", str(llama)) == out


def test_memory_is_by_the_formula(say: Any, llama: Path, tmp_path: Path) -> None:
    """tokens x layers x 2 x key-value heads x (head width x bytes + scale); q8 keeps a float32 a head."""
    weights = sum(t.n_bytes for t in gguf.GGUFReader(llama).tensors)
    assert shown(say, llama)["memory"] == {
        "context": 256, "weights": weights,
        "kv": {"f32": 256 * 3 * 2 * 2 * 16 * 4, "f16": 256 * 3 * 2 * 2 * 16 * 2, "q8": 256 * 3 * 2 * 2 * (16 + 4)},
    }  # fmt: skip
    assert shown(say, llama, "--context", "1000")["memory"]["kv"]["f32"] == 1000 * 3 * 2 * 2 * 16 * 4
    gemma = random_gguf.write(tmp_path / "g.gguf", "gemma3", "gemma3", [T.F16], window=8)
    # Of seven layers the sixth sees everything, the others eight positions.
    for context, seen in ((100, 100 + 6 * 8), (8, 7 * 8), (5, 7 * 5)):
        assert shown(say, gemma, "--context", str(context))["memory"]["kv"]["f32"] == seen * 2 * 1 * 32 * 4
    assert "context is 0" in say("show-model", str(llama), "--context", "0", code=2)


def test_templates_are_listed_by_name_and_hash(say: Any, tmp_path: Path) -> None:
    said = {"": "{{ messages }}", ".tool_use": "{{ tools }}"}
    raw = build(
        [
            kv("general.architecture", STRING, text("nobody-knows")),
            kv("tokenizer.chat_templates", ARRAY, array(STRING, text("tool_use"))),
            *(kv("tokenizer.chat_template" + k, STRING, text(v)) for k, v in said.items()),
        ],
        [tensor("t", [256], 16)],
        bytes(66),
    )
    (tmp_path / "m.gguf").write_bytes(raw)
    got = shown(say, tmp_path / "m.gguf")
    assert [(t["name"], t["sha256"]) for t in got["templates"]] == [
        (name, hashlib.sha256(v.encode()).hexdigest())
        for name, v in (("default", said[""]), ("tool_use", said[".tool_use"]))
    ]


def test_what_cannot_run_is_shown_with_the_reason(say: Any, tmp_path: Path) -> None:
    arch = kv("general.architecture", STRING, text("nobody-knows"))
    (tmp_path / "m.gguf").write_bytes(build([arch], [tensor("t", [256], 16)], bytes(66)))
    got = shown(say, tmp_path / "m.gguf")
    assert "IQ2_XXS" in got["problem"] and got["spec"] is None and got["memory"] is None
    assert got["formats"] == [{"name": "IQ2_XXS", "tensors": 1, "bytes": 66}] and got["parameters"] == 256
    (tmp_path / "m.gguf").write_bytes(build([arch], [tensor("t", [8])], bytes(32)))
    got = shown(say, tmp_path / "m.gguf")
    assert got["architecture"] == "nobody-knows" and "architecture 'nobody-knows'" in got["problem"]
    assert "tokenizer" in got["tokenizer"]["problem"]
    assert "cannot run" in say("show-model", str(tmp_path / "m.gguf"))


def test_an_unknown_folder_is_shown_too(say: Any, tmp_path: Path) -> None:
    weights = {"w": np.zeros((4, 8), np.float32), "n": np.zeros(8, np.float16)}
    config = {"model_type": "nobody-knows", "quantization_config": {"quant_method": "gptq"}}
    path = folder(tmp_path / "m", {"config.json": config, "model.safetensors": tensors(weights)})
    got = shown(say, path)
    assert (got["kind"], got["architecture"], got["spec"]) == ("safetensors", "nobody-knows", None)
    assert "gptq" in got["problem"] and "no tokenizer" in got["tokenizer"]["problem"]
    assert got["formats"] == [
        {"name": "F32", "tensors": 1, "bytes": 128}, {"name": "F16", "tensors": 1, "bytes": 16},
    ]  # fmt: skip


def test_tensors_that_do_not_fit_the_config_are_shown(say: Any, tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96,
        "intermediate_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    for rows, words in ((96, "layers.0.input_layernorm.weight: is missing"), (95, "[95, 64], but [96, 64] is needed")):
        weights = {"model.embed_tokens.weight": np.zeros((rows, 64), np.float32)}
        path = folder(tmp_path / str(rows), {"config.json": config, "model.safetensors": tensors(weights)})
        got = shown(say, path)
        assert words in got["problem"] and got["spec"]["layers"] == 2
        assert "cannot run" in say("show-model", str(path))


@pytest.mark.model
def test_real_models(say: Any, smollm2_path: Path, gemma3_path: Path) -> None:
    smol, gemma = shown(say, smollm2_path), shown(say, gemma3_path, "--context", "2048")
    assert smol["memory"]["kv"]["f32"] == smol["spec"]["context"] * 30 * 2 * 3 * 64 * 4
    assert smol["tokenizer"]["missing_bytes"] == 21 and smol["tokenizer"]["tokens"] == 49152  # case bank, pattern 12
    assert len(smol["templates"]) == 1 and smol["problem"] is None
    # Gemma 3 270M: 18 layers, every sixth of which sees all, the others 512 positions; one key head of 256.
    assert gemma["memory"]["kv"]["f32"] == (3 * 2048 + 15 * 512) * 2 * 1 * 256 * 4
    assert gemma["tokenizer"]["tokens"] == 262144


def test_the_list_as_json(say: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--me--mine" / "snapshots" / "c0ffee"
    (snapshot / "sub").mkdir(parents=True)
    (snapshot / "sub" / "x.gguf").write_bytes(bytes(1500))
    rows = {r["name"]: r for r in json.loads(say("models", "--json"))}
    assert list(rows) == ["smollm2-135m", "gemma3-270m", "hf:me/mine/sub/x.gguf", "bigram"]
    assert rows["hf:me/mine/sub/x.gguf"] == {
        "name": "hf:me/mine/sub/x.gguf", "bytes": 1500, "licence": None, "here": True,
    }  # fmt: skip
    assert "hf:me/mine/sub/x.gguf  1.5 kB" in say("models")


def test_sizes() -> None:
    assert [size_of(n) for n in (0, 999, 1500, 98_362_432, 253_113_024, 2_600_000_000)] == [
        "0 B", "999 B", "1.5 kB", "98 MB", "253 MB", "2.6 GB",
    ]  # fmt: skip


# ---- a folder without a tokenizer: the model is the lab's table, for what is tested is the way to it


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> glassbox.Model:
    monkeypatch.setattr("glassbox.api.TransformerModel", lambda file, **how: BigramModel())
    config = {"model_type": "llama", "eos_token_id": 3}
    files = {"config.json": config, "model.safetensors": tensors({"t": np.zeros(2, np.float32)})}
    return glassbox.load(folder(tmp_path / "m", files))


def test_ids_go_in_and_come_out(bare: glassbox.Model, tmp_path: Path) -> None:
    assert bare.logits([1, 2]).shape == (2, 4)
    greedy = glassbox.Policy(temperature=0)
    ended = bare.generate(ids=[0], policy=greedy, max_tokens=10)
    assert list(ended.ids) == [1, 2, 3]  # 3 is the config's end
    assert ended.finish_reason == "stop" and ended.text == ""
    assert len(bare.generate(ids=[0], policy=greedy, max_tokens=10, ignore_eos=True).ids) == 10
    with glassbox.open_store(tmp_path / "runs.db") as store:
        kept = bare.generate(ids=[0], policy=greedy, max_tokens=3, store=store)
        assert list(store.load(kept.run_id).ids) == list(kept.ids)
    assert bare.path == tmp_path / "m"
    shas = subprocess.run(
        ["sha256sum", "config.json", "model.safetensors"], cwd=bare.path, capture_output=True, check=True
    ).stdout
    assert bare.sha256 == hashlib.sha256(shas).hexdigest()


def test_what_needs_text_says_why_it_cannot_be(bare: glassbox.Model) -> None:
    for ask in (
        lambda: bare.encode("a"), lambda: bare.decode([1]), lambda: bare.generate("a"),
        lambda: bare.generate(messages=[{"role": "user", "content": "a"}]),
        lambda: bare.encode_chat([{"role": "user", "content": "a"}]),
    ):  # fmt: skip
        with pytest.raises(PromptError, match="comes without a tokenizer: give ids"):
            ask()
    with pytest.raises(ParameterError, match=r"stop is .* comes without a tokenizer"):
        bare.generate(ids=[0], stop=["a"])
    assert bare.decode([]) == ""


TALK = [{"role": "user", "content": "a"}]


def test_an_unsupported_tokenizer_leaves_ids(tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassbox.api.TransformerModel", lambda file, **how: BigramModel())
    for i, (name, said, words) in enumerate((
        ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "'WordPiece' is not supported"),
        ("vocab.json", {"a": 0}, "tokenizer file 'vocab.json' is not supported"),
    )):  # fmt: skip
        files = {"config.json": {"model_type": "llama", "eos_token_id": 3}, name: said}
        path = folder(tmp_path / str(i), files | {"model.safetensors": tensors({"t": np.zeros(2, np.float32)})})
        model = glassbox.load(path)
        assert list(model.generate(ids=[0], policy=glassbox.Policy(temperature=0), max_tokens=9).ids) == [1, 2, 3]
        for ask in (
            lambda m: m.encode("a"), lambda m: m.decode([1]), lambda m: m.generate("a"),
            lambda m: m.generate(messages=TALK), lambda m: m.encode_chat(TALK),
        ):  # fmt: skip
            with pytest.raises(Unsupported, match=words):
                ask(model)
        with pytest.raises(ParameterError, match=f"stop is .* {words}"):
            model.generate(ids=[0], stop=["a"])
        assert words in shown(say, path)["tokenizer"]["problem"]


def test_a_folder_says_how_to_sample_where_it_asks_for_it(tmp_path: Path) -> None:
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": None, "eos_token_id": 2}
    assert folder_metadata(tmp_path, settings) == {"general.sampling.temp": 0.6, "general.sampling.top_p": 0.9}
    assert folder_metadata(tmp_path, settings | {"do_sample": False}) == {"general.sampling.temp": 0.0}
    assert folder_metadata(tmp_path, {"temperature": 0.6}) == {}


def test_a_tokenizer_has_a_digest_of_all_that_decides_ids(tmp_path: Path) -> None:
    def digest() -> str:
        return tokenizer_digest(folder_metadata(tmp_path, {}))

    folder(tmp_path, {"tokenizer.json": {"a": 1}, "tokenizer_config.json": {"chat_template": "x", "add_bos": 1}})
    one = digest()
    folder(tmp_path, {"tokenizer_config.json": {"chat_template": "y", "add_bos": 1}, "README.md": {}})
    assert digest() == one  # the template has a digest of its own
    folder(tmp_path, {"tokenizer_config.json": {"add_bos": 0}})
    two = digest()
    folder(tmp_path, {"tokenizer.json": {"a": 2}})
    assert len({one, two, digest()}) == 3


def test_the_built_in_model_is_described_on_standard_output(say: Any) -> None:
    assert say("show-model", "bigram") == say("models", "--show", "bigram")
    assert say("show-model", "bigram").startswith("bigram is built in: a table")
    got = json.loads(say("show-model", "bigram", "--json"))
    assert got == {"name": "bigram", "path": None, "files": [], "kind": "built in", "problem": None}
