"""Fetches models through huggingface_hub. Comes in: hf:owner/repo[/file.gguf]. Goes out: a path in its cache.

The library is imported here alone, and only when a name asks for it. HF_ENDPOINT and the like are honoured.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from glassbox.errors import GlassboxError, ModelNotFound
from glassbox.weights.hf import CONFIG, GENERATION, INDEX, TOKENIZER, WHOLE, shards_of
from glassbox.weights.kinds import refuse_adapter, refuse_other_weights
from glassbox.weights.known import Progress
from glassbox.weights.split import part_names

PREFIX = "hf:"
_TEMPLATE = re.compile(r"additional_chat_templates/[\w.-]+\.jinja")


def fetch(name: str, progress: Progress) -> Path:
    """The file or folder that `name` means, downloaded unless the hub's cache has it.

    Of a repository its only .gguf (all parts of it, where it was split), else config.json, tokenizer and safetensors.
    """
    owner, _, rest = name.removeprefix(PREFIX).partition("/")
    repo, _, file = rest.partition("/")
    if not owner or not repo:
        raise ModelNotFound(name, "must read hf:owner/repo or hf:owner/repo/file.gguf")
    try:
        import huggingface_hub
    except ImportError:
        raise ModelNotFound(name, "needs the package huggingface-hub: pip install huggingface-hub") from None
    endpoint = os.environ.get("HF_ENDPOINT") or None  # the library reads it once, when it is imported
    called = f"{owner}/{repo}"
    get = partial(_download, huggingface_hub, called, endpoint, progress)
    with _one_sentence(name), _quiet():
        files = part_names(file) if file else []
        if not files or not all(isinstance(huggingface_hub.try_to_load_from_cache(called, f), str) for f in files):
            kept = None if file else _kept(called, Path(huggingface_hub.constants.HF_HUB_CACHE))
            try:
                if huggingface_hub.constants.HF_HUB_OFFLINE and kept is not None:
                    return kept
                _reach(name, endpoint or huggingface_hub.constants.ENDPOINT)
            except ModelNotFound:
                if kept is None:
                    raise
                return kept  # what was fetched last, as far as anyone can tell
        if not file:
            progress("asking the hub", 0, None)
            listed = huggingface_hub.HfApi(endpoint=endpoint).list_repo_files(called)
            files = _only_gguf(name, listed)
            if not files:
                return _folder(name, set(listed), get)
        first, *_ = map(get, files)
        return first


def _kept(repo: str, cache: Path) -> Path | None:
    """The repository's file or folder as the hub's cache has it, if all of it is there."""
    root = cache / f"models--{repo.replace('/', '--')}"
    try:
        snapshot = root / "snapshots" / (root / "refs" / "main").read_text().strip()
    except OSError:
        return None
    files = [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()]
    if ggufs := sorted({part_names(f)[0] for f in files if f.lower().endswith(".gguf")}):
        whole = len(ggufs) == 1 and set(part_names(ggufs[0])) <= set(files)
        return snapshot / ggufs[0] if whole else None
    if CONFIG not in files or not {WHOLE, INDEX} & set(files):
        return None
    weights = [WHOLE] if WHOLE in files else shards_of(snapshot)
    return snapshot if set(weights) <= set(files) else None


def cached() -> Iterator[tuple[str, int]]:
    """What the hub's cache holds that can be loaded: name and bytes. Asks nobody."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*/snapshots/*")):
        repo = PREFIX + folder.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        ggufs = [p for p in sorted(folder.rglob("*.gguf")) if p.is_file()]
        for p in ggufs:
            yield f"{repo}/{p.relative_to(folder).as_posix()}", p.stat().st_size
        if not ggufs and (folder / CONFIG).is_file():
            sizes = [p.stat().st_size for p in folder.glob("*.safetensors") if p.is_file()]
            if sizes:
                yield repo, sum(sizes)


