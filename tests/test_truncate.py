"""A prompt that is too long, cut on request: whole messages, or the oldest ids; what was dropped is told everywhere."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import random_gguf
from test_cli import Cli
from test_cli import cli as cli
from trained import MAKERS, write_folder

import glassbox
from glassbox.errors import ContextOverflow, ParameterError, TemplateError
from glassbox.outcome import Usage
from glassbox.policy.policy import Policy
from glassbox.text.template import ChatTemplate
from glassbox.text.tokenizer import Tokenizer
from glassbox.text.truncate import Cut, cut_text, first_of, kept, room_for, to_drop, units

SEED = 20261130
CONTEXT = random_gguf.CONTEXT  # 256; a character is a token
BARE = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
TEMPLATES = Path(__file__).parent / "data" / "templates"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_gguf.write(
        tmp_path_factory.mktemp("model") / "small.gguf", "llama", "llama", [gguf.GGMLQuantizationType.F32]
    )


@pytest.fixture(scope="module")
def model(path: Path) -> glassbox.Model:
    return glassbox.load(path, threads=1)


def talk(turns: int, size: int, system: str | None = "be-brief") -> list[dict[str, str]]:
    """A system message, so many questions with their answers, and a last question."""
    said = [{"role": "system", "content": system}] if system else []
    for i in range(turns):
        said += [{"role": "user", "content": f"q{i}" + "?" * size}, {"role": "assistant", "content": f"a{i}"}]
    return [*said, {"role": "user", "content": "last"}]


# --- which messages go ---


@pytest.mark.model
def test_whole_messages_go_and_the_template_renders_the_rest(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C09-02
    model = glassbox.load(smollm2_path)
    messages = talk(5, 12)
    whole = model.encode_chat(messages)
    monkeypatch.setattr(model.model, "spec", replace(model.model.spec, context=len(whole) - 1))
    asked: dict[str, Any] = dict(messages=messages, max_tokens=1, seed=1)
    with pytest.raises(ContextOverflow) as caught:
        model.generate(**asked)
    assert (caught.value.tokens, caught.value.limit) == (len(whole), len(whole) - 1)

    run = model.generate(**asked, truncate=True)
    rest = model.encode_chat([messages[0], *messages[3:]])  # the first question goes with its answer
    assert run.prompt_ids == rest.ids and run.prompt_text == rest.text
    assert run.prompt_text.startswith("<|im_start|>system\nbe-brief<|im_end|>\n<|im_start|>user\nq1")
    assert run.prompt_text.endswith("<|im_start|>assistant\n")
    assert run.request.cut == Cut(len(whole), len(whole) - len(rest), (1, 2))
    assert run.request.messages == tuple(messages)
    origins = [s.origin for s in run.request.encoding.segment_list]
    assert origins[:2] == ["dropped message 1", "dropped message 2"]
    assert [o for o in origins[2:] if o != "template"] == [f"message {i}" for i in (0, *range(3, 12))]
    at = run.request.encoding.ids.index(model.encode("brief").ids[0])
    segment = run.request.encoding.segment_list[run.request.encoding.segments[at]]
    assert (segment.origin, segment.text) == ("message 0", "be-brief")


def fewest(messages: Any, count: Callable[[Any], int], room: int) -> tuple[int, ...] | None:
    """The slow way: one unit after another until the rest fits and the template takes it."""
    groups = units(messages)
    for n in range(len(groups) + 1):
        out = tuple(sorted(i for group in groups[:n] for i in group))
        try:
            if count(kept(messages, out)) <= room:
                return out
        except TemplateError:
            pass
    return None


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    """What an assistant with tools goes through: calls, some at once, answers out of order, replies, more questions."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "s"}] * rng.randrange(2)
    for turn in range(rng.randrange(1, 7)):
        said.append({"role": "user", "content": "u" * rng.randrange(1, 20)})
        for call in range(rng.randrange(3)):
            names = [f"{turn}.{call}.{i}" for i in range(rng.randrange(1, 3))]
            said.append({"role": "assistant", "content": "", "tool_calls": [{"id": name} for name in names]})
            if rng.random() < 0.2:
                said.append({"role": rng.choice(["user", "system", "assistant"]), "content": "meanwhile"})
            said += [{"role": "tool", "content": "t" * rng.randrange(9), "tool_call_id": n} for n in reversed(names)]
        if rng.random() < 0.8:
            said.append({"role": "assistant", "content": "a" * rng.randrange(1, 9)})
    return said


