"""What a program holds: a `Model` that encodes, generates, streams and looks inside. `load` makes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from glassbox import arguments as check
from glassbox.cache.pages import Cache
from glassbox.cache.prefix import PrefixStore
from glassbox.choose import check_seed, draw_seed
from glassbox.engine import Engine
from glassbox.errors import ParameterError, PromptError, Unsupported
from glassbox.generation import Branch, Generation, Provenance, Request, Step
from glassbox.model.bigram import METADATA, BigramModel
from glassbox.model.intervene import Intervention, check_interventions
from glassbox.model.model import AnyModel, TransformerModel, check_ids, forward
from glassbox.policy.policy import Policy
from glassbox.provenance import folder_metadata, model_digest, tokenizer_digest
from glassbox.stream import Stream
from glassbox.text.absent import NoTokenizer
from glassbox.text.segments import Segment
from glassbox.text.template import ChatTemplate
from glassbox.text.templates import GIVEN
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.trace.record import Recorder, Run
from glassbox.trace.rows import Level, Retain
from glassbox.types import F32, Messages
from glassbox.version import VERSION
from glassbox.weights.gguf import Gguf
from glassbox.weights.hf import Folder, eos_ids, has_tokenizer
from glassbox.weights.kinds import refuse_what_is_no_model
from glassbox.weights.known import Progress
from glassbox.weights.opening import open_checkpoint
from glassbox.weights.source import resolve

if TYPE_CHECKING:
    from glassbox.trace.store import Store

MAX_TOKENS = 256  # generated when nothing else is said
Announce = Callable[[str], None]


def load(
    name: str | Path = "smollm2-135m", *, threads: int | None = None, kv: str = "f32", kv_limit: int | None = None,
    announce: Announce | None = None, progress: Progress | None = None,
) -> Model:  # fmt: skip
    """A model by name ("smollm2-135m", "bigram", "hf:owner/repo"), or by path: a .gguf file, or a folder with
    config.json and safetensors.

    threads: default GLASSBOX_THREADS or the physical cores. kv: how keys and values are kept, "f32" (exact), "f16" or
    "q8"; kv_limit: bytes they may take together. announce hears of slow first steps, progress of downloads.
    Raises ModelNotFound, ModelFormatError, Unsupported, KernelError, ParameterError.
    """
    called, limit = check.model_name(name), check.bytes_limit("kv_limit", kv_limit)
    if called == "bigram":
        return Model("bigram", BigramModel(announce), Tokenizer.from_gguf(METADATA), METADATA, "bigram")
    file = open_checkpoint(resolve(os.fspath(name), progress=progress))
    refuse_what_is_no_model(file)
    transformer = TransformerModel(file, threads=threads, kv=kv, kv_limit=limit, announce=announce)
    return Model(called, transformer, tokenizer_of(file), said_by(file), model_digest(file.files), file.path)


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer of a model, or of a file that holds a vocabulary and no weights: a .gguf, a tokenizer.json or a
    tokenizer.model. Raises as `load` does.
    """
    path = _path_of(name)
    if path is None:
        return Tokenizer.from_gguf(METADATA)
    return Tokenizer.from_folder(path) if _of_folder(path) else Tokenizer.from_gguf(open_checkpoint(path).metadata)


def metadata_of(name: str | Path) -> Mapping[str, Any]:
    """The metadata of a model's file, or what a folder says under the same keys. Raises as `load` does."""
    path = _path_of(name)
    if path is None:
        return METADATA
    if _of_folder(path):
        return folder_metadata(path if path.is_dir() else path.parent, {})
    return open_checkpoint(path).metadata


def _of_folder(path: Path) -> bool:
    """Whether a path is of a folder as transformers writes it, or of the tokenizer in one."""
    return path.is_dir() or path.name in ("tokenizer.json", "tokenizer.model")


def _path_of(name: str | Path) -> Path | None:
    """None for what is built in."""
    return None if str(name) == "bigram" else resolve(str(name))


