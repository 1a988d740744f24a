"""The goldens of test_beam.py made anew by torch and transformers; and searches with processors."""

from __future__ import annotations

import pytest
from test_beam import CLOSE, GOLDEN, searched, tiny

from glassbox import Beam, Policy
from tools.make_beams import make, model_of, search

pytestmark = [pytest.mark.oracle("torch", "transformers"), pytest.mark.filterwarnings("ignore")]  # theirs


def test_transformers_says_the_same_today() -> None:
    made, kept = make("gpt2-a"), GOLDEN["gpt2-a"]
    assert (made["prompt"], made["eos"]) == (kept["prompt"], kept["eos"])
    for new, old in zip(made["searches"], kept["searches"], strict=True):
        assert new["ids"] == old["ids"]
        assert new["scores"] == pytest.approx(old["scores"], abs=1e-5)


# Processors that a shift of all logits does not change: transformers applies them to log-probabilities, a policy to
# logits. (Its repetition penalty multiplies what it finds, so there the two differ by design.)
PROCESSORS = {
    "temperature": (dict(temperature=1.7), {}),
    "bans": (dict(banned_sequences=((7,), (11, 12)), no_repeat_ngram_size=2), {}),
    "minimum": (dict(min_tokens=6), dict(min_new_tokens=6)),
    "bias": (dict(logit_bias=((5, 3.0), (9, -100.0))), dict(sequence_bias=[[[5], 3.0], [[9], -100.0]])),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_same_with_processors(name: str) -> None:
    """With `renormalize_logits`, which is what the logprobs of a policy are."""
    ours, theirs = PROCESSORS[name]
    if name == "bans":
        theirs = dict(bad_words_ids=[[7], [11, 12]], no_repeat_ngram_size=2)
    for case in ("gpt2-a", "gemma3-b"):
        prompt, eos = GOLDEN[case]["prompt"], GOLDEN[case]["eos"]
        how = dict(num_beams=4, length_penalty=1.0, early_stopping=False, returned=3, renormalize_logits=True)
        if name == "temperature":
            from transformers import LogitsProcessorList, TemperatureLogitsWarper

            warp = LogitsProcessorList([TemperatureLogitsWarper(1.7)])
            theirs = dict(logits_processor=warp)
        right = search(model_of(case), prompt, eos, **how, **theirs)
        got = searched(tiny(case, eos=tuple(eos)), prompt, Beam(4, returned=3), policy=Policy(**ours)).hypotheses
        assert [list(h.ids) for h in got] == right["ids"]
        assert [h.score for h in got] == pytest.approx(right["scores"], abs=CLOSE)
