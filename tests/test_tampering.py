"""Whatever is changed in a store is found by the reader, or, where digests were made anew, by a replay."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import pytest
import random_gguf

import glassbox
from glassbox.beam import Beam
from glassbox.errors import EmptySupport, RunNotFound, StoreError
from glassbox.policy.policy import Policy
from glassbox.stop import Ending
from glassbox.trace.record import Recorder, Run
from glassbox.trace.rows import ENDED
from glassbox.trace.store import Store, open_store

SEED = 20260513
TABLES = ("run", "segment", "position", "ledger", "candidate", "beam")
POLICY = Policy(temperature=0.9, top_k=30, top_p=0.95, repetition_penalty=1.1)
GRAMMATICAL = Policy(grammar={"json_schema": {"type": "array", "items": {"enum": ["a", "bb"]}}})


@dataclass
class World:
    """A closed store: a run that is whole, one of ids alone, one that was cancelled, one whose writer was killed, one
    in a grammar, a beam search, one that failed."""

    path: Path
    runs: dict[str, Run]
    model: glassbox.Model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    path = random_gguf.write(folder / "m.gguf", "llama", "llama", [gguf.GGMLQuantizationType.F32])
    model = glassbox.load(path, threads=1)
    with open_store(folder / "runs.db") as store:
        how = dict(policy=POLICY, seed=2**64 - 5, max_tokens=6, ignore_eos=True, store=store)
        talk = [{"role": "user", "content": "a b"}]
        model.generate(messages=talk, template="{{ messages[0].content }}!", stop=["zzz"], stop_ids=[95], **how)
        model.generate("abcabc", level="ids", retain="ids", **how)
        with model.stream("ab", **how) as stream:
            next(stream)
        model.generate("ab", **{**how, "policy": GRAMMATICAL})
        model.generate("ab", **{**how, "policy": Policy(1.5)}, beam=Beam(2))
        with pytest.raises(EmptySupport):
            model.generate("ab", **{**how, "policy": Policy(allowed_ids=(5, 6), no_repeat_ngram_size=1)})
        killed = model.generate("abab", **how)
        runs = {r.id: store.load(r.id) for r in store.runs()}
    with closing(sqlite3.connect(folder / "runs.db")) as conn, conn:  # what a kill leaves: no ending
        nothing = ", ".join(f"{name} = NULL" for name in (*ENDED, "seal"))
        conn.execute(f"UPDATE run SET {nothing} WHERE id = ?", (killed.run_id,))
    conn.close()
    with open_store(folder / "runs.db", readonly=True) as store:
        runs[killed.run_id] = store.load(killed.run_id)
        assert runs[killed.run_id].outcome is None and len(runs[killed.run_id].steps) == 6
        assert all(store.verify(run_id) is None for run_id in runs)
    return World(folder / "runs.db", runs, model)


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    return Path(shutil.copy(world.path, tmp_path / "copy.db"))


def verdict(path: Path, original: dict[str, Run]) -> str:
    """What a reader who asks for every original run meets: refusals, all the same, or another run that is accepted."""
    try:
        with open_store(path, readonly=True) as store:
            return heard(store, original)
    except StoreError:
        return "refused"


def heard(store: Store, original: dict[str, Run]) -> str:
    found = {look(store, run) for run in original.values()}
    return next(word for word in ("accepted", "refused", "same") if word in found)


def look(store: Store, run: Run) -> str:
    try:
        found = store.load(run.run_id)
    except (StoreError, RunNotFound):
        return "refused"
    return "same" if found == run and found.to_dict() == run.to_dict() else "accepted"


# Every way to change a value, by its type; None: of a type that this is not for.
CHANGES: dict[str, Callable[[object], object]] = {
    "nothing": lambda v: None,
    "another number": lambda v: (
        v + 1 if isinstance(v, int) else v * (1 + 2**-52) + 1e-300 if isinstance(v, float) else 0
    ),
    "one bit of it": lambda v: flipped(v),
    "shorter": lambda v: v[:-1] if isinstance(v, str | bytes) and v else "",
    "longer": lambda v: v + (" " if isinstance(v, str) else b"\0") if isinstance(v, str | bytes) else "longer",
    "as text": lambda v: str(v) if isinstance(v, int | float) else b"blob",
}


def flipped(value: object) -> object:
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, float):
        return -value if value else 1.0
    if isinstance(value, str) and value:
        return chr(ord(value[0]) ^ 1) + value[1:]
    return bytes([value[0] ^ 1]) + value[1:] if isinstance(value, bytes) and value else 1


# What nothing binds: the mark of lost rows, until a seal does. And of a list of policy steps only what it says counts,
# before the seal does: the digests of rows name their steps.
FREE = {("run", "incomplete", "accepted"), ("run", "ledger_steps", "same")}


def test_any_change_of_any_value_is_found(world: World, copy: Path) -> None:
    """Each column of each table, for every run, and in rows chosen at random: changed in every way its type allows."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    conn = sqlite3.connect(copy, isolation_level=None)
    store = open_store(copy, readonly=True)
    conn.execute("PRAGMA synchronous = OFF")
    ids = dict(conn.execute("SELECT n, id FROM run"))
    missed, tried = [], Counter[str]()
    for table in TABLES:
        columns = conn.execute(f"PRAGMA table_info({table})").fetchall()
        names, key = [c[1] for c in columns], [c[1] for c in columns if c[5]]
        rows = conn.execute(f"SELECT * FROM {table}").fetchall()
        for name in names:
            for row in rows if table == "run" else rng.sample(rows, 2):
                at = dict(zip(names, row, strict=True))
                victim = world.runs[ids[at["n" if table == "run" else "run"]]]
                where, those = " AND ".join(f"{k} = ?" for k in key), [at[k] for k in key]
                for how, change in CHANGES.items():
                    new = change(at[name])
                    try:
                        conn.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (new, *those))
                    except (sqlite3.IntegrityError, sqlite3.OperationalError):  # the schema does not allow it
                        continue
                    # Where a key changed, the row stands elsewhere now; SQLite may have made the old value of the new.
                    now = [new if k == name else at[k] for k in key]
                    kept = conn.execute(f"SELECT {name} FROM {table} WHERE {where}", now).fetchone()
                    if kept is None or type(kept[0]) is not type(at[name]) or kept[0] != at[name]:
                        tried[table] += 1
                        told = look(store, victim)
                        unfinished = table == "run" and at["finish_reason"] is None
                        if told != "refused" and not (unfinished and (table, name, told) in FREE):
                            missed.append((told, table, name, how, at[name], new))
                    back = [kept[0] if k == name and kept else v for k, v in zip(key, now, strict=True)]
                    conn.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (at[name], *back))
        assert heard(store, world.runs) == "same", f"{table} was not put back"
    store.close()
    conn.close()
    print(dict(tried))
    assert missed == []
    assert min(tried.values()) > 30


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.slow
def test_a_row_that_goes_is_found(world: World, copy: Path, table: str) -> None:
    """But the last rows of a run that nobody ended: it is as if its writer had been killed a moment before."""
    conn = sqlite3.connect(copy, isolation_level=None)
    key = [c[1] for c in conn.execute(f"PRAGMA table_info({table})") if c[5]]
    for values in conn.execute(f"SELECT {', '.join(key)} FROM {table}").fetchall():
        conn.execute("BEGIN")
        unfinished = conn.execute("SELECT n FROM run WHERE finish_reason IS NULL").fetchone()[0]
        last = conn.execute("SELECT max(pos) FROM position WHERE run = ?", (unfinished,)).fetchone()[0]
        conn.execute(f"DELETE FROM {table} WHERE {' AND '.join(f'{k} = ?' for k in key)}", values)
        conn.execute("COMMIT")
        if (table, values) != ("position", (unfinished, last)):
            assert verdict(copy, world.runs) == "refused", values
        shutil.copy(world.path, copy)
    conn.close()


