"""Exports: what other tools read out of them is what the run holds; nothing escapes a page; nothing half is left."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from test_record import PROVENANCE, SECRET, make_outcome, make_prompt, make_request, make_step, record

import glassbox
from glassbox.cli.main import run as cli
from glassbox.errors import GlassboxError, ParameterError, PromptError
from glassbox.model.intervene import Intervention
from glassbox.policy.policy import Policy
from glassbox.trace import copy
from glassbox.trace import export as exports
from glassbox.trace.export import FORMATS, Source, export, html
from glassbox.trace.export.otlp import attributes
from glassbox.trace.export.tensors import safetensors_bytes
from glassbox.trace.record import Recorder, Run
from glassbox.trace.store import open_store

ROOT = Path(__file__).parent.parent
HOSTILE = "</script><script>alert(1)</script><!--\u202e\x1b[31m\x00'\"&amp;\u2028\ud800<img src=x onerror=alert(1)>"


def kinds(path: Path) -> list[Run]:
    """Runs of every kind: sampled, greedy, a search, without ledger, without text, without ids, under way, failed."""
    bigram = glassbox.load("bigram")
    with open_store(path) as store:
        for level, retain in (("look", "text"), ("ids", "text"), ("look", "ids"), ("look", "none")):
            bigram.generate("ab", seed=5, max_tokens=6, store=store, level=level, retain=retain)  # type: ignore[arg-type]
            record(Recorder(store, level=level, retain=retain))  # type: ignore[arg-type]
        bigram.generate("ab", policy=Policy(temperature=0), max_tokens=3, store=store, prompt_logprobs=True)
        bigram.beam_search("ab", beam=glassbox.Beam(3, returned=2), max_tokens=4, store=store)
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE, make_prompt(make_request()))
        recorder.step(make_step(0, make_request()))
        recorder.fail(GlassboxError("no"))
        recorder.close()
        cut = Recorder(store)
        cut.begin(make_request(), PROVENANCE)
        cut.close()
        return [store.load(r.id) for r in store.runs(None)]


def sources(path: Path) -> list[Source]:
    with open_store(path, readonly=True) as store:
        return [Source(store.load(r.id), store.rows(r.id)) for r in store.runs(None)]


def hostile() -> Run:
    """Every text of it wants out of the page."""
    request = make_request(messages=({"role": "user", "content": HOSTILE},))
    recorder = Recorder(None)
    recorder.begin(
        request, PROVENANCE, tuple(replace(t, bytes=HOSTILE.encode(errors="ignore")) for t in make_prompt(request))
    )
    step = make_step(0, request)
    ledger = tuple(replace(r, name=HOSTILE, params={HOSTILE: 1.0}) for r in step.ledger)
    named = tuple(replace(c, removed_by=HOSTILE) for c in step.candidates)
    recorder.step(replace(step, text=HOSTILE, bytes=HOSTILE.encode(errors="ignore"), ledger=ledger, candidates=named))
    recorder.end(replace(make_outcome(1, request), text=HOSTILE))
    return recorder.run


# --- html ---


class Page(HTMLParser):
    """What a browser's parser sees: tags, attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.open = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag in ("script", "style", "title")
        if self.open:
            self.inside.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.inside[-1] = (self.inside[-1][0], self.inside[-1][1] + data)


def test_a_page_holds_the_run_and_nothing_gets_out_of_its_data(tmp_path: Path) -> None:
    run = hostile()
    text = run.export("html", tmp_path / "x.html").read_text("ascii")
    usual = Page(record(Recorder(None)).export("html", tmp_path / "y.html").read_text("ascii"))
    page = Page(text)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in usual.tags]
    assert [tag for tag, _ in page.inside] == ["title", "style", "script", "script"]
    data = json.loads(page.inside[2][1])
    assert data["run"] == json.loads(json.dumps(run.to_dict()))
    assert data["run"]["steps"][0]["text"] == HOSTILE and data["seed"] == str(run.seed)
    assert text.count("</script>") == 2 and "<!--" not in text
    assert set(map(ord, text)) <= {10, *range(32, 127)}


