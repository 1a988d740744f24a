"""What goes to another process and comes back: runs and their parts, and errors. What cannot go says so."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

import glassbox
from glassbox import errors
from glassbox.api import Model
from glassbox.errors import GlassboxError
from glassbox.trace.record import Run

ERRORS = [
    errors.ParameterError("seed", -1, "a whole number"),
    errors.ModelFormatError("is short", field="header", offset=7, path="a.gguf"),
    errors.NonFiniteLogits("softmax", position=3, at=1),
    errors.NotReproduced("differs", field="seed", recorded="1", found="2"),
    errors.PromptError("is empty", param="ids"),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return glassbox.load("bigram")


@pytest.fixture(scope="module")
def run(model: Model) -> Run:
    return model.generate("ab", seed=1, max_tokens=4)


def test_a_run_goes_to_another_process_and_finds_its_model_again_by_name(run: Run, model: Model) -> None:
    there = pickle.loads(pickle.dumps(run))
    assert there == run and there.to_dict() == run.to_dict()
    assert there.opened is None and run.opened is model
    assert there.replay().equal and there.opened.name == "bigram"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, replace])
def test_a_copy_of_a_run_keeps_its_model_at_hand(run: Run, copied: Callable[[Run], Run]) -> None:
    other = copied(run)
    assert other == run and other is not run and other.opened is run.opened
    assert (other.steps[0] is run.steps[0]) is (copied is not copy.deepcopy)


def test_the_parts_of_a_run_come_back_equal(run: Run) -> None:
    for part in (run.steps[0], run.request.encoding, run.request, run.request.policy, run.outcome):
        assert pickle.loads(pickle.dumps(part)) == part == copy.deepcopy(part)


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_cannot_be_copied_says_so_in_a_sentence(model: Model, how: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="a Model cannot be pickled or copied: load 'bigram' where it is needed"):
        how(model)
    with model.stream("ab") as stream, pytest.raises(TypeError, match="a Stream cannot be pickled or copied"):
        how(stream)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_comes_out_of_another_process_as_it_was(error: GlassboxError) -> None:
    for there in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(there) is type(error) and str(there) == str(error) and vars(there) == vars(error)
