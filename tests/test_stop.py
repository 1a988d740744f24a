"""stop.py: stop strings over any cutting of the text, and the one reason a run ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassbox.errors import ParameterError
from glassbox.stop import MAX_STOP_CHARS, MAX_STOPS, Ending, Limits, Shown, StopWatcher


def play(pieces: Sequence[str], stops: Sequence[str], *, include_stop: bool = False) -> tuple[str, str | None, int]:
    """(all text shown, the stop, how many pieces were fed): a run ends at a match, else it flushes."""
    watcher = StopWatcher(stops, include_stop=include_stop)
    shown = ""
    for n, piece in enumerate(pieces, start=1):
        step = watcher.feed(piece)
        shown += step.text
        if step.matched is not None:
            return shown, step.matched, n
    return shown + watcher.flush(), None, len(pieces)


def scan(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The oracle: look at the whole text, character by character."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def could_become_a_stop(text: str, stops: Sequence[str]) -> str:
    """The longest suffix that is a proper beginning of a stop."""
    return next(text[i:] for i in range(len(text) + 1) if any(s.startswith(text[i:]) and s != text[i:] for s in stops))


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "matched", "fed"),
    [
        ([" is", " Paris", "."], ["Pari"], " is ", "Pari", 2),  # C06-02
        ([" Alice", "!", "\n\n"], ["\n", "Alice:"], " Alice!", "\n", 3),  # C06-04
        (["ABC", "DEF"], ["DEFGHIJ"], "ABCDEF", None, 2),  # C06-05
        (["x", "ab", "cd"], ["abcd", "bc"], "xa", "bc", 3),  # C06-07, all four
        (["x", "ab", "cd"], ["bc", "abcd"], "xa", "bc", 3),
        (list("xabcd"), ["abcd", "bc"], "xa", "bc", 4),
        (list("xabcd"), ["bc", "abcd"], "xa", "bc", 4),
        (["aaab"], ["aab"], "a", "aab", 1),  # a failed beginning is itself a beginning
        (["xabc"], ["c", "abc", "bc"], "x", "abc", 1),  # same end: the one that began earliest
        (["naïve 🙂", "🙃!"], ["🙂🙃"], "naïve ", "🙂🙃", 2),
        (["plain"], [], "plain", None, 1),
    ],
)
def test_stop_strings(pieces: list[str], stops: list[str], text: str, matched: str | None, fed: int) -> None:
    assert play(pieces, stops) == (text, matched, fed)


def test_included_stop_is_exact() -> None:  # C06-13
    assert play([" is", " Paris", "."], ["Pari"], include_stop=True) == (" is Pari", "Pari", 2)
    assert play(list(" is Paris."), ["Pari"], include_stop=True) == (" is Pari", "Pari", 8)


def scan_after(text: str, stops: Sequence[str], deaf: int, include: bool) -> tuple[str, str | None]:
    """The oracle for min_tokens: the same scan, in which stops that end within the first `deaf` characters are text."""
    for end in range(deaf + 1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(
    text=st.text(alphabet="ab\n", max_size=20), deaf=st.integers(0, 20), include=st.booleans(),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), min_size=1, max_size=4),
)  # fmt: skip
@example(text="abab", stops=["ab", "bab"], deaf=2, include=False)
@settings(derandomize=True, max_examples=500)
def test_a_stop_that_completes_too_early_is_text(text: str, stops: list[str], deaf: int, include: bool) -> None:
    watcher, shown = StopWatcher(stops, include_stop=include), ""
    for n, char in enumerate(text, start=1):
        step = watcher.feed(char, armed=n > deaf)
        shown += step.text
        if step.matched is not None:
            break
        assert step.held == could_become_a_stop(text[:n], stops)
    else:
        shown += watcher.flush()
        step = None
    assert (shown, step.matched if step else None) == scan_after(text, stops, deaf, include)


def test_a_lone_string_is_one_stop() -> None:
    assert play(["a-bc-d"], "bc") == ("a-", "bc", 1)


def test_held_text_is_neither_shown_twice_nor_after_a_match() -> None:
    watcher = StopWatcher(["Alice:"])
    first = watcher.feed(" Alice")
    assert (first.text, first.held, first.matched) == (" ", "Alice", None)
    second = watcher.feed(": hello")
    assert (second.text, second.held, second.matched) == ("", "", "Alice:")
    late = watcher.feed("more")
    assert (late.text, late.held, late.matched) == ("", "", "Alice:")
    assert watcher.flush() == ""


def test_flush_gives_the_held_text_once() -> None:
    watcher = StopWatcher(["DEFG"])
    assert watcher.feed("ABCDEF").text == "ABC"
    assert watcher.flush() == "DEF"
    assert watcher.flush() == ""
    assert watcher.feed("GHD") == Shown("GH", "D", None)  # nothing of what was flushed is left in it


_text = st.text(alphabet="ab\nß", max_size=24)
_stops = st.lists(st.text(alphabet="ab\nß", min_size=1, max_size=5), max_size=4)


@given(text=_text, stops=_stops, cuts=st.lists(st.integers(0, 24), max_size=8))
@example(text="abab", stops=["ba", "abb"], cuts=[1, 2])
@settings(derandomize=True, max_examples=400)
def test_any_cutting_gives_what_a_scan_of_the_whole_text_gives(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    expected, stop = scan(text, stops)
    assert play(pieces, stops)[:2] == (expected, stop)
    assert play(pieces, stops[::-1])[:2] == (expected, stop)
    assert play(pieces, stops, include_stop=True)[0] == expected + (stop or "")


@given(text=_text, stops=_stops.filter(bool))
@settings(derandomize=True, max_examples=400)
def test_it_holds_back_exactly_what_could_become_a_stop(text: str, stops: list[str]) -> None:
    watcher, seen = StopWatcher(stops), ""
    for char in text:
        step = watcher.feed(char)
        seen += char
        if step.matched is not None:
            break
        assert step.held == could_become_a_stop(seen, stops)


def test_hostile_stops_take_linear_time() -> None:
    n = 1000
    watcher = StopWatcher(["a" * n + "b"])
    steps = 0
    real_step = watcher._step

    class Counting(list[int]):
        def __getitem__(self, i):  # type: ignore[no-untyped-def, override]
            nonlocal steps
            steps += 1
            return super().__getitem__(i)

    watcher._fail = Counting(watcher._fail)
    assert real_step(0, "x") == 0
    for _ in range(20):
        watcher.feed("a" * n + "c")
    assert 0 < steps <= 20 * (n + 1)  # each character is given up at most once


@pytest.mark.parametrize(
    "stops",
    [[""], ["ok", ""], [3], [None], [b"x"], ["x"] * (MAX_STOPS + 1), ["x" * (MAX_STOP_CHARS + 1)], ""],
)
def test_bad_stops_are_refused_by_name(stops: list[str]) -> None:
    with pytest.raises(ParameterError) as caught:
        StopWatcher(stops)
    assert caught.value.param == "stop"


def test_stops_at_the_limits_work() -> None:
    stops = [chr(0x4E00 + i) * MAX_STOP_CHARS for i in range(MAX_STOPS)]
    assert play(["é" + stops[7]], stops) == ("é", stops[7], 1)


# ---- why a run ends


def end_of(
    ids: list[int], limits: Limits, *, prompt: int = 3, matched_at: dict[int, str] | None = None
) -> tuple[int, Ending]:
    """(tokens generated, ending) of a scripted run."""
    for n, token in enumerate(ids, start=1):
        ending = limits.check(token, generated=n, length=prompt + n, matched=(matched_at or {}).get(n))
        if ending is not None:
            return n, ending
    raise AssertionError("the script ran out")


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:  # C06-14
    limits = Limits(eos_ids=[2], max_tokens=2)
    n, ending = end_of([314, 7042], limits, matched_at={2: "Paris"})
    assert (n, ending.finish_reason, ending.stop_reason) == (
        2,
        "stop",
        {"kind": "stop_string", "text": "Paris"},
    )
    n, ending = end_of([314, 2], limits)
    assert (n, ending.finish_reason, ending.stop_reason) == (2, "stop", {"kind": "eos", "id": 2})
    n, ending = end_of([314, 7042], limits)
    assert (n, ending.finish_reason, ending.stop_reason) == (2, "length", {"kind": "max_tokens", "limit": 2})


def test_ignored_eos_and_the_users_own_ids() -> None:  # C06-11
    ids = [5, 6, 2, 7, 8, 9]
    n, ending = end_of(ids, Limits(eos_ids=[2], max_tokens=6, ignore_eos=True))
    assert (n, ending) == (6, Ending("max_tokens", 6))
    n, ending = end_of(ids, Limits(eos_ids=[2], stop_ids=[2], max_tokens=6, ignore_eos=True))
    assert (n, ending) == (3, Ending("stop_id", 2))
    assert ending.finish_reason == "stop"


def test_before_min_tokens_nothing_but_a_limit_ends_it() -> None:  # C06-09
    limits = Limits(eos_ids=[2], stop_ids=[7], min_tokens=5, max_tokens=9)
    assert [limits.armed(n) for n in (1, 4, 5, 6)] == [False, False, True, True]
    assert limits.check(2, generated=4, length=9) is None and limits.check(7, generated=4, length=9) is None
    assert limits.check(7, generated=5, length=9) == Ending("stop_id", 7)
    early = Limits(min_tokens=5, max_tokens=3).check(4, generated=3, length=9)
    assert early == Ending("max_tokens", 3)
    with pytest.raises(ParameterError, match="min_tokens is -1"):
        Limits(min_tokens=-1)


def test_the_order_of_causes() -> None:
    everything = Limits(eos_ids=[2], stop_ids=[2, 3], max_tokens=1, context=4)
    kinds = [
        everything.check(token, generated=1, length=4, matched=matched)
        for token, matched in [(2, "x"), (3, "x"), (4, "x"), (4, None)]
    ]
    assert [e and e.kind for e in kinds] == ["eos", "stop_id", "stop_string", "max_tokens"]
    only_context = Limits(max_tokens=2, context=4).check(4, generated=1, length=4)
    assert only_context is not None
    assert (only_context.kind, only_context.finish_reason, only_context.detail) == (
        "context_end",
        "length",
        4,
    )
    assert Limits(eos_ids=[2], stop_ids=[3], max_tokens=2, context=5).check(4, generated=1, length=4) is None
    assert Limits().check(0, generated=10**6, length=10**6) is None


def test_endings_from_outside() -> None:
    assert (Ending("cancelled").finish_reason, Ending("cancelled").stop_reason) == (
        "cancelled",
        {"kind": "cancelled"},
    )
    assert Ending("error", "no memory").stop_reason == {"kind": "error", "detail": "no memory"}
    assert "stop_string" in repr(Ending("stop_string", "x"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_tokens", 0), ("max_tokens", -1), ("max_tokens", True), ("max_tokens", 2.0), ("context", 0),
     ("stop_ids", [-1]), ("stop_ids", ["a"]), ("eos_ids", [1.5])],
)  # fmt: skip
def test_bad_limits_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        Limits(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field