def test_nothing_is_orphaned_and_no_more_goes_than_must() -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)

    def count(messages: Any) -> int:
        return sum(3 + len(m["content"]) for m in messages)

    cut = 0
    for _ in range(2000):
        messages = conversation(rng)
        room = rng.randrange(1, count(messages) + 2)
        right = fewest(messages, count, room)
        if right is None:
            with pytest.raises(ContextOverflow):
                to_drop(messages, count, room, room)
            continue
        out = to_drop(messages, count, room, room)
        assert out == right
        rest = kept(messages, out)
        assert rest[-1] is messages[-1]
        assert [m for m in rest if m["role"] == "system"] == [m for m in messages if m["role"] == "system"]
        called = {c["id"] for m in rest for c in m.get("tool_calls", ())}
        answered = {m["tool_call_id"] for m in rest if m["role"] == "tool"}
        assert answered <= called
        lost = {m["tool_call_id"] for i, m in enumerate(messages) if i in out and m["role"] == "tool"}
        assert lost.isdisjoint(called)
        cut += bool(out)
    assert cut > 300


def test_what_goes_together() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "x"}, {"id": "y"}]}
    answers = [{"role": "tool", "content": "1", "tool_call_id": name} for name in "yx"]
    user, reply, system = ({"role": role, "content": "."} for role in ("user", "assistant", "system"))
    assert units([system, user, reply, user, reply, user]) == [[1, 2], [3, 4]]
    assert units([user, call, *answers, reply, user]) == [[0], [1, 2, 3, 4]]
    assert units([user, call, user, system, *answers, user]) == [[0], [1, 2, 4, 5]]
    assert units([user, call, *answers]) == [[0]]  # the last answers a call, which stays
    assert units([user, reply, user, reply]) == [[0, 1], [2]]  # the last is to be continued: alone if need be
    assert units([reply, user]) == [[0]]
    assert units([answers[0], user]) == [[0]]  # answers nothing that is there
    assert units([user]) == units([system]) == units([system, user]) == []
    odd = [{"role": "tool", "content": "", "tool_call_id": [1]}, {"role": "assistant", "tool_calls": [3, {"id": {}}]}]
    assert units([user, *odd, user]) == [[0, 1], [2]]


@pytest.mark.parametrize("name", ["gemma", "llama2", "mistral_v1"])
def test_a_template_that_wants_turns_gets_turns(name: str) -> None:
    """These refuse a conversation that does not begin with the user's, and go on by turns."""
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), bos="<s>", eos="</s>")

    def count(messages: Any) -> int:
        return len(template.render(messages).text)

    for turns in (1, 2, 5):
        messages = talk(turns, 20, None)
        for room in range(count(messages[-1:]), count(messages) + 1, 7):
            out = to_drop(messages, count, room, room)
            assert out == fewest(messages, count, room) == tuple(range(len(out)))
            assert len(out) % 2 == 0 and count(kept(messages, out)) <= room
    greeted = [{"role": "user", "content": "hi"}, *messages]  # two questions on end are refused, but not the rest
    with pytest.raises(TemplateError):
        count(greeted)
    assert to_drop(greeted, lambda m: 10**9 if len(m) == len(greeted) else count(m), 10**6, 10**6) == (0,)


def test_many_messages_take_few_renders() -> None:
    renders = 0

    def count(messages: Any) -> int:
        nonlocal renders
        renders += 1
        return len(messages)

    assert len(to_drop(talk(5000, 1), count, 101, 101)) == 10_002 - 100
    assert renders < 20


# --- how much ---


def test_room_is_left_for_what_is_asked_up_to_a_quarter(model: glassbox.Model) -> None:
    assert [room_for(256, n) for n in (1, 10, 64, 1000)] == [255, 246, 192, 192]
    for most, room in ((10, 246), (100, 192), (None, 192)):
        run = model.generate(ids=[5] * 300, truncate=True, max_tokens=most, seed=1, ignore_eos=True)
        assert len(run.prompt_ids) == room
        assert len(run.ids) == min(most or CONTEXT, CONTEXT - room)
        uncut = model.generate(ids=[5] * room, truncate=True, max_tokens=most, seed=1, ignore_eos=True)
        assert uncut.request.cut is None and uncut.ids == run.ids


def test_what_must_stay_may_take_from_the_room_but_not_more(model: glassbox.Model) -> None:
    asked: dict[str, Any] = dict(template=BARE, truncate=True, max_tokens=100, seed=1, ignore_eos=True)
    for size in (150, 240):
        run = model.generate(messages=[{"role": "user", "content": "x" * size}], **asked)
        assert run.request.cut is None and run.usage == Usage(size + 8, run.usage.cached_tokens, len(run.ids))
    messages = [*talk(2, 5, None)[:-1], {"role": "user", "content": "x" * 240}]
    run = model.generate(messages=messages, **asked)
    assert run.prompt_text == f"[user:{'x' * 240}]>"
    assert run.request.cut is not None and run.request.cut.messages == (0, 1, 2, 3)
    messages = [*talk(2, 5)[:-1], {"role": "user", "content": "x" * 240}]
    with pytest.raises(ContextOverflow, match="what must be kept of the messages has 265 tokens") as caught:
        model.generate(messages=messages, **asked)  # with the system's it is too much
    assert (caught.value.tokens, caught.value.limit) == (265, CONTEXT)