def test_a_page_may_do_nothing_but_run_its_own_script(tmp_path: Path) -> None:
    text = record(Recorder(None)).export("html", tmp_path / "x.html").read_text()
    page = Page(text)
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for kind, at in (("style-src", 1), ("script-src", 3)):
        digest = base64.b64encode(hashlib.sha256(page.inside[at][1].encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{digest}'"
    assert not [a for _, a in page.tags if {"src", "href", "style"} & set(a) or any(k.startswith("on") for k in a)]
    assert "http://" not in text and "https://" not in text
    script = page.inside[3][1]
    for way_in in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert way_in not in script


def test_a_page_tells_a_token_that_was_put_there_from_one_that_was_drawn(tmp_path: Path) -> None:
    run = glassbox.load("bigram").generate("ab", seed=7, max_tokens=4)
    made = run.branch(2, token_id=next(i for i in range(4) if i != run.ids[2]))
    page = Page(made.export("html", tmp_path / "x.html").read_text("ascii"))
    assert json.loads(page.inside[2][1])["run"]["forced"] == [2]
    assert "(run.forced || []).includes(s.step)" in page.inside[3][1]


def page_of(run: Run) -> tuple[Any, str, str]:
    """Its data, style and script."""
    inside = [text for _, text in Page(html.page(Source(run))).inside]
    return json.loads(inside[2]), inside[1], inside[3]


def test_a_page_says_how_its_tokens_were_chosen_and_where_it_came_from() -> None:
    bigram = glassbox.load("bigram")
    run = bigram.generate("ab", policy=Policy(repetition_penalty=1.1, temperature=0.8), seed=7, max_tokens=4)
    # The policy as it was asked for, not what it did at the first step (whose row also says how many it changed).
    assert page_of(run)[0]["asked"] == ["repetition_penalty 1.1 \u2192 temperature 0.8"]
    branch = run.branch(2, token_id=0)
    assert page_of(branch)[0]["asked"][1:] == [f"branch of {run.run_id} from step 2"]
    assert page_of(run.branch(text="ba"))[0]["asked"][1:] == [f"branch of {run.run_id} with another prompt"]
    greedy = bigram.generate("ab", policy=Policy(temperature=0, top_k=5), max_tokens=2)
    assert page_of(greedy)[0]["asked"] == ["greedy (temperature 0)"]
    assert page_of(bigram.generate("ab", max_tokens=2))[0]["asked"] == ["the model's own distribution"]
    cut = record(Recorder(None))
    request = replace(cut.request, interventions=(Intervention("attn_out.5.head3", "zero"),))
    assert page_of(replace(cut, request=request))[0]["asked"][-1] == "zero attn_out.5.head3"
    assert "asked.map(line => make(" in page_of(run)[2]


def test_a_page_shows_what_a_beam_search_found() -> None:
    run = glassbox.load("bigram").beam_search("ab", beam=glassbox.Beam(3, returned=2), max_tokens=4)
    data, _, script = page_of(run)
    assert data["asked"][1:] == ["beam search: 3 beams, score = sum / tokens ** 1"]
    assert [h["text"] for h in data["run"]["beams"]["hypotheses"]] == [h.text for h in run.beams.hypotheses]  # type: ignore[union-attr]
    assert "run.beams.hypotheses.map(h => make(" in script and ".after(...beams())" in script


def test_a_page_does_not_say_that_a_run_had_no_steps_where_none_were_kept(tmp_path: Path) -> None:
    with open_store(tmp_path / "s.db") as store:
        run = record(Recorder(store, retain="none"))
        data, style, script = page_of(store.load(run.run_id))
    assert data["run"]["retain"] == "none" and data["run"]["steps"] == []
    assert 'run.retain === "none" ? "None of its tokens were kept' in script
    assert "#strip:empty { display: none; }" in style


def test_a_page_can_be_read_on_a_telephone_on_paper_and_aloud() -> None:
    text = html.page(Source(record(Recorder(None))))
    page, (_, style, script) = Page(text), page_of(record(Recorder(None)))
    (strip,) = [a for _, a in page.tags if a.get("id") == "strip"]
    assert strip["role"] == "group" and strip["aria-label"] == "tokens"
    assert not [a for _, a in page.tags if "aria-live" in a]  # it would read out all of each step's tables
    assert 'b.setAttribute("aria-label", `step ${n}, ' in script  # a token may be a space, which is no name
    assert "b.tabIndex = i === at ? 0 : -1" in script and "now.focus()" in script  # not a stop for each of 600 tokens
    assert "e.shiftKey" in script  # Shift and an arrow select text
    narrow, paper = (style.partition(f"@media {kind} {{")[2] for kind in ("(max-width: 30rem)", "print"))
    assert "font-size: 12px" in narrow and "max-height: none; overflow: visible" in paper


def test_a_page_of_a_run_without_text_names_no_token(tmp_path: Path) -> None:
    kinds(tmp_path / "s.db")
    named = set()
    for source in sources(tmp_path / "s.db"):
        told = html.page(replace(source, bytes_of=lambda token: b"WORD"))
        if "WORD" in told:
            named.add(source.run.retain)
        if source.run.retain != "text":
            assert SECRET not in told
    assert named == {"text"}


# --- json ---


def strict(schema: Any) -> Any:
    """The same, where no key may be that is not described."""
    if isinstance(schema, dict):
        more = {"additionalProperties": False} if "properties" in schema else {}
        return {k: strict(v) for k, v in schema.items()} | more
    return [strict(item) for item in schema] if isinstance(schema, list) else schema


def test_the_published_schema_describes_every_kind_of_run(tmp_path: Path) -> None:
    schema = json.loads((ROOT / "docs" / "run.schema.json").read_text())
    made = subprocess.run(
        [sys.executable, ROOT / "tools" / "run_schema.py"], capture_output=True, text=True, check=True
    )
    assert json.loads(made.stdout) == schema, "run: python tools/run_schema.py > docs/run.schema.json"
    jsonschema.Draft202012Validator.check_schema(schema)
    bigram = glassbox.load("bigram")
    branched = bigram.generate("ab", seed=5, max_tokens=6).branch(2, token_id=1)
    done = (Intervention("resid_out.0", "zero"), Intervention("attn_out.0.head1", "scale", 0.5, positions=(1, 3)))
    changed = replace(branched, request=replace(branched.request, interventions=done))
    assert branched.request.branch is not None and branched.request.branch.forced == (2,)
    every_key = jsonschema.Draft202012Validator(strict(schema))
    every_key.check_schema(every_key.schema)
    for run in [*kinds(tmp_path / "s.db"), hostile(), branched, changed]:
        told = json.loads(json.dumps(run.to_dict(), allow_nan=False))
        every_key.validate(told)  # a key is not described: add it to tools/run_schema.py
    for key, wrong in (("seed", "7"), ("prompt_ids", None), ("version", 2), ("steps", [{}])):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(told | {key: wrong}, schema)


def test_json_reads_back_as_the_run(tmp_path: Path) -> None:
    for run in kinds(tmp_path / "s.db"):
        path = run.export("json", tmp_path / f"{run.run_id}.json")
        assert json.loads(path.read_text("ascii")) == run.to_dict()


# --- parquet ---


def test_parquet_holds_every_row_of_every_table(tmp_path: Path) -> None:
    kinds(tmp_path / "s.db")
    export(sources(tmp_path / "s.db"), "parquet", tmp_path / "p")
    with closing(sqlite3.connect(tmp_path / "s.db")) as conn:
        for table, columns in copy.COLUMNS.items():
            names = ", ".join(("(SELECT id FROM run WHERE n = run)", *columns) if table != "run" else columns)
            right = conn.execute(f"SELECT {names} FROM {table}").fetchall()
            found = pq.read_table(tmp_path / "p" / f"{table}.parquet")
            assert found.column_names == list(columns if table == "run" else ("run", *columns))
            rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
            assert sorted(map(repr, rows)) == sorted(map(repr, right)), table
    assert {p.name for p in (tmp_path / "p").iterdir()} == {f"{t}.parquet" for t in copy.COLUMNS}


def test_duckdb_reads_parquet(tmp_path: Path) -> None:
    run = record(Recorder(None))
    run.export("parquet", tmp_path / "p")
    query = f"""SELECT p.id, p.text, p.u, r.seed FROM '{tmp_path}/p/position.parquet' p
        JOIN '{tmp_path}/p/run.parquet' r ON p.run = r.id WHERE p.step IS NOT NULL ORDER BY p.step"""
    right = [(s.id, s.text, s.choice.u, str(run.seed)) for s in run.steps]
    assert duckdb.sql(query).fetchall() == right
    frame = duckdb.sql(f"SELECT removed_by, count(*) FROM '{tmp_path}/p/candidate.parquet' GROUP BY 1").fetchall()
    assert dict(frame) == {"top_p": 12, None: 20}


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(GlassboxError, match=re.escape("pip install 'glassbox-lm[parquet]'")):
        record(Recorder(None)).export("parquet", tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


# --- otlp, perfetto ---


def plain(value: dict[str, Any]) -> Any:
    """A value of OTLP's JSON, as the protocol's own text describes it."""
    ((kind, found),) = value.items()
    if kind == "arrayValue":
        return [plain(item) for item in found["values"]]
    if kind == "kvlistValue":
        return {item["key"]: plain(item["value"]) for item in found["values"]}
    return int(found) if kind == "intValue" else found


def spans(path: Path) -> list[dict[str, Any]]:
    told = json.loads(path.read_text())
    return [s for r in told["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]


def test_spans_have_the_names_of_genai(tmp_path: Path) -> None:
    run = record(Recorder(None), request=make_request(seed=7))
    root, *parts = spans(run.export("otlp", tmp_path / "x.json"))
    told = {a["key"]: plain(a["value"]) for a in root["attributes"]}
    assert root["name"] == "chat smollm2-135m" and root["kind"] == 1 and "parentSpanId" not in root
    assert re.fullmatch("[0-9a-f]{32}", root["traceId"]) and re.fullmatch("[0-9a-f]{16}", root["spanId"])
    right = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "glassbox", "gen_ai.request.model": "smollm2-135m",
        "gen_ai.request.seed": 7, "gen_ai.request.max_tokens": 64, "gen_ai.request.temperature": 0.8,
        "gen_ai.request.top_k": 40, "gen_ai.request.stop_sequences": ["\n\n", "Ünde"],
        "gen_ai.response.id": run.run_id, "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 6, "gen_ai.usage.output_tokens": 4, "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": f"{SECRET}?"}]}],
        "gen_ai.output.messages": [
            {"role": "assistant", "parts": [{"type": "text", "content": "the text as delivered"}],
             "finish_reason": "stop"}
        ],
    }  # fmt: skip
    assert {key: told[key] for key in right} == right
    begin = int(root["startTimeUnixNano"])
    at = {s["name"]: (int(s["startTimeUnixNano"]) - begin, int(s["endTimeUnixNano"]) - begin) for s in parts}
    assert begin == run.created_ms * 10**6 and int(root["endTimeUnixNano"]) - begin == 900_000_000
    assert at == {"queue": (0, 1_000), "prefill": (1_000, 40_000_000), "decode": (40_000_000, 900_000_000)}
    assert {(s["traceId"], s["parentSpanId"]) for s in parts} == {(root["traceId"], root["spanId"])}
    assert len({s["spanId"] for s in (root, *parts)}) == 4


def test_attributes_have_the_types_of_otlp() -> None:
    values = {"yes": True, "n": 2**40, "x": 0.5, "none": None, "list": ["a", False]}
    assert {a["key"]: a["value"] for a in attributes(values)} == {
        "yes": {"boolValue": True}, "n": {"intValue": "1099511627776"}, "x": {"doubleValue": 0.5},
        "list": {"arrayValue": {"values": [{"stringValue": "a"}, {"boolValue": False}]}},
    }  # fmt: skip


def test_a_seed_of_64_bits_is_not_squeezed_into_63(tmp_path: Path) -> None:
    (root, *_) = spans(record(Recorder(None)).export("otlp", tmp_path / "x.json"))
    told = {a["key"]: plain(a["value"]) for a in root["attributes"]}
    assert "gen_ai.request.seed" not in told and told["glassbox.seed"] == "18446744073709551613"


def test_content_that_was_not_retained_is_in_no_export(tmp_path: Path) -> None:
    with open_store(tmp_path / "s.db") as store:
        for retain in ("ids", "none"):
            record(Recorder(store, retain=retain))  # type: ignore[arg-type]
    for to in FORMATS:
        out = tmp_path / to
        export(sources(tmp_path / "s.db"), to, out)
        for file in out.iterdir() if out.is_dir() else [out]:
            data = file.read_bytes()
            assert data and b"heron" not in data and b"as delivered" not in data, file
            assert to in ("html", "run") or b" tok" not in data, file  # these say "token" themselves
    tokens = [e for e in json.loads((tmp_path / "perfetto").read_text())["traceEvents"] if e["name"] == "model"]
    assert sorted(set(map(tuple, (e["args"] for e in tokens)))) == [("step",), ("step", "id", "logprob")]
    for root in (span for span in spans(tmp_path / "otlp") if "parentSpanId" not in span):
        assert not {a["key"] for a in root["attributes"]} & {"gen_ai.input.messages", "gen_ai.output.messages"}


def test_the_timeline_adds_up(tmp_path: Path) -> None:
    run = record(Recorder(None))
    told = json.loads(run.export("perfetto", tmp_path / "x.json").read_text())
    events = [e for e in told["traceEvents"] if e["ph"] == "X"]
    assert {e["ph"] for e in told["traceEvents"]} == {"M", "X"}
    request = {e["name"]: (e["ts"] - run.created_ms * 1000, e["dur"]) for e in events if e["tid"] == 1}
    assert request == {
        "queue": (0, 1),
        "prefill": pytest.approx((1, 39_999), abs=0.3),
        "decode": pytest.approx((40_000, 860_000), abs=0.3),
    }  # fmt: skip
    tokens = [e for e in events if e["tid"] == 2]
    assert [e["args"] for e in tokens] == [
        {"step": i, "id": s.id, "logprob": s.choice.logprob_raw, "text": s.text} for i, s in enumerate(run.steps)
        for _ in range(2)
    ]  # fmt: skip
    for kind, right in (("model", [s.model_ns for s in run.steps]), ("policy", [s.policy_ns for s in run.steps])):
        assert [round(e["dur"] * 1000) for e in tokens if e["name"] == kind] == right
    assert tokens[1]["ts"] + tokens[1]["dur"] == pytest.approx(run.created_ms * 1000 + 40_000, abs=0.5)
    for a, b in pairwise(tokens):
        assert a["ts"] + a["dur"] == pytest.approx(b["ts"], abs=0.5)


# --- run ---


def test_a_run_in_memory_takes_along_what_its_trace_lacks(tmp_path: Path) -> None:
    """The mark is sealed with the rest: to lack something is not to be damaged."""
    run = replace(record(Recorder(None)), problem="incomplete: cannot be written: the disk is full")
    with open_store(run.export("run", tmp_path / "x.db"), readonly=True) as store:
        assert store.verify() is None and store.load().problem == run.problem


def test_a_run_alone_is_the_run_bit_for_bit(tmp_path: Path) -> None:
    kinds(tmp_path / "s.db")
    everything = sources(tmp_path / "s.db")
    for source in everything:
        (path,) = export([source], "run", tmp_path / f"{source.run.run_id}.db")
        with open_store(path, readonly=True) as store:
            assert store.verify() is None
            assert copy.same(store.rows(), source.rows)
            assert store.load().to_dict() == source.run.to_dict()
        assert path.stat().st_mode & 0o777 == 0o600
    export(everything, "run", tmp_path / "all.db")
    with open_store(tmp_path / "all.db", readonly=True) as store:
        assert {r.id for r in store.runs(None)} == {s.run.run_id for s in everything}
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(("-wal", "-shm")) and not p.name.startswith("s.db")]


def test_a_run_in_memory_becomes_the_rows_its_store_has(tmp_path: Path) -> None:
    kinds(tmp_path / "s.db")
    for source in sources(tmp_path / "s.db"):
        if source.run.retain == "none":
            with pytest.raises(PromptError, match="keeps no ids"):
                source.run.export("run", tmp_path / "none.db")
        else:
            assert copy.same(Source(source.run).rows, source.rows), source.run


# --- what is written, and where ---


@pytest.mark.parametrize("to", FORMATS)
def test_exports_are_private(tmp_path: Path, to: str) -> None:
    """As the store they come from: they hold prompts."""
    kinds(tmp_path / "s.db")
    before = os.umask(0o022)
    try:
        (path,) = export(sources(tmp_path / "s.db")[:1], to, tmp_path / "out")
    finally:
        os.umask(before)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    assert files and all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert not path.is_dir() or path.stat().st_mode & 0o777 == 0o700


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    run = record(Recorder(None))
    (tmp_path / "x").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for to in FORMATS:
        for name in ("x", "link"):
            with pytest.raises(ParameterError, match="a path where nothing is yet"):
                run.export(to, tmp_path / name)
    assert (tmp_path / "x").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(ParameterError, match="to is 'docx', but must be one of html, json"):
        run.export("docx", tmp_path / "y")
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "no" / "y"))):
        run.export("json", tmp_path / "no" / "y")


