"""What a program holds: a `Model` that encodes, generates, streams and looks inside. `load` makes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from glassbox import arguments as check
from glassbox.beam import Beam
from glassbox.choose import check_seed, draw_seed
from glassbox.defaults import default_policy, sources_of_made
from glassbox.engine import Engine
from glassbox.errors import ParameterError, PromptError
from glassbox.events import Step
from glassbox.generation import Generation
from glassbox.model.bigram import METADATA, BigramModel
from glassbox.model.intervene import Intervention, check_interventions
from glassbox.model.model import AnyModel, TransformerModel, check_ids, forward
from glassbox.opening import chat_of, fresh_cache, prefix_store, said_by, tokenizer_of
from glassbox.passes import Passes, passes_for
from glassbox.policy.policy import Policy
from glassbox.policy.step import listed as listed_of
from glassbox.policy.step import whole
from glassbox.prompt import conversation, fitting, prompt_of
from glassbox.provenance import model_digest, tokenizer_digest
from glassbox.request import Branch, Provenance, Request
from glassbox.score import Scored, score
from glassbox.search import BeamSearch
from glassbox.stream import Stream
from glassbox.text.absent import NoTokenizer
from glassbox.text.exactly import exact_ids
from glassbox.text.template import ChatTemplate
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.text.truncate import room_for
from glassbox.trace.record import Recorder
from glassbox.trace.rows import Level, Retain
from glassbox.trace.run import Run
from glassbox.trace.runid import new_run_id
from glassbox.types import F32, Messages
from glassbox.version import VERSION
from glassbox.weights.kinds import refuse_what_is_no_model
from glassbox.weights.known import Progress
from glassbox.weights.opening import open_checkpoint
from glassbox.weights.source import resolve

if TYPE_CHECKING:
    from glassbox.trace.store import Store

MAX_TOKENS = 256  # generated when nothing else is said
MOST_SAMPLES = 1000
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
        given = check.message_list(messages)
        return conversation(self.name, self.tokenizer, given, check.clock("now", now), options).encoding

    def decode(self, ids: Iterable[int]) -> str:
        """The text that ids say. Raises ParameterError, PromptError."""
        return self.tokenizer.decode(check.id_list(ids, self.model.vocab_size))

    def logits(self, ids: Sequence[int]) -> F32:
        """float32 [T, V]: row t is about the token after ids[t]. Raises PromptError, ContextOverflow."""
        checked = check.id_list(ids, self.model.vocab_size)
        with self.engine.lock, fresh_cache(self.model) as cache:
            return forward(self.model, checked, cache, rows="all")[0]

    def observe(self, ids: Sequence[int], points: str | Iterable[str]) -> dict[str, F32]:
        """The inner values at `points` (see model/points.py; one head too: q.3.head1), each [T, …].

        Raises UnknownPoint, ParameterError (a head that is not there), PromptError.
        """
        checked, look = check.id_list(ids, self.model.vocab_size), check.string_list("points", points)
        with self.engine.lock, fresh_cache(self.model) as cache:
            seen = forward(self.model, checked, cache, look)[1]
        return {name: seen[name] for name in look}

    def score(
        self, text: str | None = None, *, messages: Messages | None = None, ids: Sequence[int] | None = None,
        context: int | None = None, stride: int | None = None, now: datetime | None = None,
        **chat: Unpack[check.ChatOptions],
    ) -> Scored:  # fmt: skip
        """How likely each token of a text is, given the ones before it; see score.py. Exactly one of:

        text: as it is, no template (BOS where the file says so). messages: through the chat template. ids: as they are.
        context: the most ids at once, default the model's; a longer text goes through overlapping windows that begin
        `stride` ids apart, default half the context. now, chat: as for `stream`.
        Raises ParameterError, PromptError, TemplateError, OutOfMemory, NonFiniteLogits.
        """
        given = check.one_prompt(text, messages, ids, self.model.vocab_size)
        options = check.chat_options(chat, messages=messages is not None)
        prompt = prompt_of(self.name, self.tokenizer, given, check.clock("now", now), options)
        return score(self.engine, self.name, self.tokenizer.vocab, [prompt.encoding], context, stride)[0]

    def scores(
        self, texts: Iterable[str | Sequence[int]], *, context: int | None = None, stride: int | None = None
    ) -> list[Scored]:
        """As `score` gives for each one, bit for bit, but short ones share passes. Each: a text, or ids."""
        encodings, options = [], check.chat_options({}, messages=False)
        for item in listed_of("texts", texts, "a sequence of texts, or of sequences of ids"):
            text, ids = (item, None) if isinstance(item, str) else (None, item)
            given = check.one_prompt(text, None, ids, self.model.vocab_size)
            encodings.append(prompt_of(self.name, self.tokenizer, given, None, options).encoding)
        return score(self.engine, self.name, self.tokenizer.vocab, encodings, context, stride)

    def generate(self, prompt: str | None = None, **asked: Any) -> Run:
        """Generate to the end. Takes what `stream` takes."""
        stream = self.stream(prompt, **asked)
        for _ in stream:
            pass
        return stream.run

    def samples(self, prompt: str | None = None, *, n: int, **asked: Any) -> list[Run]:
        """n generations at once, of one seed but different draws: run i has sequence i, and run 0 is what `generate`
        gives. Takes what `stream` takes. The prompt is computed once. Each is a run of its own in the store.
        """
        streams = self.sample_streams(prompt, n=n, **asked)
        with ExitStack() as closing:
            for stream in streams:
                closing.enter_context(stream)
            waiting = streams
            while waiting:
                waiting = [stream for stream in waiting if next(stream, None) is not None]
        return [stream.run for stream in streams]

    def sample_streams(self, prompt: str | None = None, *, n: int, **asked: Any) -> list[Stream]:
        """The streams of `samples`, for who wants to see their steps. They run together as long as each is asked."""
        count = whole("n", n, 1, MOST_SAMPLES, f"a whole number from 1 to {MOST_SAMPLES}")
        if asked.get("beam") is not None:
            raise ParameterError("beam", asked["beam"], "left out: samples are drawn, beams are not")
        last = 2**64 - count
        whole("sequence", asked.get("sequence", 0), 0, last, f"a whole number from 0 to {last} with {count} samples")
        first = self.stream(prompt, group=new_run_id() if count > 1 else None, **asked)
        recorded = [asked.get("store"), asked.get("level", "look"), asked.get("retain", "text")]
        others = (replace(first.request, sequence=first.request.sequence + i) for i in range(1, count))
        return [first, *(self._open(request, first.provenance, *recorded) for request in others)]

    def beam_search(self, prompt: str | None = None, *, beam: Beam | int, **asked: Any) -> Run:
        """The likeliest text that a beam search finds: its steps are the run's, and `run.beams` holds the search.

        beam: a Beam, or how many beams. Takes what `stream` takes. The policy shapes each beam by its own past, and
        nothing is drawn. See beam.py for the rules.
        """
        return self.generate(prompt, beam=Beam(beam) if isinstance(beam, int) else beam, **asked)

    def stream(
        self, prompt: str | None = None, *, messages: Messages | None = None, ids: Sequence[int] | None = None,
        policy: Policy | None = None, seed: int | None = None, max_tokens: int | None = MAX_TOKENS,
        stop: str | Sequence[str] = (), stop_ids: Sequence[int] = (), include_stop: bool = False,
        ignore_eos: bool = False, prompt_logprobs: bool = False, truncate: bool = False,
        sources: Mapping[str, str] | None = None, now: datetime | None = None,
        reuse: bool = True, salt: str = "", speculate: bool = False, time_limit: float | None = None,
        store: Store | None = None, level: Level = "look", retain: Retain = "text", parent: str | None = None,
        sequence: int = 0, group: str | None = None, beam: Beam | None = None,
        interventions: Sequence[Intervention] = (), **chat: Unpack[check.ChatOptions],
    ) -> Stream:  # fmt: skip
        """Generate, yielding each token's `Step` as it is made; `.run` is the whole. Exactly one of:

        prompt: text as it is, no template. messages: through the chat template. ids: as they are.

        With messages: tools, documents: lists of objects for the template. template: the name of one of the model's, or
        a template's text. template_kwargs: further variables for it. continue_final: go on with the last message, the
        assistant's. add_generation_prompt: open the assistant's turn (unless continue_final).

        policy: Policy() when not given. seed: drawn and recorded when not given. max_tokens: None is until the context
        ends. stop: strings; stop_ids: ids. Which of several ends it is in stop.py; include_stop: the text keeps it.
        prompt_logprobs: how likely each id of the prompt was (`run.prompt[i].logprob`, nats, None for the first): all
        of the prompt is computed for that, as with reuse=False.
        truncate: a prompt that leaves no room for max_tokens, or a quarter of the context if that is less, loses its
        oldest messages (not the system's, nor the last), or its oldest ids; `run.usage` and `run.request.cut` say what.
        reuse: whether what earlier prompts computed may be used and this one kept; with a salt only among equal salts.
        speculate: check guessed ids in one pass (changes no id; not where a policy needs more passes of the model).
        time_limit: seconds after which it ends.
        sources: where each parameter came from, for the trace. now: the time a template may ask for.
        store: where to record (nowhere when not given), level and retain: how much of it. parent: the id of the run
        whose prompt this one edits. interventions: what is done to inner values (model/intervene.py).
        sequence: of several under one seed, which; group: a name for runs that belong together. beam: search instead of
        drawing; then the steps come when all is done.
        Raises ParameterError, PromptError, TemplateError, ContextOverflow at once, what the engine meets later.
        """
        vocab_size = self.model.vocab_size
        given = check.one_prompt(prompt, messages, ids, vocab_size)
        options = check.chat_options(chat, messages=messages is not None)
        now, most = check.clock("now", now) or datetime.now(), check.token_limit(max_tokens, self.context)
        asking = self.name, self.tokenizer, given, now, options
        if check.flag("truncate", truncate):
            made = fitting(*asking, room_for(self.context, most), self.context)
        else:
            made = prompt_of(*asking)
        check_ids(self.model, made.encoding.ids, 0)
        stops = check.string_list("stop", stop)
        ends = check.id_list(stop_ids, vocab_size, "stop_ids", ordered=False)
        rows = check.flag("prompt_logprobs", prompt_logprobs)
        if stops and isinstance(self.tokenizer, NoTokenizer):
            raise ParameterError("stop", stop, f"left out: {self.tokenizer.refusal()}")
        asked = check.policy_or_default(policy)
        policy = self.fitted(asked, ends)
        if policy.grammar is not None and isinstance(self.tokenizer, NoTokenizer):
            raise ParameterError("grammar", str(policy.grammar), f"left out: {self.tokenizer.refusal()}")
        request = Request(
            model=self.name,
            encoding=made.encoding,
            policy=policy,
            seed=draw_seed() if seed is None else check_seed(seed),
            max_tokens=most,
            sequence=whole("sequence", sequence, 0, 2**64 - 1, "a whole number from 0 to 2**64 - 1"),
            group=None if group is None else check.string("group", group),
            beam=beam,
            stop=stops,
            stop_ids=tuple(ends),
            include_stop=check.flag("include_stop", include_stop),
            ignore_eos=check.flag("ignore_eos", ignore_eos),
            reuse=check.flag("reuse", reuse) and not rows,
            salt=check.string("salt", salt),
            speculate=check.flag("speculate", speculate),
            prompt_logprobs=rows,
            time_limit=check.seconds("time_limit", time_limit),
            messages=given[1],
            cut=made.cut,
            chat=None if made.template is None else chat_of(options, made.template),
            sources=sources_of_made(check.string_map("sources", sources), asked, policy),
            branch=None if parent is None else Branch(check.string("parent", parent), None),
            interventions=check_interventions(interventions, self.model.spec),
        )
        check.beams(request)
        return self._open(request, self._provenance(made.clock, made.template), store, level, retain)

    def _open(
        self, request: Request, provenance: Provenance, store: Store | None, level: Level, retain: Retain
    ) -> Stream:  # fmt: skip
        passes = self._passes(request)
        recorder = Recorder(
            check.open_store_or_none(store), level=check.one_of("level", level, get_args(Level)),
            retain=check.one_of("retain", retain, get_args(Retain)),
        )  # fmt: skip
        cache, context = self.model.new_cache(), self.context
        generation = (
            BeamSearch(request, self.tokenizer, cache, context)
            if request.beam
            else Generation(request, self.tokenizer, cache, context, passes)
        )
        return Stream(self, generation, recorder, provenance)

    def _passes(self, request: Request) -> Passes | None:
        return passes_for(self.model, request.policy, request.encoding.ids, request.interventions)

    def default_policy(
        self, given: Mapping[str, Any] | None = None, *, from_file: bool = True
    ) -> tuple[Policy, dict[str, str]]:
        """What the command line samples with: what is `given`, else what the model's file says (`from_file`), else
        temperature 0.8 and top-p 0.95. And where each parameter is from: "flag", "model file" or "default"; what the
        file says that cannot be honoured stands there too, with the reason. Raises ParameterError.
        """
        return default_policy(self.metadata, self.fitted, dict(given or {}), from_file)

    def fitted(self, policy: Policy, stop_ids: Iterable[int] = ()) -> Policy:
        """The policy as this model runs it: texts as ids, and what ends the text. Raises ParameterError."""
        encode = partial(exact_ids, self.tokenizer)
        return check.a_policy(policy).for_model(self.model.vocab_size, self.tokenizer.eos_ids, encode, stop_ids)

    def resume(
        self, request: Request, steps: Sequence[Step], force: int | None, *, like: Run, store: Store | None = None
    ) -> Stream:
        """Go on from steps that another run, `like`, made; force: the id to put behind them. See trace/branch.py."""
        recorder = Recorder(check.open_store_or_none(store), level=like.level, retain=like.retain)
        request = replace(request, model=self.name)
        cache, passes = self.model.new_cache(), self._passes(request)
        generation = Generation(request, self.tokenizer, cache, self.context, passes, steps, force)
        made = like.provenance
        here = replace(self._provenance(None, None), template_sha256=made.template_sha256, clock=made.clock)
        return Stream(self, generation, recorder, here)

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
            kv=self.model.new_cache().pool.shape.kind,
        )

    def __reduce__(self) -> Any:
        raise TypeError(f"a Model cannot be pickled or copied: load {self.name!r} where it is needed")

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.model!r}>"


def open_store(path: str | Path | None = None, *, readonly: bool = False) -> Store:
    """The trace store at `path` (default: in the user's data folder). Raises StoreError; see trace/store.py."""
    from glassbox.trace.store import open_store as opened

    return opened(path, readonly=readonly)


Run.opening = staticmethod(load)