def said_by(file: Gguf | Folder) -> Mapping[str, Any]:
    """The metadata of a GGUF file, or what a folder says under the same keys."""
    return folder_metadata(file.path, file.generation_config) if isinstance(file, Folder) else file.metadata


def tokenizer_of(file: Gguf | Folder) -> Tokenizer:
    """Of a folder that holds none, or one that is not supported, a NoTokenizer. Raises as `load` does."""
    if isinstance(file, Gguf):
        return Tokenizer.from_gguf(file.metadata)
    if not has_tokenizer(file.path):
        return NoTokenizer(eos_ids(file))
    try:
        return Tokenizer.from_folder(file.path)
    except Unsupported as e:
        return NoTokenizer(eos_ids(file), e)


class Model:
    """A model with its tokenizer and its engine. Streams may run side by side, from one thread or from several."""

    def __init__(
        self, name: str, model: AnyModel, tokenizer: Tokenizer, metadata: Mapping[str, Any], sha256: str,
        path: Path | None = None,
    ) -> None:  # fmt: skip
        self.name, self.path, self.tokenizer, self.metadata = name, path, tokenizer, metadata
        self.model, self.sha256 = model, sha256
        if len(tokenizer.vocab) > model.vocab_size:
            raise PromptError(f"the tokenizer has {len(tokenizer.vocab)} tokens, but the model only {model.vocab_size}")
        self.engine = Engine(model, prefix_store(model, sha256))

    @property
    def context(self) -> int:
        """Positions the model was made for."""
        return self.model.context

    def encode(self, text: str, *, specials: bool = False, add_special: bool = True) -> Encoding:
        """Text → ids as they are, without a chat template; BOS where the file says so. See Tokenizer.encode."""
        return self.tokenizer.encode(check.string("text", text), specials=specials, add_special=add_special)

    def encode_chat(
        self, messages: Messages, *, now: datetime | None = None, **chat: Unpack[check.ChatOptions]
    ) -> Encoding:
        """Messages → ids through the model's chat template, ready for the assistant's turn. chat: as for `stream`.

        Raises TemplateError, ParameterError, and PromptError where the model has no template.
        """
        options = check.chat_options(chat, messages=True)
        return self._chat(check.message_list(messages), check.clock("now", now), options)[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text that ids say. Raises ParameterError, PromptError."""
        return self.tokenizer.decode(check.id_list(ids, self.model.vocab_size))

    def logits(self, ids: Sequence[int]) -> F32:
        """float32 [T, V]: row t is about the token after ids[t]. Raises PromptError, ContextOverflow."""
        checked = check.id_list(ids, self.model.vocab_size)
        with self.engine.lock, fresh_cache(self.model) as cache:
            return forward(self.model, checked, cache, rows="all")[0]

    def observe(self, ids: Sequence[int], points: str | Iterable[str]) -> dict[str, F32]:
        """The inner values at `points` (see model/points.py), each [T, …]. Raises UnknownPoint, PromptError."""
        checked, look = check.id_list(ids, self.model.vocab_size), check.string_list("points", points)
        with self.engine.lock, fresh_cache(self.model) as cache:
            seen = forward(self.model, checked, cache, look)[1]
        return {name: seen[name] for name in look}

    def generate(self, prompt: str | None = None, **asked: Any) -> Run:
        """Generate to the end. Takes what `stream` takes."""
        stream = self.stream(prompt, **asked)
        for _ in stream:
            pass
        return stream.run

    def stream(
        self, prompt: str | None = None, *, messages: Messages | None = None, ids: Sequence[int] | None = None,
        policy: Policy | None = None, seed: int | None = None, max_tokens: int | None = MAX_TOKENS,
        stop: str | Sequence[str] = (), stop_ids: Sequence[int] = (), ignore_eos: bool = False,
        sources: Mapping[str, str] | None = None, now: datetime | None = None,
        reuse: bool = True, salt: str = "", speculate: bool = False, time_limit: float | None = None,
        store: Store | None = None, level: Level = "look", retain: Retain = "text", parent: str | None = None,
        interventions: Sequence[Intervention] = (), **chat: Unpack[check.ChatOptions],
    ) -> Stream:  # fmt: skip
        """Generate, yielding each token's `Step` as it is made; `.run` is the whole. Exactly one of:

        prompt: text as it is, no template. messages: through the chat template. ids: as they are.

        With messages: tools, documents: lists of objects for the template. template: the name of one of the model's, or
        a template's text. template_kwargs: further variables for it. continue_final: go on with the last message, the
        assistant's. add_generation_prompt: open the assistant's turn (unless continue_final).

        policy: Policy() when not given. seed: drawn and recorded when not given. stop: strings; stop_ids: ids.
        max_tokens: None is until the context ends.
        reuse: whether what earlier prompts computed may be used and this one kept; with a salt only among equal salts.
        speculate: check guessed ids in one pass (changes no id). time_limit: seconds after which it ends.
        sources: where each parameter came from, for the trace. now: the time a template may ask for.
        store: where to record (nowhere when not given), level and retain: how much of it. parent: the id of the run
        whose prompt this one edits. interventions: what is done to inner values (model/intervene.py).
        Raises ParameterError, PromptError, TemplateError, ContextOverflow at once, what the engine meets later.
        """
        vocab_size = self.model.vocab_size
        text, talk, listed = check.one_prompt(prompt, messages, ids, vocab_size)
        options = check.chat_options(chat, messages=talk is not None)
        encoding, clock, template = self._encoded(text, talk, listed, check.clock("now", now), options)
        check_ids(self.model, encoding.ids, 0)
        stops = check.string_list("stop", stop)
        if stops and isinstance(self.tokenizer, NoTokenizer):
            raise ParameterError("stop", stop, f"left out: {self.tokenizer.refusal()}")
        request = Request(
            model=self.name,
            encoding=encoding,
            policy=check.policy_or_default(policy).for_model(vocab_size, self.tokenizer.eos_ids),
            seed=draw_seed() if seed is None else check_seed(seed),
            max_tokens=check.token_limit(max_tokens, self.context),
            stop=stops,
            stop_ids=tuple(check.id_list(stop_ids, vocab_size, "stop_ids", ordered=False)),
            ignore_eos=check.flag("ignore_eos", ignore_eos),
            reuse=check.flag("reuse", reuse),
            salt=check.string("salt", salt),
            speculate=check.flag("speculate", speculate),
            time_limit=check.seconds("time_limit", time_limit),
            messages=talk,
            chat=None if template is None else chat_of(options, template),
            sources=check.string_map("sources", sources),
            branch=None if parent is None else Branch(check.string("parent", parent), None),
            interventions=check_interventions(interventions, self.model.spec),
        )
        recorder = Recorder(
            check.open_store_or_none(store), level=check.one_of("level", level, get_args(Level)),
            retain=check.one_of("retain", retain, get_args(Retain)),
        )  # fmt: skip
        generation = Generation(request, self.tokenizer, self.model.new_cache(), self.context)
        return Stream(self, generation, recorder, self._provenance(clock, template))

    def resume(
        self, request: Request, steps: Sequence[Step], force: int | None, *, like: Run, store: Store | None = None
    ) -> Stream:
        """Go on from steps that another run, `like`, made; force: the id to put behind them. See trace/branch.py."""
        recorder = Recorder(check.open_store_or_none(store), level=like.level, retain=like.retain)
        request = replace(request, model=self.name)
        generation = Generation(request, self.tokenizer, self.model.new_cache(), self.context, steps, force)
        made = like.provenance
        here = replace(self._provenance(None, None), template_sha256=made.template_sha256, clock=made.clock)
        return Stream(self, generation, recorder, here)

    def _encoded(
        self, prompt: str | None, messages: Messages | None, ids: Sequence[int] | None, now: datetime | None,
        options: check.ChatOptions,
    ) -> tuple[Encoding, datetime | None, ChatTemplate | None]:  # fmt: skip
        if messages is not None:
            return self._chat(messages, now, options)
        if prompt is None:
            return encoding_of(ids or (), self.tokenizer), None, None
        encoding = self.tokenizer.encode(prompt)
        if not encoding.ids:
            size = len(prompt.encode())
            raise PromptError(f"the prompt cannot be encoded: none of its {size} bytes is in the vocabulary")
        return encoding, None, None

    def _chat(
        self, messages: Messages, now: datetime | None, options: check.ChatOptions
    ) -> tuple[Encoding, datetime | None, ChatTemplate]:
        templates, asked = self.tokenizer.templates, options["template"]
        if not templates and asked is None:
            if isinstance(self.tokenizer, NoTokenizer):
                raise self.tokenizer.refusal("messages")
            raise PromptError(f"{self.name} has no chat template; give the prompt as text", param="messages")
        template = templates.choose(asked, tools=options["tools"] is not None)
        rendered = template.render(
            messages, now=now, tools=options["tools"], documents=options["documents"], extra=options["template_kwargs"],
            continue_final=options["continue_final"], add_generation_prompt=bool(options["add_generation_prompt"]),
        )  # fmt: skip
        encoding = self.tokenizer.encode_segments(rendered.segments)
        return replace(encoding, notes=(*rendered.notes, *encoding.notes)), rendered.clock, template

    @cached_property
    def tokenizer_sha256(self) -> str:
        """Of everything that decides ids."""
        return tokenizer_digest(self.metadata)

    def _provenance(self, clock: datetime | None, template: ChatTemplate | None) -> Provenance:
        return Provenance(
            model_sha256=self.sha256,
            tokenizer_sha256=self.tokenizer_sha256,
            template_sha256=template.digest if template else None,
            engine=self.model.fingerprint,
            glassbox=VERSION,
            threads=self.model.threads,
            clock=clock.isoformat() if clock else None,
        )

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.model!r}>"


def open_store(path: str | Path | None = None, *, readonly: bool = False) -> Store:
    """The trace store at `path` (default: in the user's data folder). Raises StoreError; see trace/store.py."""
    from glassbox.trace.store import open_store as opened

    return opened(path, readonly=readonly)


Run.opening = staticmethod(load)


def chat_of(options: check.ChatOptions, template: ChatTemplate) -> dict[str, Any]:
    """What a trace says of a chat beside its messages: all that was given, and the template's name."""
    said = {name: value for name, value in options.items() if value is not None}
    return said | {"template": template.name} | ({"source": template.source} if template.name == GIVEN else {})


def prefix_store(model: AnyModel, sha256: str) -> PrefixStore | None:
    """Where a model's computed prompts are kept; None for a model that has no keys and values."""
    pool = model.new_cache().pool
    if not pool.shape.groups:
        return None
    store = PrefixStore(pool, ["model", sha256, "engine", model.fingerprint, "kv", pool.shape.kind])
    pool.reclaim = store.evict
    return store


@contextmanager
def fresh_cache(model: AnyModel) -> Iterator[Cache]:
    """An empty cache whose pages are given back."""
    cache = model.new_cache()
    try:
        yield cache
    finally:
        cache.release()


def encoding_of(ids: Sequence[int], tokenizer: Tokenizer) -> Encoding:
    """Ids that somebody gave, as an encoding: their text is what the vocabulary says they are."""
    vocab, spans, at = tokenizer.vocab, [], 0
    for i in ids:
        size = len(vocab.bytes_of(i)) if 0 <= i < len(vocab) else 0
        spans.append((at, at + size))
        at += size
    text = tokenizer.decode([i for i in ids if 0 <= i < len(vocab)], specials=True)
    kinds = tuple(vocab.kind_of(i) if 0 <= i < len(vocab) else "unused" for i in ids)
    return Encoding(
        ids=tuple(int(i) for i in ids), spans=tuple(spans), kinds=kinds, segments=(0,) * len(ids),
        segment_list=(Segment("ids", None, text, trusted=True),), text=text,
    )  # fmt: skip