@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 2])
@pytest.mark.slow
def test_flipped_bytes_are_found_or_change_nothing_that_is_read(world: World, copy: Path, seed: int) -> None:
    print(f"seed {seed}")
    pristine, rng = world.path.read_bytes(), random.Random(seed)
    counts: Counter[str] = Counter()
    for _ in range(100):
        spoiled = bytearray(pristine)
        spoiled[rng.randrange(len(spoiled))] ^= rng.randrange(1, 256)
        copy.write_bytes(spoiled)
        counts[verdict(copy, world.runs)] += 1
    print(dict(counts))
    assert counts["accepted"] == 0
    assert counts["refused"] > 20 and counts["same"] > 10  # of data, and of free space


# --- a forger, who makes all digests anew ---

Forgery = Callable[[Run], Run]


def step_changed(**changes: object) -> Forgery:
    def forge(run: Run) -> Run:
        s = run.steps[3]
        mine = {k: v for k, v in changes.items() if hasattr(s, k)}
        theirs = {k: v for k, v in changes.items() if not hasattr(s, k) or k == "id"}
        s = replace(s, choice=replace(s.choice, **theirs), **mine)
        return replace(run, steps=(*run.steps[:3], s, *run.steps[4:]))

    return forge


def asked(**changes: object) -> Forgery:
    return lambda run: replace(run, request=replace(run.request, **changes))