@pytest.mark.parametrize("to", FORMATS)
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exports.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        record(Recorder(None)).export(to, tmp_path / "x")
    assert caught.value.filename == str(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.slow
def test_a_file_that_may_not_grow_leaves_nothing_behind(tmp_path: Path, to: str) -> None:
    """Through the command line, with a limit of the kernel's own."""
    store, room = tmp_path / "s.db", tmp_path / "room"
    room.mkdir()
    with open_store(store) as opened:
        record(Recorder(opened))
    code = (
        "import resource, sys; from glassbox.cli.main import main; import pyarrow.parquet\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600)); main(sys.argv[1:])"
    )
    words = ["export", "last", "--to", to, "--out", str(room / "x"), "--store", str(store)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert list(room.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    runs, store = kinds(tmp_path / "s.db"), str(tmp_path / "s.db")
    monkeypatch.chdir(tmp_path)
    one, two = runs[0].run_id, runs[1].run_id
    assert cli(["export", one, "--to", "json", "--store", store]) == 0
    assert json.loads(Path(f"{one}.json").read_text())["run_id"] == one
    assert cli(["export", one, two, one, "--to", "html", "--out", "pages", "--store", store]) == 0
    assert {p.name for p in Path("pages").iterdir()} == {f"{one}.html", f"{two}.html"}
    assert cli(["export", one, two, "--to", "perfetto", "--out", "both.json", "--store", store]) == 0
    assert {e["pid"] for e in json.loads(Path("both.json").read_text())["traceEvents"]} == {1, 2}
    assert capsys.readouterr().out.split() == [f"{one}.json", f"pages/{one}.html", f"pages/{two}.html", "both.json"]
    for words in (["zzz", "--to", "json"], [one, "--to", "docx"], [one], [one, "--to", "json"]):
        assert cli(["export", *words, "--store", store]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "Traceback" not in err


# --- safetensors ---


def test_the_reader_of_safetensors_reads_what_is_written() -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "resid_post.10": rng.standard_normal((3, 5)).astype(np.float32), "empty": np.zeros((0, 4), np.float16),
        "ids": np.arange(7), "big-endian": np.arange(4, dtype=">i4"), "turned": np.arange(6.0).reshape(2, 3).T,
    }  # fmt: skip
    data = safetensors_bytes(tensors, {"run": "x"})
    found = safetensors.numpy.load(data)
    assert set(found) == set(tensors)
    for name, value in tensors.items():
        assert np.array_equal(found[name], value) and found[name].shape == value.shape
    assert int.from_bytes(data[:8], "little") % 8 == 0
    with pytest.raises(ParameterError, match="of a type among"):
        safetensors_bytes({"x": np.array(["a"])})
