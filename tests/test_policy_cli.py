"""`glassbox policy`, and the flags by which every command takes a policy."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from glassbox.cli.app import invoke
from glassbox.cli.policy import GRAMMARS, HELP, policy_of, read
from glassbox.policy.policy import Policy
from glassbox.policy.table import STEPS


def told(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    assert invoke(list(command)) == code
    caught = capsys.readouterr()
    return caught.out if code == 0 else caught.err


def test_it_prints_the_order_and_each_formula(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "policy", "--preset", "vllm", "--temperature", "0.7").splitlines()
    steps = [line.split()[2].removesuffix(":") for line in lines if line[:2].strip().isdecimal()]
    assert steps == list(Policy.preset("vllm").order)
    assert " 9 on  temperature: temperature 0.7" in lines and "10 off min_p: min_p 0" in lines
    at = lines.index(" 9 on  temperature: temperature 0.7")
    assert lines[at + 1].strip() == "z_i <- (logit_i - max) / T" and "Ackley" in lines[at + 2]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    got = json.loads(told(capsys, "policy", "--steps", "top_k,temperature", "--top-k", "3", "--json"))
    assert Policy.from_dict(got["policy"]) == Policy(top_k=3, order=("top_k", "temperature"))
    assert [(s["name"], s["on"], s["argmax_invariant"]) for s in got["steps"]] == [
        ("top_k", True, True), ("temperature", False, True),
    ]  # fmt: skip
    whole = json.loads(told(capsys, "policy", "--json"))
    assert [s["name"] for s in whole["steps"]] == list(STEPS)
    assert all(s["formula"] and s["source"] for s in whole["steps"])


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("top_k", "5", 5), ("temperature", "0.5", 0.5), ("allowed_ids", "1,2,3", [1, 2, 3]), ("banned_ids", "7", [7]),
        ("banned_sequences", "1,2;3", [[1, 2], [3]]), ("logit_bias", "5=1.5,6=-2", [(5, 1.5), (6, -2.0)]),
        ("length_decay", "10,1.05", (10, 1.05)), ("repetition_scope", "64", 64), ("penalty_scope", "output", "output"),
        ("steps", "top_k, temperature", ("top_k", "temperature")), ("top_n_sigma", "1.5", 1.5), ("min_tokens", "3", 3),
    ],
)  # fmt: skip
def test_flags_read_as(name: str, text: str, value: object) -> None:
    assert read(name, text) == value
    if name != "steps":
        policy_of({name: read(name, text)})


def test_every_parameter_has_a_flag() -> None:
    variants = {
        "frequency_formula", "top_k_ties", "top_p_joint", "top_h_limit", "xtc_strict", "dry_scope", "banned_scope",
        "dola_normed",
    }  # fmt: skip
    added = {"preset", "steps", "bias_text", *GRAMMARS}
    assert set(HELP) == {f.name for f in fields(Policy)} - variants - {"order"} | added


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["--preset", "ollama"], "preset 'ollama' is not supported"),
        (["--preset", "tgi", "--min-p", "0.1"], "min_p is 0.1, but must be left out: preset tgi has only"),
        (["--steps", "top_k,magic"], "order is 'magic'"),
        (["--steps", "top_k", "--top-p", "0.5"], "top_p is 0.5, but must be left out"),
        (["--top-k", "x"], "top_k is 'x', but must be a whole number"),
        (["--typical-p", "2"], "typical_p is 2.0"),
        (["--banned-ids", "1,x"], "banned_ids is '1,x', but must be of the form ID,…"),
        (["--logit-bias", "5"], "logit_bias is '5', but must be of the form"),
        (["--allowed-ids", "3", "--banned-ids", "3"], "allowed_ids is (3,)"),
    ],
)
def test_bad_flags_are_one_line(capsys: pytest.CaptureFixture[str], command: list[str], error: str) -> None:
    for first in (["policy"], ["trace", "ab", "--model", "no such model"]):
        err = told(capsys, *first, *command, code=2)
        assert error in err and len(err.splitlines()) == 1


def traced(capsys: pytest.CaptureFixture[str], tmp_path: Path, *flags: str) -> dict[str, Any]:
    common = ["trace", "ab", "--model", "bigram", "--max-tokens", "6", "--seed", "5", "--json"]
    got: dict[str, Any] = json.loads(told(capsys, *common, "--store", str(tmp_path / "runs.db"), *flags))
    return got


def test_a_trace_records_what_ran(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = [
        "--preset",
        "llama.cpp",
        "--repetition-penalty",
        "1.5",
        "--xtc-probability",
        "0.5",
        "--logit-bias",
        "2=0.5",
    ]
    got = traced(capsys, tmp_path, *flags)
    assert got["policy"]["repetition_scope"] == 64 and got["sources"]["top_k"] == "preset llama.cpp"
    assert (got["sources"]["repetition_penalty"], got["sources"]["order"]) == ("flag", "preset llama.cpp")
    for step in got["steps"]:
        rows = {r["name"]: r for r in step["ledger"]}
        assert list(rows) == [
            "raw logits", "logit_bias", "repetition_penalty", "top_k", "top_p", "min_p", "xtc", "temperature",
        ]  # fmt: skip
        assert rows["logit_bias"]["changed"] == 1 and rows["repetition_penalty"]["changed"] >= 2
        assert 0 <= rows["xtc"]["params"]["u"] < 1
        assert rows["xtc"]["entropy_before"] == rows["min_p"]["entropy"]
    again = traced(capsys, tmp_path, *flags)
    assert [s["ledger"] for s in again["steps"]] == [s["ledger"] for s in got["steps"]]
    shown = json.loads(told(capsys, "show", got["run_id"], "--json", "--store", str(tmp_path / "runs.db")))
    assert shown["policy"] == got["policy"] and shown["steps"] == got["steps"]


def test_only_the_steps_named_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    got = traced(capsys, tmp_path, "--steps", "top_k,temperature", "--top-k", "2")
    assert [r["name"] for r in got["steps"][0]["ledger"]] == ["raw logits", "top_k", "temperature"]
    on = {name: source for name, source in got["sources"].items() if source == "flag" or name == "temperature"}
    assert on == {"order": "flag", "top_k": "flag", "temperature": "default"} and "top_p" not in got["sources"]


def test_what_the_model_cannot_do_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = ["trace", "ab", "--model", "bigram", "--store", str(tmp_path / "runs.db")]
    assert "banned_ids is 99, but must be an id of the vocabulary" in told(
        capsys, *common, "--banned-ids", "99", code=2
    )
    assert "eos_ids is ()" in told(capsys, *common, "--min-tokens", "3", code=2)
    err = told(capsys, *common, "--allowed-ids", "1", "--banned-sequences", "2,1", code=2)
    assert "no token allowed at step 0: constraints allowed_ids and banned_sequences" in err