def ended(**changes: object) -> Forgery:
    def forge(run: Run) -> Run:
        assert run.outcome is not None
        return replace(run, outcome=replace(run.outcome, **changes))

    return forge


def another_prompt(run: Run) -> Run:
    e = run.request.encoding
    return replace(run, request=replace(run.request, encoding=replace(e, ids=(e.ids[0] ^ 1, *e.ids[1:]))))


def less_of_the_ledger(run: Run) -> Run:
    return step_changed(ledger=run.steps[3].ledger[:-1])(run)


def another_candidate(run: Run) -> Run:
    first, *others = run.steps[3].candidates
    return step_changed(candidates=(replace(first, logit=first.logit + 1e-6), *others))(run)


def a_step_less(run: Run) -> Run:
    assert run.outcome is not None
    usage = replace(run.outcome.usage, completion_tokens=len(run.steps) - 1)
    return replace(run, steps=run.steps[:-1], outcome=replace(run.outcome, usage=usage))


FORGERIES: dict[str, tuple[Forgery, int | None, str]] = {
    "id": (step_changed(id=7), 3, "id"),
    "draw": (step_changed(u=0.125), 3, "u"),
    "hash": (step_changed(logits_hash="0123456789abcdef"), 3, "logits_hash"),
    "logprob": (step_changed(logprob_final=-0.5), 3, "logprob_final"),
    "interval": (step_changed(cdf_lo=0.0), 3, "cdf_lo"),
    "entropy": (step_changed(entropy=1.0), 3, "entropy"),
    "where a token's text is": (step_changed(text_offset=2), 3, "text_offset"),
    "text of a token": (step_changed(text="!"), 3, "text"),
    "ledger": (less_of_the_ledger, 3, "ledger"),
    "candidate": (another_candidate, 3, "candidates"),
    "a step less": (a_step_less, None, "stop_reason"),
    "policy": (asked(policy=replace(POLICY, top_k=29)), 0, "ledger"),
    "order": (asked(policy=replace(POLICY, order=POLICY.order[::-1])), 0, "ledger"),
    "seed": (asked(seed=4), 0, "u"),
    "sequence": (asked(sequence=1), 0, "u"),
    "max_tokens": (asked(max_tokens=5), 5, "id"),
    "prompt": (another_prompt, 0, "logits_hash"),
    "text": (ended(text="as if"), None, "text"),
    "ending": (ended(ending=Ending("eos", 95)), None, "stop_reason"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_replay_finds_what_digests_cannot(world: World, tmp_path: Path, what: str) -> None:
    forge, step, field = FORGERIES[what]
    original = next(r for r in world.runs.values() if r.retain == "text" and r.request.messages is not None)
    assert found_by_replay(world, tmp_path, forge(original)) == (step, field)


def found_by_replay(world: World, folder: Path, forged: Run) -> tuple[int | None, str]:
    """The step and field that a replay names of a run which the store takes for whole."""
    with open_store(folder / "forged.db") as store:
        recorder = Recorder(store)
        recorder.begin(forged.request, forged.provenance, forged.prompt)
        if forged.tried:
            recorder.beams(forged.tried)
        for s in forged.steps:
            recorder.step(s)
        assert forged.outcome is not None
        recorder.end(forged.outcome)
        recorder.close()
        found = store.load()
        assert store.verify() is None
        replayed = found.replay(world.model, force=True)
    assert not replayed.equal and replayed.difference is not None
    return replayed.difference.step, replayed.difference.field


@pytest.mark.parametrize(
    "changes",
    [dict(id=7), dict(score=-0.5), dict(logprob=-0.5), dict(state="live", beam=1), dict(parent=1), dict(text="!")],
)
def test_a_replay_finds_a_forged_candidate(world: World, tmp_path: Path, changes: dict[str, object]) -> None:
    run = next(r for r in world.runs.values() if r.tried)
    at = next(i for i, row in enumerate(run.tried) if row.step == 2 and row.state == "dropped" and row.parent == 0)
    rows = (*run.tried[:at], replace(run.tried[at], **changes), *run.tried[at + 1 :])
    assert found_by_replay(world, tmp_path, replace(run, tried=rows)) == (2, "beam")


def test_a_replay_finds_a_forged_grammar(world: World, tmp_path: Path) -> None:
    run = next(r for r in world.runs.values() if r.policy.grammar)
    forged = asked(policy=Policy(grammar={"regex": r"\[.*"}))(run)
    assert found_by_replay(world, tmp_path, forged)[1] == "ledger"


def test_all_of_the_world_comes_again(world: World) -> None:
    assert len(world.runs) == 7
    for run in world.runs.values():
        replayed = run.replay(world.model)
        assert replayed.equal and replayed.compared == len(run.steps), str(replayed.difference)
