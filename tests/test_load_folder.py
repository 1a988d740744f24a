"""Folders with config.json and safetensors through `glassbox.load`: the same model in every way it may be stored."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_weights
from safetensors_writer import folder, tensors
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers

import glassbox
from glassbox.bench import cold_start, measure
from glassbox.cli.bench import lines
from glassbox.cli.main import run as cli
from glassbox.cli.names import model_name
from glassbox.errors import ContextOverflow, ModelFormatError

CASES, LOGITS = tiny_weights.load()
CASE = "llama-a"
SOME = ("llama-a", "gpt2-b", "gemma2-a", "mixtral-a", "phi3-a")

Arrays = dict[str, np.ndarray[Any, Any]]


def arrays_of(case: str) -> Arrays:
    return tiny_weights.checkpoint(case, CASES).arrays


def config_of(case: str) -> dict[str, Any]:
    config: dict[str, Any] = dict(CASES[case]["config"])
    return config


def write(to: Path, arrays: Arrays, shards: int = 1, case: str = CASE) -> Path:
    files: dict[str, Any] = {"config.json": config_of(case)}
    if shards == 1:
        return folder(to, files | {"model.safetensors": tensors(arrays, {"format": "pt"})})
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    homes = {tensor: names[i % shards] for i, tensor in enumerate(arrays)}
    for name in names:
        files[name] = tensors({t: a for t, a in arrays.items() if homes[t] == name}, {"format": "pt"})
    return folder(to, files | {"model.safetensors.index.json": {"metadata": {}, "weight_map": homes}})


def bits(path: Path, case: str = CASE) -> bytes:
    ids = tiny_weights.ids_of(case, config_of(case)["vocab_size"])
    return glassbox.load(path, threads=1).logits(ids).tobytes()


@pytest.mark.parametrize("case", SOME)
def test_logits_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    model = glassbox.load(write(tmp_path / "m", arrays_of(case), case=case), threads=1)
    ids = tiny_weights.ids_of(case, config_of(case)["vocab_size"])
    right = LOGITS[case]
    assert np.abs(model.logits(ids) - right).max() <= 1e-5 * np.abs(right).max()
    run = model.generate(ids=ids[:20], policy=glassbox.Policy(temperature=0), max_tokens=12, ignore_eos=True)
    again = model.logits(ids[:20] + list(run.ids))
    assert again[19:-1].argmax(-1).tolist() == list(run.ids)


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_change_no_bit(tmp_path: Path, shards: int) -> None:
    arrays = arrays_of(CASE)
    assert bits(write(tmp_path / "many", arrays, shards)) == bits(write(tmp_path / "one", arrays))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_halves_are_what_they_decode_to(tmp_path: Path, kind: str) -> None:
    """float32 weights that a half can hold, kept as both: one model, to rounding."""
    whole: Arrays = {}
    short: Arrays = {}
    for name, a in arrays_of(CASE).items():
        if kind == "F16":
            short[name] = a.astype(np.float16)
            whole[name] = short[name].astype(np.float32)
        else:
            short[name] = (a.view(np.uint32) >> 16).astype(np.uint16)
            whole[name] = (short[name].astype(np.uint32) << 16).view(np.float32)
    a = np.frombuffer(bits(write(tmp_path / "short", short)), np.float32)
    b = np.frombuffer(bits(write(tmp_path / "whole", whole)), np.float32)
    assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
    assert np.abs(a - LOGITS[CASE].ravel()).max() > 1e-4  # the halves are not the weights they were made from


def test_a_tensor_too_few_or_too_many_is_named(tmp_path: Path) -> None:
    arrays = arrays_of(CASE)
    gone = next(n for n in arrays if "down_proj" in n)
    with pytest.raises(ModelFormatError, match=f"{gone}.*is missing"):
        glassbox.load(write(tmp_path / "few", {n: a for n, a in arrays.items() if n != gone}))
    with pytest.raises(ModelFormatError, match=r"model\.layers\.0\.extra\.weight"):
        glassbox.load(write(tmp_path / "many", arrays | {"model.layers.0.extra.weight": np.zeros(4, np.float32)}))


def test_a_folder_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m", arrays_of(CASE))
    assert cli(["show-model", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    config = config_of(CASE)
    assert said["problem"] is None and said["spec"]["layers"] == config["num_hidden_layers"]
    assert said["parameters"] == sum(a.size for a in arrays_of(CASE).values())
    for command in (["trace", "hi"], ["tokenize", "hi"]):
        assert cli([*command, "--model", str(path)]) == 2
        err = capsys.readouterr().err
        assert "tokenizer" in err and len(err.splitlines()) == 1


def test_a_folder_is_loaded_without_torch_or_safetensors(tmp_path: Path) -> None:
    path = write(tmp_path / "m", arrays_of(CASE))
    code = (
        "import sys, glassbox\n"
        f"glassbox.load({str(path)!r}).logits([1, 2, 3])\n"
        "bad = sorted({'torch', 'transformers', 'safetensors', 'huggingface_hub'} & set(sys.modules))\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def with_tokenizer(path: Path) -> Engine:
    """Put a tokenizer of single characters into a folder, and settings for sampling."""
    letters = [chr(c) for c in range(33, 127)] + ["Ġ"]
    engine = Engine(models.BPE({c: i for i, c in enumerate(letters)}, []))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["</s>"])
    engine.save(str(path / "tokenizer.json"))
    settings = {"do_sample": True, "temperature": 0.5, "top_k": 7, "eos_token_id": 95}
    folder(path, {"tokenizer_config.json": {"eos_token": "</s>"}, "generation_config.json": settings})
    return engine


def test_text_goes_in_and_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m", arrays_of(CASE))
    engine = with_tokenizer(path)
    model = glassbox.load(path, threads=1)
    ids = engine.encode("hello, you").ids
    assert list(model.encode("hello, you").ids) == ids and model.decode(ids) == "hello, you"
    run = model.generate("hello, you", policy=glassbox.Policy(temperature=0), max_tokens=8, ignore_eos=True)
    assert run.text == engine.decode([i for i in run.ids if i < 95])
    same = model.generate(ids=ids, policy=glassbox.Policy(temperature=0), max_tokens=8, ignore_eos=True)
    assert [s.logits_hash for s in same.steps] == [s.logits_hash for s in run.steps]
    assert model.tokenizer.eos_ids == {95}
    words = ["trace", "hello", "--model", str(path), "--json", "--max-tokens", "2", "--seed", "1"]
    assert cli([*words, "--store", str(tmp_path / "runs.db")]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["policy"]["temperature"] == 0.5 and got["policy"]["top_k"] == 7 and got["policy"]["top_p"] == 0.95
    assert {name for name, source in got["sources"].items() if source == "model file"} == {"temperature", "top_k"}
    assert set(got["sources"].values()) == {"model file", "default"}
    assert cli(["show-model", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["tokenizer"]
    assert said["tokens"] == 96 and said["ends"] == [95] and said["sha256"] == model.tokenizer_sha256


def test_templates_of_a_folder_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m", arrays_of(CASE))
    engine = with_tokenizer(path)
    (path / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "rag.jinja").write_text("{{ messages[0].content }}!")
    model, talk = glassbox.load(path, threads=1), [{"role": "user", "content": "hi"}]
    assert list(model.encode_chat(talk).ids) == engine.encode("[hi]").ids
    assert list(model.encode_chat(talk, template="rag").ids) == engine.encode("hi!").ids
    assert cli(["show-model", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    digests = [hashlib.sha256(f.read_bytes()).hexdigest() for f in (path / "chat_template.jinja", *path.glob("a*/*"))]
    assert [(t["name"], t["sha256"]) for t in said["templates"]] == list(zip(("default", "rag"), digests, strict=True))


def test_a_folder_that_asks_for_no_sampling_is_greedy(tmp_path: Path) -> None:
    path = write(tmp_path / "m", arrays_of(CASE))
    (path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.3}')
    assert glassbox.load(path).metadata["general.sampling.temp"] == 0.0
    (path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.3}')
    assert glassbox.load(path).metadata["general.sampling.temp"] == 0.3


def test_a_folder_without_a_tokenizer_can_be_measured(tmp_path: Path) -> None:
    assert cold_start(glassbox.load(write(tmp_path / "m", arrays_of(CASE)))) > 0
    assert cold_start(glassbox.load("bigram")) > 0


def test_the_context_is_what_the_weights_were_made_for(tmp_path: Path) -> None:  # C09-09, C09-06
    """Not the tokenizer's sentinel, nor a length that somebody once generated."""
    path = write(tmp_path / "m", arrays_of(CASE))
    (path / "config.json").write_text(json.dumps(config_of(CASE) | {"max_position_embeddings": 128}))
    (path / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
    (path / "generation_config.json").write_text('{"max_length": 20}')
    model = glassbox.load(path)
    assert model.context == 128
    asked: dict[str, Any] = dict(ids=[5] * 50, seed=1, ignore_eos=True)
    assert len(model.generate(max_tokens=30, **asked).ids) == 30  # new tokens: the prompt's 50 do not count
    run = model.generate(max_tokens=None, **asked)
    assert len(run.ids) == 78 and run.finish_reason == "length"
    assert run.stop_reason == {"kind": "context_end", "limit": 128}
    with pytest.raises(TypeError, match="max_length"):
        model.generate(max_length=30, **asked)


def test_a_prompt_that_is_too_long_leaves_no_run(tmp_path: Path) -> None:  # C09-08
    model = glassbox.load(write(tmp_path / "m", arrays_of(CASE)))
    with glassbox.open_store(tmp_path / "runs.db") as store:
        for n in (model.context + 1, 10 * model.context):
            with pytest.raises(ContextOverflow, match=f"the prompt has {n} tokens") as caught:
                model.generate(ids=[5] * n, store=store)
            assert (caught.value.tokens, caught.value.limit) == (n, model.context)
        assert store.runs() == []


def test_memory_is_told_for_the_tokens_that_were_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = glassbox.load(write(tmp_path / "m", arrays_of(CASE)))
    for name in ("prefill_rate", "decode_rate", "batch_rate", "trace_rate", "read_rate", "cold_start"):
        monkeypatch.setattr(f"glassbox.bench.{name}", lambda *_: 1.0)
    held = measure(model, 8, 1, lambda _: None)
    assert held.peak_memory > 10**6 or sys.platform != "linux"
    context = config_of(CASE)["max_position_embeddings"]
    assert context < 2048 and held.peak_tokens == context
    assert f"MB for {context} tokens, process and all" in "\n".join(lines(held))


def test_a_model_is_called_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "mine", arrays_of(CASE)))
    assert model_name(".") == "mine"
