"""A run whose keys and values were kept in another way than the model here keeps them: its logits are others."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import random_gguf

import glassbox
from glassbox.cli.app import invoke
from glassbox.errors import PromptError
from glassbox.policy.policy import Policy
from glassbox.trace.record import Run

T = gguf.GGMLQuantizationType
PROMPT = [(7 * i) % 90 for i in range(70)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_gguf.write(tmp_path_factory.mktemp("m") / "m.gguf", "llama", "llama", [T.Q8_0, T.F32])


@pytest.fixture(scope="module")
def store(path: Path) -> Path:
    with glassbox.open_store(path.with_name("runs.db")) as opened:
        asked = {"policy": Policy(6.0, top_p=0.97), "seed": 1, "max_tokens": 12, "ignore_eos": True}
        glassbox.load(path, kv="f16", threads=2).generate(ids=PROMPT, store=opened, **asked)
    return path.with_name("runs.db")


@pytest.fixture
def run(store: Path) -> Run:
    with glassbox.open_store(store, readonly=True) as opened:
        return opened.load()


def test_nothing_is_said_or_made_of_it(path: Path, run: Run) -> None:
    other = glassbox.load(path, threads=2)
    with pytest.raises(PromptError, match="keys and values as f16, not f32"):
        run.what_if(run.policy, opened=other)
    with pytest.raises(PromptError, match="keys and values as f16, not f32"):
        run.branch(4, opened=other)


def test_its_own_policy_changes_nothing_and_its_own_token_gives_it_again(run: Run) -> None:
    assert run.what_if(run.policy).changes == ()
    assert run.branch(4).ids == run.ids


def test_the_commands_keep_them_as_the_run_did(store: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["whatif", run.run_id, "--store", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
    assert invoke(["branch", run.run_id, "--at", "4", "--store", str(store), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [s["logits_hash"] for s in made["steps"]] == [s.logits_hash for s in run.steps]
    assert made["provenance"]["kv"] == "f16"
