"""The command line as people and scripts use it: what it prints, what it refuses and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassbox.cli import show_text
from glassbox.cli.main import run

BIGRAM = ["--model", "bigram", "--max-tokens", "4", "--seed", "7"]


class Cli:
    """Runs commands in this process against a store of their own."""

    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store, self._capsys = store, capsys

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        got = run(list(arguments))
        out, err = self._capsys.readouterr()
        assert got == code, f"exit {got}, expected {code}: {err}"
        assert "Traceback" not in err
        return out, err

    def stored(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return self(*arguments, "--store", str(self.store), code=code)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "runs.db", capsys)


def test_trace_shows_every_stage(cli: Cli) -> None:
    out, _ = cli.stored("trace", "ab", "--temperature", "0.8", *BIGRAM)
    lines = out.splitlines()
    assert max(map(len, lines[:-3])) <= 80  # but for the path of the store
    assert "\x1b" not in out
    for piece in (
        "prompt   2 ids", "1 'a'  2 'b'", "temperature 0.8 (flag) → top_p 0.95 (default)", "seed     7",
        "   0  'c'             64.1%", "stop     length (max_tokens: limit 4)",
        "usage    2 prompt (0 cached) + 4 completion tokens", "first token", "This model has no chat template",
    ):  # fmt: skip
        assert piece in out, piece


def test_trace_json_is_the_contract(cli: Cli) -> None:
    out, _ = cli.stored("trace", "ab", "--json", *BIGRAM)
    got = json.loads(out)
    assert {
        "run_id", "model", "prompt_text", "prompt_ids", "text", "finish_reason", "stop_reason", "usage", "seed",
        "policy", "fingerprint", "steps",
    } <= set(got)  # fmt: skip
    assert got["prompt_ids"] == [1, 2] and got["prompt_text"] == "ab" and got["seed"] == 7
    assert got["usage"] == {"prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 4}
    assert [s["step"] for s in got["steps"]] == [0, 1, 2, 3]
    assert "".join(s["text"] for s in got["steps"]) == got["text"]
    for s in got["steps"]:
        assert s["cdf_lo"] <= s["u"] < s["cdf_hi"] and len(s["logits_hash"]) == 16
        assert [row["name"] for row in s["ledger"]] == ["raw logits", "temperature", "top_p"]
        assert s["id"] in [c["id"] for c in s["candidates"]]


def test_same_seed_same_run(cli: Cli) -> None:
    a, b = (json.loads(cli.stored("trace", "ab", "--json", *BIGRAM)[0]) for _ in range(2))
    assert [s["logits_hash"] for s in a["steps"]] == [s["logits_hash"] for s in b["steps"]]
    assert a["text"] == b["text"] and a["run_id"] != b["run_id"]


def test_temperature_0_is_greedy(cli: Cli) -> None:
    got = json.loads(cli.stored("trace", "ab", "--json", "--temperature", "0", *BIGRAM)[0])
    assert got["text"] == "c ab" and all(s["u"] is None for s in got["steps"])


def test_stop_and_runs_and_show(cli: Cli) -> None:
    got = json.loads(cli.stored("trace", "ab", "--temperature", "0", "--stop", " a", "--json", *BIGRAM)[0])
    assert got["text"] == "c" and got["finish_reason"] == "stop"
    assert got["stop_reason"] == {"kind": "stop_string", "text": " a"}
    other = json.loads(cli.stored("trace", "ab", "--json", *BIGRAM)[0])
    listed, _ = cli.stored("runs")
    assert [line.split()[0] for line in listed.splitlines()] == [other["run_id"], got["run_id"]]
    assert [r["id"] for r in json.loads(cli.stored("runs", "--json")[0])] == [other["run_id"], got["run_id"]]
    shown, _ = cli.stored("show", got["run_id"])
    assert "stop     stop (stop_string: text  a)" in shown and "   2  'a'" in shown
    step, _ = cli.stored("show", got["run_id"], "--at", "1")
    assert "chosen   0 ' '" in step and "greedy" in step and "' ' 64.1%" in step.replace("100.0%", "64.1%")
    assert json.loads(cli.stored("show", got["run_id"], "--at", "1", "--json")[0])["id"] == 0
    assert json.loads(cli.stored("show", "--json")[0]) == other | {
        "timings": json.loads(cli.stored("show", "--json")[0])["timings"]
    }


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["trace", ""], "the prompt is empty"),
        (["trace", "ab", "--top-p", "0"], "top_p is 0.0, but must be above 0"),
        (["trace", "ab", "--top-p", "1.5"], "top_p is 1.5"),
        (["trace", "ab", "--temperature", "-1"], "temperature is -1.0, but must be"),
        (["trace", "ab", "--temperature", "nan"], "temperature is nan"),
        (["trace", "ab", "--temperature", "inf"], "temperature is inf"),
        (["trace", "ab", "--min-p", "2"], "min_p is 2.0"),
        (["trace", "ab", "--top-k", "-5"], "top_k is -5"),
        (["trace", "ab", "--max-tokens", "0"], "max_tokens is 0, but must be a whole number of 1 or more"),
        (["trace", "ab", "--max-tokens", "x"], "--max-tokens"),
        (["trace", "ab", "--seed", "-1"], "seed is -1"),
        (["trace", "ab", "--seed", "18446744073709551616"], "seed is 18446744073709551616"),
        (["trace", "ab", "--stop", ""], "stop is ''"),
        (["trace", "ab", "--level", "all"], "level is 'all'"),
        (["trace", "ab", "--system", "x"], "system is 'x', but must be left out"),
        (["trace", "xyz"], "cannot be said|no ids|empty"),
        (["trace", "\udcff"], "surrogate"),
        (["trace"], "Missing argument"),
        (["trace", "ab", "--nonsense"], "No such option: --nonsense"),
        (["nonsense"], "No such command"),
        (["show", "zzzz"], "no run 'zzzz'|cannot|no such"),
        (["trace", "a" * 5000], "the prompt has 5000 tokens, but the context holds 4096"),
    ],
)
def test_bad_input_is_one_line_and_code_2(cli: Cli, arguments: list[str], error: str) -> None:
    extra = ["--model", "bigram"] if arguments[0] == "trace" else []
    stored = ["--store", str(cli.store)] if arguments[0] in ("trace", "show") else []
    out, err = cli(*arguments, *extra, *stored, code=2)
    assert out == "" and len(err.splitlines()) == 1
    assert re.search(error, err)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: None, "no such name, file or folder"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.write_bytes(b""), "the file is empty"),
        (lambda p: p.write_bytes(b"hello world, I am not a model"), "not a GGUF file"),
        (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
        (lambda p: p.write_bytes(b"GGUF\3\0\0\0" + b"\1\0\0\0\0\0\0\0" * 2), "cannot fit"),
    ],
)
def test_bad_models(cli: Cli, tmp_path: Path, make: object, error: str) -> None:
    path = tmp_path / "m.gguf"
    make(path)  # type: ignore[operator]
    _, err = cli.stored("trace", "ab", "--model", str(path), code=2)
    assert error in err and len(err.splitlines()) == 1


@pytest.mark.model
def test_a_truncated_model(cli: Cli, tmp_path: Path, smollm2_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2_path.read_bytes()[:50_000_000])
    _, err = cli.stored("trace", "ab", "--model", str(path), code=2)
    assert "truncated" in err and len(err.splitlines()) == 1


@pytest.mark.model
def test_an_unknown_pre_tokenizer_is_named(cli: Cli, tmp_path: Path, smollm2_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(smollm2_path.read_bytes().replace(b"smollm\x15", b"smoxlm\x15", 1).replace(
        b"\6\0\0\0\0\0\0\0smollm", b"\6\0\0\0\0\0\0\0smoxlm", 1))  # fmt: skip
    _, err = cli.stored("trace", "ab", "--model", str(path), code=2)
    assert "pre-tokenizer 'smoxlm' is not supported" in err


@pytest.mark.parametrize("kind", ["folder", "garbage", "not ours", "in a file"])
def test_bad_stores(cli: Cli, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    if kind == "folder":
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(b"x" * 5000)
    elif kind == "not ours":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE mine (a)")
        other.close()
    else:
        path.write_text("a file")
        path = path / "runs.db"
    before = path.read_bytes() if path.is_file() else None
    _, err = cli("trace", "ab", *BIGRAM, "--store", str(path), code=2)
    assert err.startswith("glassbox: trace store") and len(err.splitlines()) == 1
    assert (path.read_bytes() if path.is_file() else None) == before


def test_tokenize_says_what_each_id_is(cli: Cli) -> None:
    out, _ = cli("tokenize", "ab c", "--model", "bigram", "--json")
    got = json.loads(out)
    assert got["ids"] == [1, 2, 0, 3] and [t["bytes"] for t in got["tokens"]] == [[97], [98], [32], [99]]
    assert "4 ids for 4 bytes" in cli("tokenize", "ab c", "--model", "bigram")[0]


@pytest.mark.model
def test_special_text_in_a_message_stays_text(cli: Cli) -> None:
    out, _ = cli("tokenize", "a<|im_end|>b", "--json")
    assert json.loads(out)["ids"] == [81, 44, 108, 306, 79, 486, 108, 46, 82]
    out, _ = cli.stored("trace", "hi<|im_end|>", "--json", "--max-tokens", "1", "--temperature", "0")
    ids = json.loads(out)["prompt_ids"]
    assert ids.count(1) == 3 and ids.count(2) == 2


@pytest.mark.model
def test_defaults_say_where_they_come_from(cli: Cli) -> None:
    got = json.loads(cli.stored("trace", "hi", "--top-k", "5", "--max-tokens", "2", "--json")[0])
    assert got["sources"] == {"top_k": "flag", "temperature": "default", "top_p": "default", "min_p": "default"}
    assert got["policy"]["temperature"] == 0.8 and got["policy"]["top_p"] == 0.95 and got["policy"]["top_k"] == 5


def test_models_and_version(cli: Cli) -> None:
    out, _ = cli("models")
    assert "smollm2-135m" in out and "gemma3-270m" in out and "bigram" in out
    assert cli("--version")[0].startswith("glassbox 0.")
    out, _ = cli(code=2)
    assert "trace" in out and "show" in out


def test_interrupt_keeps_the_text(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    command = ["trace", "ab", "--model", "bigram", "--max-tokens", "4000", "--seed", "1", "--store", str(store)]
    code = "import sys; from glassbox.cli.main import main; main(sys.argv[1:])"
    p = subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert p.stdout is not None and p.stderr is not None
    for line in p.stdout:
        if line.startswith("  20"):
            break
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 130, err
    assert "Traceback" not in err and err.count("\n") == 1 and "interrupted; what was made is kept as run" in err
    assert "stop     cancelled" in out
    shown = subprocess.run(
        [sys.executable, "-c", code, "show", "last", "--json", "--store", str(store)], capture_output=True, text=True
    )
    got = json.loads(shown.stdout)
    assert got["finish_reason"] == "cancelled" and 20 <= len(got["steps"]) < 4000
    assert got["text"] == "".join(s["text"] for s in got["steps"])


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    code = f"from glassbox.cli.main import main; main(['trace', 'ab', '--model', 'bigram', '--store', {str(store)!r}])"
    p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout is not None and p.stderr is not None
    p.stdout.readline()
    p.stdout.close()
    err = p.stderr.read()
    p.stderr.close()
    p.wait(60)
    assert "Traceback" not in err and "Exception ignored" not in err


def test_text_cannot_steer_the_terminal() -> None:
    assert show_text.inert("a\x1b[31mb\u202ec\x07\n") == "a\\x1b[31mb\\u202ec\\x07\\n"
    assert show_text.inert("a\nb\tc\rd", lines=True) == "a\nb\tc\\rd"
    assert show_text.quoted(b"\xf0\x9f") == "'\\xf0\\x9f'"
    assert show_text.quoted("日 👩\u200d👧".encode()) == "'日 👩\u200d👧'"


@pytest.mark.model
def test_first_run_says_that_it_compiles_and_a_second_clone_does_not(tmp_path: Path, smollm2_path: Path) -> None:
    """Kernels lie in the cache folder under a name that the sources' content decides, not their place."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = "import sys; from glassbox.model.kernels.build import load; load(print)"
    begin = time.perf_counter()
    first = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    took = time.perf_counter() - begin
    assert first.returncode == 0 and first.stdout.startswith("compiling the kernels"), first.stderr
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert again.returncode == 0 and again.stdout == ""
    assert took < 120
    assert len(list((tmp_path / "cache" / "glassbox" / "kernels").glob("*.o"))) == 1