# --- ids and text ---


def test_the_counts_tell_of_the_cut(tmp_path: Path) -> None:  # C15-09
    model = glassbox.load(
        random_gguf.write(tmp_path / "m.gguf", "llama", "llama", [gguf.GGMLQuantizationType.F32]), threads=1
    )
    model.model.spec = replace(model.model.spec, context=64)  # type: ignore[union-attr]
    ids = [i % 90 for i in range(200)]
    with glassbox.open_store(tmp_path / "runs.db") as store:
        with pytest.raises(ContextOverflow, match="the prompt has 200 tokens, but the context holds 64"):
            model.generate(ids=ids, store=store)
        assert store.runs() == []
        run = model.generate(ids=ids, truncate=True, max_tokens=16, seed=1, store=store, ignore_eos=True)
        assert run.prompt_ids == tuple(ids[152:])
        assert run.usage == Usage(48, 0, 16, dropped=152) and run.usage.submitted_tokens == 200
        assert store.load(run.run_id) == run
        again = model.generate(ids=ids, truncate=True, max_tokens=16, seed=1, store=store, ignore_eos=True)
    told = again.to_dict()
    usage = told["usage"]
    assert usage == {
        "prompt_tokens": 48, "cached_tokens": 47, "completion_tokens": 16, "submitted_tokens": 200, "dropped": 152
    }  # fmt: skip
    assert usage["submitted_tokens"] == usage["prompt_tokens"] + usage["dropped"]
    assert told["dropped_messages"] == []
    assert told["warnings"] == ["left out to fit the context: the oldest ids, 152 of 200 ids"]
    assert told["segments"][0]["origin"] == "dropped" and told["segments"][1]["origin"] == "ids"
    assert told["segments"][0]["text"] + told["segments"][1]["text"] == model.decode(ids)
    assert all(p["segment"] == 1 for p in told["prompt"])
    assert again.ids == model.generate(ids=ids[152:], max_tokens=16, seed=1, ignore_eos=True).ids