def _download(library: Any, repo: str, endpoint: str | None, progress: Progress, file: str) -> Path:
    bar = _bar(f"downloading {file}", progress)
    # Older versions of the library draw a bar of their own and take no other.
    takes_bar = "tqdm_class" in inspect.signature(library.hf_hub_download).parameters
    options: dict[str, Any] = {"tqdm_class": bar} if takes_bar else {}
    return Path(library.hf_hub_download(repo, file, endpoint=endpoint, **options))


def _folder(name: str, listed: set[str], get: Callable[[str], Path]) -> Path:
    """Fetch what a folder needs to be loaded; nothing else of the repository."""
    refuse_adapter(Path(name), listed)
    if CONFIG not in listed or listed.isdisjoint((WHOLE, INDEX)):
        refuse_other_weights(Path(name), listed)
        why = "the repository holds no .gguf file, and no config.json with model.safetensors"
        raise ModelNotFound(name, why)
    for template in sorted(f for f in listed if _TEMPLATE.fullmatch(f)):
        get(template)
    paths = [get(f) for f in (CONFIG, GENERATION, *TOKENIZER) if f in listed]
    weights = [WHOLE]
    if WHOLE not in listed:
        paths.append(get(INDEX))
        weights = list(shards_of(paths[-1].parent))
    paths += map(get, weights)
    if len({p.parent for p in paths}) > 1:
        raise ModelNotFound(name, "the repository changed while it was fetched; fetch it again")
    return paths[0].parent


def _reach(name: str, endpoint: str) -> None:
    """Find out at once what the library tries for half a minute to find out. Behind a proxy only it can know."""
    at = urlsplit(endpoint)
    if at.hostname is None or not getproxies().keys().isdisjoint(("http", "https", "all")):
        return
    try:
        socket.create_connection((at.hostname, at.port or (80 if at.scheme == "http" else 443)), timeout=5).close()
    except OSError as e:
        raise ModelNotFound(name, f"the hub cannot be reached: {e.strerror or e}") from None


def _only_gguf(name: str, files: list[str]) -> list[str]:
    """The parts of the only GGUF file there is; none where there is none."""
    found = sorted({part_names(f)[0] for f in files if f.lower().endswith(".gguf")})
    if len(found) > 1:
        raise ModelNotFound(name, f"holds {len(found)} .gguf files, name one: {', '.join(found)}")
    return part_names(found[0]) if found else []


def _bar(stage: str, progress: Progress) -> type[Any]:
    """A tqdm that draws nothing and tells `progress` instead."""
    base: type[Any] = import_module("huggingface_hub.utils").tqdm
    reached = 0

    def init(self: Any, *args: Any, **options: Any) -> None:
        base.__init__(self, *args, **{**options, "disable": True})

    def update(self: Any, n: float | None = 1) -> None:
        nonlocal reached
        self.n += n or 0
        if self.n > reached:  # some fetches have two bars: what came, what was put together
            reached = int(self.n)
            progress(stage, reached, self.total)

    return type("Bar", (base,), {"__init__": init, "update": update})


@contextmanager
def _quiet() -> Iterator[None]:
    """The library logs each of its retries over several lines; here the one error at the end says it."""
    import_module("huggingface_hub.utils.logging")  # sets a level of its own when it is first imported
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Turns whatever the library raises into ModelNotFound."""
    from huggingface_hub import errors

    try:
        yield
    except GlassboxError:
        raise
    except errors.GatedRepoError:
        raise ModelNotFound(name, "is gated: accept its terms on the hub, then `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFound(name, "no such repository on the hub, or it is private") from None
    except errors.LocalEntryNotFoundError:
        raise ModelNotFound(name, "is not in the cache, and the hub cannot be reached") from None
    except errors.EntryNotFoundError:
        raise ModelNotFound(name, "the repository holds no such file") from None
    except Exception as e:  # its HTTP client, and with it the errors, differ from version to version
        words = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise ModelNotFound(name, f"cannot be fetched from the hub: {words}") from None
