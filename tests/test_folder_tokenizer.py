"""tokenizer.json and tokenizer.model: ids equal the libraries' on the whole corpus, and nothing is lost in silence."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from text_corpus import corpus
from tokenizers import Tokenizer as Engine
from trained import MAKERS, SPECIAL, _byte_level, charsmap_of, gguf_of, train_spm, write_folder

from glassbox.errors import ModelFormatError, PromptError, Unsupported
from glassbox.text.segments import Segment
from glassbox.text.tokenizer import Encoding, Tokenizer

LINES = corpus()
NAMED = [f"{a}{s}{b}" for s in SPECIAL[1:] for a, b in (("", "x"), ("a ", " b"), ("\n", "\n"), ("", " y"))]


def check_accounts(tokenizer: Tokenizer, e: Encoding) -> None:
    """Spans follow one another; where nothing is noted, tokens say the bytes they span, and the text comes back."""
    data, at = e.text.encode(), 0
    said = []
    for token, (begin, end) in zip(e.ids, e.spans, strict=True):
        assert at <= begin <= end <= len(data)
        if not e.lossy and not e.notes and end > begin:
            assert begin == at
            said = tokenizer.vocab.bytes_of(token)
            assert said == data[begin:end] or said == b" " + data[begin:end]
        at = end
    assert at == len(data) or e.lossy or e.notes


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module", params=MAKERS)
def both(request: pytest.FixtureRequest, folders: Path) -> tuple[str, Engine, Tokenizer]:
    engine = MAKERS[request.param]()
    folder = write_folder(folders / request.param, engine)
    return request.param, engine, Tokenizer.from_folder(folder)


@pytest.mark.slow
def test_ids_are_the_librarys(both: tuple[str, Engine, Tokenizer]) -> None:
    name, engine, tokenizer = both
    back = 0
    more = ["<|user|>  hi <|l|> x", "many manys many.", "cafe\u0301 caf\u00e9", "a  b   c", "x <tool> \n y", "\n\n\n a"]
    for line in [*LINES, *NAMED, *more]:
        e = tokenizer.encode(line, specials=True, add_special=False)
        assert list(e.ids) == engine.encode(line, add_special_tokens=False).ids, line
        check_accounts(tokenizer, e)
        back += not e.lossy and not e.notes and tokenizer.decode(e.ids, specials=True) == line
    assert list(tokenizer.encode("a b").ids) == engine.encode("a b").ids  # with BOS, where the file wants one
    # Most lines come back whole; the others are changed by the tokenizer's own rules, and say so.
    assert back > {"unigram": 300, "unigram-bytes": 600, "unigram-precompiled": 600, "byte-level-prefix": 50}.get(
        name, 1700
    )


@pytest.mark.slow
def test_what_is_not_noted_comes_back(both: tuple[str, Engine, Tokenizer]) -> None:
    _, _, tokenizer = both
    for line in LINES:
        e = tokenizer.encode(line)
        if not e.lossy and not e.notes:
            assert tokenizer.decode(e.ids) == line


def test_explanations_end_in_the_ids(both: tuple[str, Engine, Tokenizer]) -> None:
    _, _, tokenizer = both
    for line in LINES[::5]:
        _, words = tokenizer.explain(line)
        assert [i for w in words for i in w.ids] == list(tokenizer.encode(line, add_special=False).ids), line
        for word in words:
            made = [m.left + m.right for m in word.merges]
            assert all(made.count(m.left) or len(m.left.decode("utf-8", "replace")) <= 3 for m in word.merges)


def test_user_text_makes_no_special_token(both: tuple[str, Engine, Tokenizer]) -> None:
    _, _, tokenizer = both
    for name in SPECIAL[1:]:
        parts = [Segment("template", None, "<s>", trusted=True), Segment("message 0", "user", f"x{name} y{name}")]
        e = tokenizer.encode_segments(parts, add_special=False)
        assert [k for k, s in zip(e.kinds, e.segments, strict=True) if s == 1 and k == "control"] == []
        assert tokenizer.decode(e.ids) in (f"x{name} y{name}", f" x{name} y{name}")
        for end in (1, len(name) - 1):  # nor does a part of its name, with the rest from the template
            halves = [Segment("template", None, name[:end], trusted=True), Segment("message 0", "user", name[end:])]
            for mine in (halves, [replace(s, trusted=not s.trusted) for s in halves]):
                assert "control" not in tokenizer.encode_segments(mine, add_special=False).kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byte-level", "spm-first"])
def test_long_inputs_take_linear_time(name: str, folders: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(folders / f"long-{name}", MAKERS[name]()))
    for text in ("a" * 10**6, "".join(LINES * 12)[: 10**6]):
        begin = time.perf_counter()
        tokenizer.encode(text)
        assert time.perf_counter() - begin < 8


def test_the_same_vocabulary_as_gguf() -> None:
    """pre = llama-bpe: patterns and ignore_merges of the row, the merges of the file."""
    engine = MAKERS["whole-words"]()
    model = json.loads(engine.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    said = {
        "model": "gpt2", "pre": "llama-bpe", "tokens": pieces, "merges": [" ".join(pair) for pair in model["merges"]],
        "token_type": [3 if p in SPECIAL else 1 for p in pieces], "add_bos_token": False,
    }  # fmt: skip
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{k}": v for k, v in said.items()})
    whole = 0
    for line in LINES:
        e = tokenizer.encode(line)
        assert list(e.ids) == engine.encode(line, add_special_tokens=False).ids, line
        assert tokenizer.decode(e.ids) == line and not e.lossy
        _, words = tokenizer.explain(line)
        assert [i for w in words for i in w.ids] == list(e.ids)
        whole += sum(w.how == "whole" and len(w.text) > 1 for w in words)
    assert whole > 500


# -- bytes that cannot be said


def test_a_missing_byte_is_an_error_that_names_it(folders: Path) -> None:
    engine = _byte_level()
    data = json.loads(engine.to_str())
    letter = "ė"  # how the byte alphabet writes 0x17
    removed = data["model"]["vocab"].pop(letter)
    data["model"]["vocab"]["<hole>"] = removed
    tokenizer = Tokenizer.from_folder(write_folder(folders / "hole", Engine.from_str(json.dumps(data))))
    with pytest.raises(PromptError, match=r"byte 0x17 at offset 3: character 2, '\\x17' \(U\+0017\)"):
        tokenizer.encode("é.\x17b")
    assert tokenizer.decode(tokenizer.encode("é.b").ids) == "é.b"


@pytest.mark.parametrize("fuse", [False, True])
def test_an_unknown_token_is_the_vocabularys_own_and_told(fuse: bool, folders: Path) -> None:
    data = json.loads(MAKERS["spm-first"]().to_str())
    data["model"] |= {"byte_fallback": False, "fuse_unk": fuse}
    engine = Engine.from_str(json.dumps(data))
    tokenizer = Tokenizer.from_folder(write_folder(folders / f"unknown{fuse}", engine))
    seen = 0
    for line in LINES:
        e = tokenizer.encode(line, add_special=False)
        assert list(e.ids) == engine.encode(line, add_special_tokens=False).ids, line
        unknown = tokenizer.vocab.pieces.index("<unk>") in e.ids
        assert unknown <= bool(e.lossy)
        check_accounts(tokenizer, e)
        seen += unknown
    assert seen > 100


def test_an_unknown_token_that_ends_a_text_is_never_made(folders: Path) -> None:
    data = json.loads(_byte_level().to_str())
    data["model"]["vocab"]["<hole>"] = data["model"]["vocab"].pop("ė")
    data["model"]["unk_token"] = "</s>"
    tokenizer = Tokenizer.from_folder(write_folder(folders / "ends", Engine.from_str(json.dumps(data))))
    with pytest.raises(PromptError, match="byte 0x17 at offset 1"):
        tokenizer.encode("a\x17")


# -- what a folder says beside


def test_roles_ends_template_and_bos(folders: Path) -> None:
    folder = write_folder(folders / "roles", _byte_level(), chat_template="{{ bos_token }}{{ messages[0].content }}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    tokenizer = Tokenizer.from_folder(folder)
    ids = {t: i for i, t in enumerate(tokenizer.vocab.pieces)}
    assert (tokenizer.bos, tokenizer.eos, tokenizer.bos_id) == ("<s>", "</s>", ids["<s>"])
    assert tokenizer.eos_ids == {1, 2} and tokenizer.template is not None
    assert tokenizer.encode("a").ids[0] == ids["<s>"] and ids["<s>"] not in tokenizer.encode("a", add_special=False).ids
    assert tokenizer.vocab.kind_of(ids["<|turn|>"]) == "control"
    without = Tokenizer.from_folder(write_folder(folders / "nobos", _byte_level(), add_bos_token=False))
    assert ids["<s>"] not in without.encode("a").ids


def test_tokens_that_stand_only_in_the_config(folders: Path) -> None:
    more = {"900": {"content": "<|extra|>", "special": True}, "901": {"content": "plain!", "special": False}}
    tokenizer = Tokenizer.from_folder(write_folder(folders / "more", _byte_level(), added_tokens_decoder=more))
    assert tokenizer.encode("<|extra|>plain!", specials=True, add_special=False).ids == (900, 901)
    assert 900 not in tokenizer.encode("<|extra|>").ids


def test_special_tokens_that_only_the_config_calls_so(folders: Path) -> None:
    data = json.loads(_byte_level().to_str())
    data["added_tokens"] = [t | {"special": False} for t in data["added_tokens"] if t["content"] != "</s>"]
    folder = write_folder(folders / "called", Engine.from_str(json.dumps(data)), extra_special_tokens=["<|turn|>"])
    tokenizer = Tokenizer.from_folder(folder)
    kinds = {p: tokenizer.vocab.kind_of(i) for i, p in enumerate(tokenizer.vocab.pieces) if p in SPECIAL}
    assert kinds == {"<s>": "control", "</s>": "control", "<|turn|>": "control"}
    assert tokenizer.assumptions == ["taken for control tokens, though the file does not say so: <s>, <|turn|>"]
    assert "control" not in tokenizer.encode("a<|turn|></s>", add_special=False).kinds
    assert tokenizer.encode("a</s>", specials=True, add_special=False).kinds == ("normal", "control")


def test_cuts_between_authors_do_not_change_ids(folders: Path) -> None:
    engine = MAKERS["flags"]()
    tokenizer = Tokenizer.from_folder(write_folder(folders / "authors", engine))
    r = random.Random(3)
    some = ["<|user|>", "<|l|>", "<s>", " ", "  ", "\n", "hi", " many", "<tool>", "caf\u00e9", "\u00a0x"]
    for _ in range(2000):
        texts = ["".join(r.choices(some, k=r.randint(0, 4))) for _ in range(4)]
        segments = [Segment(f"message {i}", None, t, trusted=i % 2 == 0) for i, t in enumerate(texts)]
        for s in segments[1::2]:  # the others hold no special token
            texts[segments.index(s)] = s.text.replace("<|user|>", "").replace("<|l|>", "").replace("<s>", "")
        segments = [Segment(f"message {i}", None, t, trusted=i % 2 == 0) for i, t in enumerate(texts)]
        e = tokenizer.encode_segments(segments, add_special=False)
        assert list(e.ids) == engine.encode("".join(texts), add_special_tokens=False).ids, texts


def test_a_turn_marker_that_the_file_calls_ordinary_is_not_forged(folders: Path) -> None:
    data = json.loads(_byte_level().to_str())
    data["added_tokens"] = [t | {"special": t["content"] == "<s>"} for t in data["added_tokens"]]
    tokenizer = Tokenizer.from_folder(write_folder(folders / "ordinary", Engine.from_str(json.dumps(data))))
    assert "control" not in tokenizer.encode("<|turn|>", add_special=False).kinds
    assert tokenizer.encode("<|turn|>", specials=True, add_special=False).kinds == ("control",)
    assert any("<|turn|>" in a for a in tokenizer.assumptions)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "model 'WordPiece' is not supported"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "entry 0 names a piece"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "must map pieces to ids"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}, "not two pieces"),
        ({"model": {"type": "BPE", "vocab": {"a\ud800": 0}, "merges": []}}, "surrogate"),
        ({"model": None}, "must be an object"),
        ({"model": {"type": "Unigram", "vocab": [["a"]]}}, "entry 0 is no"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "no compiled character map"),
        ({"normalizer": {"type": "Nothing"}}, "tokenizers library refuses"),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}}, "library refuses"),
        ({"decoder": {"type": "WordPiece"}}, "decoder 'WordPiece'"),
        ({"post_processor": {"type": "BertProcessing", "sep": ["a", 0], "cls": ["a", 0]}}, "post-processor"),
        ({"added_tokens": [{"id": 0}]}, "no token with id"),
        ({"added_tokens": "x"}, "must be a list"),
    ],
)
def test_a_broken_tokenizer_json_is_refused(change: dict[str, Any], error: str, folders: Path, tmp_path: Path) -> None:
    data = json.loads(_TEMPLATE) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises((ModelFormatError, Unsupported), match=error):
        Tokenizer.from_folder(tmp_path).encode("a")


_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
_TEMPLATE = json.dumps({
    "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": _LEVEL, "post_processor": None,
    "decoder": _LEVEL, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
})  # fmt: skip


def test_damaged_files_are_refused_or_used_but_never_crash(tmp_path: Path) -> None:
    """One value of a sound tokenizer.json replaced by an odd one, 400 times."""
    r = random.Random(7)
    sound = json.loads(MAKERS["spm-first"]().to_str())
    kept = {k: v for k, v in sound["model"]["vocab"].items() if v < 300}
    sound["model"] |= {"vocab": kept, "merges": []}
    odd = [None, True, -1, 2**40, 1.5, "", "a", "<s>", [], {}, [1], {"type": "Sequence"}, {"Regex": "("}, "\ud800"]
    places = [p for p in _places(sound) if p]
    used = 0
    for _ in range(400):
        data, place = copy.deepcopy(sound), r.choice(places)
        inside = data
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = r.choice(odd)
        (tmp_path / "tokenizer.json").write_text(json.dumps(data))
        try:
            tokenizer = Tokenizer.from_folder(tmp_path)
            for text in ("Hi <s> é日 \x04\n\n", "", "▁ a"):
                e = tokenizer.encode(text, specials=True)
                tokenizer.explain(text, specials=True)
                assert tokenizer.decode(e.ids, specials=True) == text or e.lossy or e.notes or tokenizer.facts.add_bos
            used += 1
        except (ModelFormatError, Unsupported, PromptError):
            continue
    assert 20 < used < 380


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict | list) and len(value) < 100:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], (*at, key))


def test_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(Unsupported, match=r"vocab\.json"):
        Tokenizer.from_folder(tmp_path)
    for text in ("", "[1]", "{", "{" * 100_000, "\ud800"):
        (tmp_path / "tokenizer.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(ModelFormatError, match=r"tokenizer\.json"):
            Tokenizer.from_folder(tmp_path)


# -- tokenizer.model


SPM = {
    "bpe": dict(kind="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
    "bpe-nmt": dict(kind="bpe", byte_fallback=True),
    "bpe-unknown": dict(kind="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False),
    "bpe-no-space": dict(
        kind="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=False,
    ),
    "unigram": dict(kind="unigram", byte_fallback=True),
    "unigram-unknown": dict(kind="unigram"),
}  # fmt: skip


@pytest.fixture(scope="module", params=SPM)
def spm_both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes, Tokenizer]:
    data = train_spm(**SPM[request.param])
    folder = tmp_path_factory.mktemp("spm")
    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    return request.param, data, Tokenizer.from_folder(folder)


def test_a_model_file_gives_sentencepieces_ids(spm_both: tuple[str, bytes, Tokenizer]) -> None:
    name, data, tokenizer = spm_both
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    back = 0
    for line in LINES:
        e = tokenizer.encode(line)
        assert list(e.ids) == library.encode(line), line
        check_accounts(tokenizer, e)
        if not e.lossy and not e.notes:
            assert tokenizer.decode(e.ids) == line
            back += 1
        _, words = tokenizer.explain(line)
        assert [i for w in words for i in w.ids] == list(e.ids), line
    assert back > (1500 if name in ("bpe", "bpe-no-space") else 300)


@pytest.mark.parametrize("name", ["bpe", "bpe-unknown", "bpe-no-space", "bpe-nmt", "unigram", "unigram-unknown"])
def test_our_own_pieces_are_sentencepieces(name: str) -> None:
    """The same model as GGUF metadata, which our own code encodes."""
    options = dict(SPM[name])
    data = train_spm(**options)
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    flags: dict[str, Any] = {"model": "t5"} if name.startswith("unigram") else {}
    if options.get("normalization_rule_name") != "identity":
        flags |= {"remove_extra_whitespaces": True, "precompiled_charsmap": list(charsmap_of(data))}
    tokenizer = Tokenizer.from_gguf(gguf_of(data, space_prefix=options.get("add_dummy_prefix", True), **flags))
    ties = 0
    for line in LINES:
        e, there = tokenizer.encode(line), library.encode(line)
        # A unigram's sum does not depend on the order of its pieces: where two orders tie, the library's float32
        # goes by its rounding.
        assert list(e.ids) == there or (name.startswith("unigram") and sorted(e.ids) == sorted(there)), line
        ties += list(e.ids) != there
        check_accounts(tokenizer, e)
    assert ties < 40


def test_a_broken_model_file_is_refused(tmp_path: Path) -> None:
    data = train_spm("bpe", vocab_size=900)
    for bad in (b"", b"\0", data[: len(data) // 2], b"\x0f" * 50, data[:-7], b"\xff" * 30):
        (tmp_path / "tokenizer.model").write_bytes(bad)
        with pytest.raises((ModelFormatError, Unsupported)):
            Tokenizer.from_folder(tmp_path)
    with pytest.raises(ModelFormatError) as e:
        Tokenizer.from_gguf(gguf_of(data, precompiled_charsmap=[1, 2, 3], model="t5"))
    assert e.value.field == "tokenizer.ggml.precompiled_charsmap"


def test_an_unknown_character_of_unigram_has_a_span_of_its_own(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path / "u", MAKERS["unigram"]()))
    text = "a \U00012345b a"  # a cuneiform sign, which no training text has
    e = tokenizer.encode(text, add_special=False)
    (at,) = [i for i, token in enumerate(e.ids) if token == tokenizer.facts.special["unknown"]]
    assert e.spans[at] == (2, 6) and len(e.lossy) == 4


def test_templates_may_name_the_unknown_and_the_padding_token(tmp_path: Path) -> None:
    source = "[{{ unk_token }}{{ pad_token }}{{ sep_token }}]{{ messages[0].content }}"
    folder = write_folder(
        tmp_path / "t", MAKERS["spm-first"](), unk_token="<unk>", pad_token=SPECIAL[0], chat_template=source
    )
    template = Tokenizer.from_folder(folder).template
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]).text == f"[<unk>{SPECIAL[0]}]x"