@pytest.mark.parametrize("maker", sorted(MAKERS))
def test_a_text_loses_its_beginning_and_no_half_of_a_character(maker: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", MAKERS[maker]())
    tokenizer = Tokenizer.from_folder(folder)
    whole = tokenizer.encode("The cat — naïve, 日本語 🎉 — sat.  On  the mat, twice.")
    first, n = first_of(whole.ids, tokenizer), len(whole)
    assert n > 10
    for room in range(first + 1, n):
        try:
            rest, cut = cut_text(whole, tokenizer, room)
        except ContextOverflow:
            assert room < first + 4, room  # what would be left is less than a character
            continue
        assert 0 <= room - len(rest) < 4  # more go than must only up to the end of a character
        assert cut == Cut(n, n - len(rest))
        assert rest.ids == (*whole.ids[:first], *whole.ids[first + cut.dropped :])
        dropped = rest.segment_list[0]
        assert dropped.origin == "dropped" and dropped.text + rest.text == whole.text and rest.text
        assert "".join(s.text for s in rest.segment_list[1:]) == rest.text
        for (lo, hi), (was_lo, was_hi) in zip(rest.spans[first:], whole.spans[first + cut.dropped :], strict=True):
            assert rest.text.encode()[lo:hi] == whole.text.encode()[was_lo:was_hi]
        assert {rest.segment_list[i].origin for i in rest.segments} <= {"prompt", "tokenizer"}


@pytest.mark.model
def test_the_bos_stays(gemma3: glassbox.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma3.model, "spec", replace(gemma3.model.spec, context=40))  # type: ignore[union-attr]
    bos = gemma3.tokenizer.bos_id
    text = "one two three four five " * 20
    for how in ({"prompt": text}, {"ids": gemma3.encode(text).ids}):
        run = gemma3.generate(**how, truncate=True, max_tokens=4, seed=1)  # type: ignore[arg-type]
        assert len(run.prompt_ids) == 36 and run.prompt_ids[0] == bos
        assert run.prompt_ids[1:] == gemma3.encode(text).ids[-35:]
        assert run.replay().equal
    run = gemma3.generate(ids=gemma3.encode(text).ids[1:], truncate=True, max_tokens=4, seed=1)
    assert run.prompt_ids == gemma3.encode(text).ids[-36:]  # none was there


# --- what becomes of such a run ---


def test_it_is_recorded_and_comes_again(model: glassbox.Model, tmp_path: Path) -> None:
    asked: dict[str, Any] = dict(truncate=True, max_tokens=8, seed=3, ignore_eos=True)
    with glassbox.open_store(tmp_path / "runs.db") as store:
        for retain in ("text", "ids", "none"):
            for prompt in (
                {"messages": talk(9, 30), "template": BARE},
                {"prompt": "xyz" * 120},
                {"ids": list(range(90)) * 4},
            ):
                run = model.generate(**prompt, **asked, store=store, retain=retain)
                assert run.request.cut is not None
                loaded = store.load(run.run_id)
                assert loaded.request.cut == run.request.cut and loaded.usage == run.usage
                assert loaded.usage.submitted_tokens == run.request.cut.submitted
                if retain == "none":
                    continue
                assert loaded.replay(model).equal and loaded.ids == run.ids
                assert loaded.tensor(2, "embed", model=model, all_positions=True).shape[0] == len(run.prompt_ids) + 2


def test_a_replay_looks_at_the_cut_prompt(model: glassbox.Model) -> None:
    """It renders what was kept, encodes what was submitted, and finds another text."""
    asked: dict[str, Any] = dict(truncate=True, max_tokens=2, seed=3)
    chat = model.generate(messages=talk(9, 30), template=BARE, **asked)
    assert chat.request.cut is not None
    spoiled = replace(chat.request, cut=replace(chat.request.cut, messages=chat.request.cut.messages[:-2]))
    assert not replace(chat, request=spoiled).replay(force=True).equal
    text = model.generate("xyz" * 120, **asked)
    assert text.replay().equal
    encoding = replace(text.request.encoding, text="z" + text.request.encoding.text[1:])
    assert not replace(text, request=replace(text.request, encoding=encoding)).replay(force=True).equal


def test_runs_that_were_not_cut_are_written_as_before(model: glassbox.Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        model.generate("abc", max_tokens=2, seed=1, truncate=True, store=store)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
        (options,) = db.execute("SELECT options FROM run").fetchone()
    assert "cut" not in json.loads(options)


def test_samples_and_beams_are_cut_too(model: glassbox.Model) -> None:
    asked: dict[str, Any] = dict(messages=talk(9, 30), template=BARE, truncate=True, max_tokens=4)
    one = model.generate(**asked, seed=1, policy=Policy(temperature=0))
    runs = [*model.samples(**asked, n=3, seed=1), model.beam_search(**asked, beam=2)]
    for run in runs:
        assert run.prompt_ids == one.prompt_ids and run.request.cut == one.request.cut != None  # noqa: E711
        assert run.usage.dropped == one.usage.dropped > 0


def test_what_is_asked_is_checked(model: glassbox.Model) -> None:
    with pytest.raises(ParameterError, match="truncate is 'yes', but must be True or False"):
        model.generate("abc", truncate="yes")


def test_the_command_line(cli: Cli, path: Path, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(talk(9, 30)))
    (tmp_path / "bare.jinja").write_text(BARE)
    chat = ["trace", "--messages", str(tmp_path / "talk.json"), "--template", str(tmp_path / "bare.jinja")]
    small = ["--model", str(path), "--max-tokens", "4", "--seed", "1", "--ignore-eos"]
    _, err = cli.stored(*chat, *small, code=2)
    assert err == "glassbox: the prompt has 506 tokens, but the context holds 256\n"
    out, _ = cli.stored(*chat, *small, "--truncate")
    for piece in (
        "dropped message 1 ", "message 0 ", "usage    241 prompt (0 cached, 265 of 506 dropped) + 4 completion tokens",
    ):  # fmt: skip
        assert piece in out, out
    shown, _ = cli.stored("show", "last")
    assert "265 of 506 dropped" in shown and "dropped message 1 " in shown
    told = json.loads(cli.stored(*chat, *small, "--truncate", "--json")[0])
    assert told["dropped_messages"] == list(range(1, 11))
    assert told["usage"]["submitted_tokens"] == 506
    out, _ = cli.stored("replay", "last", "--model", str(path))
    assert "equal" in out
    out, _ = cli.stored("trace", "xyz" * 120, *small, "--truncate")
    assert "left out to fit the context: the oldest ids" in out
    (tmp_path / "talk.json").write_text(json.dumps([{"role": "user", "content": "x" * 300}]))
    _, err = cli.stored(*chat, *small, "--truncate", code=2)
    assert err == "glassbox: what must be kept of the messages has 308 tokens, but the context holds 256\n"
