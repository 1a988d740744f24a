"""Defaults that come from the model's file: applied with their source, or said not to be; never dropped in silence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny_weights
from safetensors.numpy import save_file

import glassbox
from glassbox.cli.app import invoke
from glassbox.defaults import file_values
from glassbox.errors import ParameterError
from glassbox.policy.policy import Policy

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "tiny.json").read_text())


def model_of(path: Path, settings: Mapping[str, Any]) -> glassbox.Model:
    file = tiny_weights.checkpoint("llama-a", CASES)
    path.mkdir()
    save_file(file.arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(file.config))
    (path / "generation_config.json").write_text(json.dumps(settings))
    return glassbox.load(path, threads=1)


def test_a_file_and_a_request(tmp_path: Path) -> None:  # C05-17
    said = {"do_sample": True, "temperature": 0.1, "top_k": 1, "repetition_penalty": 1.05}
    model = model_of(tmp_path / "m", said)
    policy, sources = model.default_policy()
    assert policy == Policy(temperature=0.1, top_k=1, top_p=0.95, repetition_penalty=1.05)
    assert {p for p, source in sources.items() if source == "model file"} == set(said) - {"do_sample"}
    assert sources["top_p"] == sources["min_p"] == "default" and set(sources) == set(Policy().to_dict()) - {"order"}
    policy, sources = model.default_policy({"temperature": 0.7})
    assert (policy.temperature, policy.top_k, sources["temperature"], sources["top_k"]) == (
        0.7,
        1,
        "flag",
        "model file",
    )
    policy, sources = model.default_policy(from_file=False)
    assert policy == Policy(temperature=0.8, top_p=0.95) and set(sources.values()) == {"default"}
    policy, sources = model.default_policy({"order": ("top_k", "temperature")})
    assert policy == Policy(temperature=0.1, top_k=1, order=("top_k", "temperature"))
    assert sources["repetition_penalty"] == "model file, not honoured: the order leaves its step out"
    assert model.generate(ids=[1], max_tokens=1, seed=0).policy == Policy()  # the API takes no file's word unasked


def test_all_that_a_step_has_is_honoured(tmp_path: Path) -> None:
    said = {
        "do_sample": True, "temperature": 0.9, "top_k": 9, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9,
        "epsilon_cutoff": 3e-4, "eta_cutoff": 2e-4, "top_h": 0.9, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3,
        "min_new_tokens": 2, "suppress_tokens": [5, 3], "begin_suppress_tokens": [4], "bad_words_ids": [[1, 2], [9]],
        "sequence_bias": [[[7], 1.5], [[1, 8], -2.0]], "exponential_decay_length_penalty": [5, 1.1], "eos_token_id": 2,
    }  # fmt: skip
    policy, sources = model_of(tmp_path / "m", said).default_policy()
    assert policy == Policy(
        0.9, 9, 0.8, 0.1, typical_p=0.9, epsilon_cutoff=3e-4, eta_cutoff=2e-4, top_h=0.9, repetition_penalty=1.2,
        no_repeat_ngram_size=3, min_tokens=2, banned_ids=[3, 5], begin_suppress_ids=[4],
        banned_sequences=[[1, 2], [9]], logit_bias={7: 1.5, (1, 8): -2.0}, length_decay=(5, 1.1),
    )  # fmt: skip
    assert sum(source == "model file" for source in sources.values()) == 16
    assert not any("not honoured" in source for source in sources.values())


def test_what_cannot_be_honoured_is_said(tmp_path: Path) -> None:
    said = {
        "do_sample": False, "temperature": 0.3, "penalty_alpha": 0.6, "num_beams": 4, "guidance_scale": 1,
        "top_k": 50, "suppress_tokens": [99999], "repetition_penalty": "high", "min_new_tokens": 0, "top_p": 1.0,
        "max_new_tokens": 99,
    }  # fmt: skip
    policy, sources = model_of(tmp_path / "m", said).default_policy()
    assert policy.greedy and sources["temperature"] == "model file" and sources["top_k"] == "default"
    at, why = "generation_config.", "not honoured: "
    left = {name.removeprefix(at): s.partition(why)[2] for name, s in sources.items() if why in s}
    assert left["temperature"] == "do_sample is false"
    assert set(left) == {
        "temperature", "penalty_alpha", "num_beams", "top_k", "suppress_tokens", "repetition_penalty", "max_new_tokens",
    }  # fmt: skip
    assert left["num_beams"] == "4 has no counterpart here" and "99999" in left["suppress_tokens"]
    assert left["repetition_penalty"] == "repetition_penalty is 'high', but must be above 0 (1 is off)"


def test_a_gguf_says_it_by_its_own_names() -> None:
    said = {
        "temp": 0.6, "top_k": 20, "penalty_repeat": 1.1, "penalty_last_n": 32, "xtc_probability": 0.2, "mirostat": 2,
        "top_p": 7.0, "xtc_threshold": 0.2, "sequence": "top_k;temperature",
    }  # fmt: skip
    values, notes = file_values({f"general.sampling.{k}": v for k, v in said.items()}, lambda policy: None)
    assert values == {
        "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1, "repetition_scope": 32, "penalty_scope": 32,
        "xtc_probability": 0.2, "xtc_threshold": 0.2,
    }  # fmt: skip
    assert set(notes) == {f"general.sampling.{k}" for k in ("mirostat", "top_p", "sequence")}


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"do_sample": True, "temperature": 0.5, "no_repeat_ngram_size": 2, "penalty_alpha": 0.6}
    path = tmp_path / "m"
    model_of(path, said)
    from test_load_folder import with_tokenizer

    with_tokenizer(path)
    (path / "generation_config.json").write_text(json.dumps(said))
    command = ["trace", "hi", "--model", str(path), "--max-tokens", "2", "--store", str(tmp_path / "runs.db")]
    assert invoke([*command, "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert (got["policy"]["temperature"], got["policy"]["no_repeat_ngram_size"]) == (0.5, 2)
    assert got["sources"]["no_repeat_ngram_size"] == "model file"
    assert got["sources"]["generation_config.penalty_alpha"] == "model file, not honoured: 0.6 has no counterpart here"
    assert invoke(["show", got["run_id"], "--store", str(tmp_path / "runs.db")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "penalty_alpha of the model file, not honoured" in text and "no_repeat_ngram_size 2 (model file)" in text
    assert invoke([*command, "--json", "--no-file-defaults", "--temperature", "0.4"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["policy"]["temperature"] == 0.4 and got["policy"]["no_repeat_ngram_size"] == 0
    assert set(got["sources"].values()) == {"flag", "default"}


def test_given_values_are_checked() -> None:
    with pytest.raises(ParameterError, match="top_p is 2"):
        glassbox.load("bigram").default_policy({"top_p": 2})
