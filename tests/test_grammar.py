"""Grammars: what may follow, how a generation ends, what the ledger and the trace say. Cases C10 and C04-03."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_generation import ending, say

import glassbox
from glassbox.cache.pages import Cache, PagePool, PageShape
from glassbox.cli.app import invoke
from glassbox.engine import Engine
from glassbox.errors import EmptySupport, GrammarError, ParameterError
from glassbox.generation import Generation
from glassbox.model.execute import Computed, Part
from glassbox.opening import encoding_of
from glassbox.policy.grammar import Grammar
from glassbox.policy.guide import Guide, compiled
from glassbox.policy.lark import BLANKS
from glassbox.policy.policy import Policy
from glassbox.request import Request
from glassbox.text.tokenizer import Tokenizer
from glassbox.text.vocab import Vocab
from glassbox.types import F32, Sums

A_STRING = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
END, NOTHING = 2, 0  # SmolLM2's ends of text


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return glassbox.load_tokenizer(smollm2_path)


BYTES = Vocab([f"<0x{i:02X}>" for i in range(256)] + ["</s>"], ["byte"] * 256 + ["control"], "sentencepiece")


def guide(grammar: object, vocab: Vocab = BYTES, ends: Sequence[int] = (256,)) -> Guide:
    return compiled(Grammar.of(grammar), vocab, ends)


def takes(g: Guide, text: str | bytes) -> bool:
    """Whether a text is one of the grammar, byte by byte."""
    ids = list(text.encode() if isinstance(text, str) else text)
    return all(t in g.allowed(ids[:i]) for i, t in enumerate(ids)) and 256 in g.allowed(ids)


def takes_each(grammar: object, good: Sequence[str], bad: Sequence[str]) -> None:
    g = guide(grammar)
    assert [t for t in good if not takes(g, t)] == [] and [t for t in bad if takes(g, t)] == []


# --- A grammar as data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"json_schema": {"z": 1, "a": 2}}, {"json_object": True}, {"regex": "[0-9]+"}, {"lark": 'start: "a"'},
        {"gbnf": 'root ::= "a"'}, {"choice": ["b", "a"]},
    ],
)  # fmt: skip
def test_a_policy_carries_it_through_json(given: dict[str, Any]) -> None:
    policy = Policy(grammar=given)  # type: ignore[arg-type]
    back = Policy.from_dict(json.loads(json.dumps(policy.to_dict(), sort_keys=True)))
    assert back == policy and hash(back) == hash(policy) and back.grammar == Grammar.of(given)
    assert [s.name for s in policy.steps] == ["grammar"] and next(iter(given)) in repr(policy)


def test_the_order_of_a_schemas_keys_is_kept() -> None:
    schema = {"type": "object", "properties": {"z": {"type": "null"}, "a": {"type": "null"}}, "required": ["z", "a"]}
    policy = Policy.from_dict(json.loads(json.dumps(Policy(grammar={"json_schema": schema}).to_dict(), sort_keys=True)))  # type: ignore[arg-type]
    takes_each(policy.grammar, ['{"z":null,"a":null}'], ['{"a":null,"z":null}'])


@pytest.mark.parametrize(
    "given",
    [
        {"xml": "a"}, {"regex": "a", "lark": "b"}, {}, "a", 5, {"regex": 5}, {"regex": ""}, {"choice": []},
        {"choice": [""]}, {"choice": "ab"}, {"choice": [1]}, {"json_object": False},
        {"json_schema": {"a": float("nan")}}, {"json_schema": {1, 2}}, {"regex": "a" * (1 << 18) + "a"},
        {"regex": "\ud800"},
    ],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(given: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        Policy(grammar=given)
    assert caught.value.param == "grammar" and "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_it_is_first_of_those_without_further_passes_and_refuses_without_a_guide() -> None:
    assert Policy().order[:3] == ("dola", "guidance", "grammar")
    with pytest.raises(ParameterError, match="no guide"):
        Policy(grammar={"regex": "a"}).shape([1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="no step 'grammar'"):
        Policy(grammar={"regex": "a"}, order=("top_k",))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="preset mlx has only"):
        Policy.preset("mlx", grammar={"regex": "a"})
    assert Policy.preset("vllm", grammar={"regex": "a"}).steps[0].name == "grammar"


def test_rules_are_told_apart() -> None:
    assert Grammar.written('# c\nroot ::= "a"').kind == "gbnf" and Grammar.written('start: "a ::= b"').kind == "lark"


# --- What is a text of a grammar ----------------------------------------------------------------------------------


def test_choices_and_expressions() -> None:
    takes_each({"choice": ["a", "ab", "a/b", "x*", "é"]}, ["a", "ab", "a/b", "x*", "é"], ["", "b", "x", "abb", "e"])
    takes_each({"regex": r"[0-9]{2}(/[a-c]+)?"}, ["12", "12/a", "12/cab"], ["1", "12/", "123", "12/d"])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object"}, ["{}", '{"a":1}', '{"b": [null, {"c": "d"}]}'], ["[]", "{", '{"a"}', '{"a":1,}']),
        ({"type": "object", "required": ["a"]}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"b":2}']),
        ({"type": "array", "minItems": 1}, ["[1]", '["a", {}]'], ["[]", "{}"]),
        (A_STRING, ['{"a":"x"}', '{ "a" : "" }', '{"a":"é\\n"}'], ["{}", '{"a":1}', '{"a":"x","b":1}', '{"a":"\n"}']),
    ],
)
def test_containers_without_shape(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:  # C10-03
    takes_each({"json_schema": schema}, good, bad)
    for text in good:
        json.loads(text)


@pytest.mark.parametrize("schema", [{"type": "array", "uniqueItems": True}, {"type": "string", "format": "nope"}])
def test_a_keyword_that_is_not_known_is_refused(schema: dict[str, Any]) -> None:  # C10-03, C10-04
    with pytest.raises(GrammarError, match=r"uniqueItems|nope"):
        guide({"json_schema": schema})


def test_pattern_properties_have_no_dead_end() -> None:  # C10-04
    schema = {
        "type": "object",
        "properties": {
            "score": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
            "tags": {"type": "array", "items": {"type": "string", "minLength": 10, "maxLength": 20}, "maxItems": 3},
        },
        "patternProperties": {"^score$": {"type": "integer"}},
    }
    with pytest.raises(GrammarError, match=r"'\^score\$' of patternProperties matches the property 'score'"):
        guide({"json_schema": schema | {"additionalProperties": False}})
    closed = {
        "properties": {"a": {}},
        "patternProperties": {"^x[0-9]$": {"type": "null"}},
        "additionalProperties": False,
    }
    takes_each(
        {"json_schema": {"type": "object"} | closed}, ['{"a":1,"x1":null}', '{"x1":null}'], ['{"b":1}', '{"x":null}']
    )
    g, rng = guide({"json_schema": schema}), random.Random(4)
    assert takes(g, '{"score": 10, "tags": ["0123456789"]}') and not takes(g, '{"score": 11}')
    for _ in range(30):  # wherever a walk leads, something is allowed, and in the end the text is whole
        ids: list[int] = []
        while not g.finished(ids):
            choice = [t for t in g.allowed(ids).tolist() if t not in b" \t\r\n"]
            assert choice, bytes(ids)
            ids.append(rng.choice(choice))
            assert len(ids) < 5000
        found = json.loads(bytes(ids[: ids.index(256)] if 256 in ids else ids).decode("utf-8", "replace"))
        assert (found.get("score", 0) % 5 == 0 and "tags" not in found) or len(found["tags"]) <= 3


def test_white_space_is_bounded() -> None:  # C10-01
    for grammar in ({"json_schema": A_STRING}, {"json_object": True}):
        g = guide(grammar)
        for before in ("{", '{"a"', '{"a":', '{"a":"x"'):
            room = list(before.encode())
            for n in range(BLANKS):
                assert ord("\n") in g.allowed([*room, *b" " * n])
            full = g.allowed([*room, *b" " * BLANKS]).tolist()
            assert full and not set(full) & set(b" \t\r\n")
        assert not set(g.allowed([])) & set(b" \n")
    with pytest.raises(GrammarError, match="x-guidance"):
        guide({"json_schema": A_STRING | {"x-guidance": {"whitespace_flexible": True}}})


def test_a_schema_that_refers_to_itself() -> None:  # C10-07
    node = {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["c"]}
    g, depth = guide({"json_schema": {"$ref": "#/$defs/n", "$defs": {"n": node}}}), 300
    assert takes(g, '{"c":[' * depth + "]}" * depth) and not takes(g, '{"c":[' * depth + "]}" * (depth - 1))


# --- GBNF ---------------------------------------------------------------------------------------------------------

JSON_GBNF = r"""# llama.cpp's example
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (JSON_GBNF, ['{"a": [1.5e3, {}], "b": "\\u00e9é"}', "{}\n  "], ["[]", '{"a" 1}', '{"a": 01}', "{}  "]),
        ('root ::= word "x"\nword ::= [a-z]+', ["ax", "xx", "abxx"], ["x", "a"]),  # no lexeme takes too much
        ('root ::= ("list" | "listen") "ed"', ["listed", "listened"], ["list", "listen"]),
        ('root ::= "a" root "b" | ( "list" | "listen" ) "ed"', ["alistedb", "listened"], ["alisted"]),
        ('root ::= expr\nexpr ::= expr "+" expr | [0-9]+', ["1", "1+22+3"], ["+", "1+", ""]),  # recursion on the left
        ('root ::= ("a"*)*', ["", "aaa"], ["b"]),  # stars in stars
        ("root ::= [^\\]\"a-c] . [a-] [\\x41\\u00e9\\U0001F600] # end", ["d\na😀", "éx-A"], ["a.aA", "d.bA"]),
        ('root ::= (\n "a" # one\n | "b"\n)? "c"{2} "d"{1,} "e"{0,2}', ["accd", "ccdde"], ["acd"]),
        (
            'root ::= r1{2,3} r2?\nr1 ::= [ab] | r3\nr2 ::= r3 r3\nr3 ::= "(" r1 ")"',
            ["ab", "(a)b((b))", "ab(a)(b)"], ["a", "ab(a)()", "ab(a)(b)(a)(b)"],
        ),
    ],
)  # fmt: skip
def test_gbnf(text: str, good: list[str], bad: list[str]) -> None:
    takes_each({"gbnf": text}, good, bad)


@pytest.mark.parametrize(
    ("text", "line", "column", "piece"),
    [
        ('root ::= a\na ::= [^\\-<]', 2, 9, "\\-"), ("root ::= [\\d]", 1, 11, "\\d"), ('root ::= "\\q"', 1, 11, "\\q"),
        ("root ::= []", 1, 10, "[]"), ('root ::= "a\n', 1, 10, '"a'), ("root ::= [a", 1, 10, "[a"),
        ("root ::= b", 1, 10, "b"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, "root"), ('root = "a"', 1, 6, "= "), ('root ::= ("a"', 1, 10, "("),
        ('root ::= "a"{2', 1, 13, "{2"), ('root ::= "a"{3,2}', 1, 13, "{3,2}"), ("root ::= <think>", 1, 10, "<think>"),
        ("root ::= [z-a]", 1, 11, "z-a"), ("root ::= [\\uD800]", 1, 11, "\\uD800"), ('root ::= "a" )', 1, 14, ")"),
    ],
)  # fmt: skip
def test_gbnf_that_is_not_understood_is_refused(text: str, line: int, column: int, piece: str) -> None:  # C10-11
    for _ in range(2):
        with pytest.raises(GrammarError) as caught:
            guide({"gbnf": text})
        e = caught.value
        assert (e.line, e.column) == (line, column) and repr(piece)[1:-1] in str(e) and f"line {line}, column" in str(e)


def test_wrong_grammars_are_refused_with_the_place() -> None:
    for given, words in [
        ({"lark": "start: (\n"}, "line 1, column 9"), ({"json_schema": '{"a": }'}, "line 1, column 7"),
        ({"regex": "("}, "regex"), ({"gbnf": 'a ::= "b"'}, "root"), ({"json_schema": "[1]"}, "JSON object"),
        ({"json_schema": '{"type": "object", "type": "array"}'}, "twice"), ({"json_schema": '{"minimum": NaN}'}, "NaN"),
        ({"lark": "start: nothing"}, "nothing"), ({"gbnf": "root ::= root"}, "no text"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "nowhere"), ({"regex": "[a"}, "unclosed character class"),
        ({"regex": "a(?!b)"}, "look-around"), ({"lark": "start: /a{3,1}/"}, "the start must be <= the end"),
    ]:  # fmt: skip
        with pytest.raises(GrammarError) as caught:
            guide(given)
        assert words in str(caught.value) and "\n" not in str(caught.value), str(caught.value)


# --- Tokens -------------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_tokens_may_cross_pieces(tokenizer: Tokenizer) -> None:  # C10-09
    g = guide({"json_schema": A_STRING}, tokenizer.vocab, [END])
    first = g.allowed([])
    assert 107 in first and 39428 in first and 6150 not in first
    assert 23597 in g.allowed(tokenizer.encode('{"a":"x').ids)
    text = {"gbnf": 'root ::= "{" "\\"" "a" "\\"" ":" "1" "}"'}
    assert guide(text, tokenizer.vocab, [END]).allowed([]).tolist() == [107, 39428]


@pytest.mark.model
@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        ({"json_schema": A_STRING}, ['{"a":"x"}', '{ "a" : "it\\n"  }', '{"a": "émile"}']),
        ({"gbnf": JSON_GBNF}, ['{"a": [1.5, {"b": true}]}']),
        ({"regex": "(ab|a[^c]|\\{)*\\}?"}, ["abab{ax}"]),
        ({"lark": 'start: WORD (" " WORD)*\nWORD: /[a-zé]+/'}, ["the year is long é"]),
    ],
)  # fmt: skip
def test_the_mask_allows_what_the_parser_accepts(tokenizer: Tokenizer, grammar: Any, texts: list[str]) -> None:
    """C10-09, for every id at every state along some texts: allowed exactly if moving on with it works."""
    vocab, states = tokenizer.vocab, 0
    g = guide(grammar, vocab, [END])
    for text in texts:
        ids = tokenizer.encode(text).ids
        for n in range(len(ids) + 1):
            allowed = set(g.allowed(ids[:n]).tolist())
            accepted = set()
            for token in range(len(vocab)):
                if g._legal[token] and g._matcher.validate_tokens([token]):
                    accepted.add(token)
            assert allowed - {END} == accepted
            for token in random.Random(n).sample(sorted(allowed), min(20, len(allowed))):
                g.finished([*ids[:n], token])  # raises where it does not go on
            assert n == len(ids) or ids[n] in allowed
            states += 1
        assert END in g.allowed(ids)
    assert states >= 5


@pytest.mark.model
def test_the_mask_is_that_of_the_bytes(tokenizer: Tokenizer) -> None:
    """Against Python: an id is allowed exactly if text and bytes begin one of a few texts."""
    words = ["{}", '{"a": 1}', "été", "12345", "1245", "\n\n\n  x"]
    g, vocab = guide({"choice": words}, tokenizer.vocab, [END, NOTHING]), tokenizer.vocab
    said = [vocab.text_bytes(i) for i in range(len(vocab))]
    for word in words:
        ids: list[int] = []
        for token in tokenizer.encode(word).ids:
            so_far = b"".join(said[i] for i in ids)
            right = {
                i for i, b in enumerate(said)
                if b and i not in (END, NOTHING) and any(w.encode().startswith(so_far + b) for w in words)
            }  # fmt: skip
            assert set(g.allowed(ids).tolist()) - {END, NOTHING} == right
            ids.append(token)
        assert {END, NOTHING} <= set(g.allowed(ids).tolist())


@pytest.mark.model
def test_control_tokens_are_never_allowed(tokenizer: Tokenizer) -> None:  # C10-06
    vocab = tokenizer.vocab
    control = [i for i in range(len(vocab)) if vocab.kind_of(i) in ("control", "unused")]
    for grammar in ({"regex": "(?s:.*)"}, {"lark": 'start: /(.|\\n)*/ | <[1]> | "<|im_start|>"'}):
        allowed = guide(grammar, vocab, [END]).allowed([])
        assert set(allowed.tolist()) & set(control) == {END} and len(allowed) > 40_000


def test_a_function_of_the_ids_alone() -> None:
    """Whatever was asked before: forwards, backwards, other branches, wrong ids, past the end."""
    grammar, text = {"gbnf": JSON_GBNF}, b'{"a": [1, {"b": "c"}], "d": true}'
    g, rng = guide(grammar), random.Random(11)
    right = {n: guide(grammar).allowed(list(text[:n])).tolist() for n in range(0, len(text) + 1, 3)}
    for _ in range(300):
        n = rng.choice(list(right))
        if rng.random() < 0.3:
            with pytest.raises(GrammarError, match="output token"):
                g.finished([*text[:n], 256] if n < len(text) else [*text, 1])
        if rng.random() < 0.3 and n < len(text):
            branch = [*text[:n], rng.choice(right[n])]
            g.allowed(branch if 256 not in branch else text[:n])
        assert (
            g.allowed(list(text[:n])).tolist() == right[n] and g.allowed(np.array(list(text[:n]))).tolist() == right[n]
        )
        assert not g.finished(list(text[:n])) or n == len(text)
    assert g.allowed([*text, 256]).tolist() == [256] and g.finished([*text, 256, 256])


def test_what_ends_a_text_is_no_part_of_it() -> None:
    """Also where its piece is an ordinary one, which the grammar would take."""
    a, b = b"ab"
    g = guide({"regex": "[ab]c?"}, ends=(a, 256))
    assert g.allowed([]).tolist() == [b] and g.allowed([b]).tolist() == [a, ord("c"), 256]
    assert g.allowed([b, a]).tolist() == [a, 256] and g.finished([b, a])
    with pytest.raises(GrammarError, match="output token 0: id 97 has no place in it"):
        g.allowed([a, ord("c")])


def test_forced_runs_are_counted() -> None:
    g = guide({"regex": "(aaaa|bbbb)cd?"})
    assert [g.forced(list(t)) for t in (b"", b"a", b"aa", b"aaaa", b"aaaac", b"aaaacd")] == [0, 4, 3, 1, 0, 0]


# --- Whole generations --------------------------------------------------------------------------------------------


class Biased:
    """A model that wants certain ids whatever it reads, the first of them most."""

    context, layers, fingerprint, threads = 4096, 0, "biased", 1

    def __init__(self, bias: dict[int, float], vocab: int) -> None:
        self.vocab_size, self.row = vocab, np.zeros(vocab, np.float32)
        self.row[list(bias)] = list(bias.values())

    def new_cache(self) -> Cache:
        return Cache(PagePool(PageShape((), 0, 0)))

    def sum_rows(self, logits: F32, betas: Sequence[Sequence[float]]) -> list[Sums]:
        return [{} for _ in logits]

    def forward_parts(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed:
        for p in parts:
            p.cache.length += len(p.ids)
        return Computed(np.array([self.row for p in parts for _ in p.rows]).reshape(-1, self.vocab_size), {})


def biased(tokenizer: Tokenizer, bias: dict[int, float], policy: Policy, max_tokens: int = 200) -> Generation:
    model = Biased(bias, len(tokenizer.vocab))
    request = Request("biased", encoding_of([19556], tokenizer), policy, 0, max_tokens)
    generation = Generation(request, tokenizer, model.new_cache(), model.context)
    for _ in Engine(model).stream(generation):
        pass
    return generation


@pytest.mark.model
def test_a_model_that_wants_blanks_still_closes(tokenizer: Tokenizer) -> None:  # C10-01
    blanks = [i for i in range(len(tokenizer.vocab)) if not tokenizer.vocab.bytes_of(i).strip(b" \n\t\r") and i > 16]
    assert {198, 216, 256, 1116} <= set(blanks)
    schema = {**A_STRING, "properties": {"a": {"type": "string", "maxLength": 12}}}
    policy = Policy(temperature=0, grammar={"json_schema": schema})  # type: ignore[arg-type]
    generation = biased(tokenizer, dict.fromkeys(blanks, 100.0), policy)
    assert ending(generation) == ("stop", "grammar", None)
    text = generation.outcome.text  # type: ignore[union-attr]
    assert set(json.loads(text)) == {"a"} and max(map(len, re.findall(r"\s+", re.sub('"[^"]*"', '""', text)))) == BLANKS


@pytest.mark.model
@pytest.mark.parametrize("first", [6150, 4, 216, 107, 2])  # {} as one, a control token, a blank, {, the end
def test_after_the_end_nothing_follows(tokenizer: Tokenizer, first: int) -> None:  # C10-06
    policy = Policy(temperature=0, grammar={"gbnf": 'root ::= "{" "}"'})  # type: ignore[arg-type]
    steps, generation = say(tokenizer, [first] * 8, [19556], policy=policy)
    assert ending(generation) == ("stop", "grammar", None)
    assert generation.outcome is not None and generation.outcome.text == "{}"
    assert generation.outcome.usage.completion_tokens == len(steps) == (1 if first == 6150 else 2)
    assert generation.outcome.ending.stop_reason == {"kind": "grammar"}


@pytest.mark.model
def test_the_end_is_the_models_choice_where_more_may_follow(tokenizer: Tokenizer) -> None:
    digits = Policy(temperature=0, grammar={"regex": "[0-9]+"})  # type: ignore[arg-type]
    one = tokenizer.encode("1").ids[0]
    _, generation = say(tokenizer, [END, END, END], [19556], policy=digits)  # the first must be a digit
    assert ending(generation) == ("stop", "eos", END)
    _, generation = say(tokenizer, [one, END, one], [19556], policy=digits, ignore_eos=True)
    assert ending(generation) == ("stop", "grammar", None)
    _, generation = say(tokenizer, [one] * 4, [19556], policy=digits)
    assert ending(generation) == ("length", "max_tokens", 4)


@pytest.mark.model
def test_a_grammar_that_ends_too_early_is_an_error_that_says_so(tokenizer: Tokenizer) -> None:  # C04-03
    policy = Policy(temperature=0, grammar={"gbnf": 'root ::= "{" "}"'}, min_tokens=3, eos_ids=(0, 2))  # type: ignore[arg-type]
    with pytest.raises(EmptySupport) as caught:
        say(tokenizer, [6150] * 4, [19556], policy=policy)
    assert (caught.value.step, caught.value.others, caught.value.at) == ("min_tokens", ("grammar",), 1)
    with pytest.raises(EmptySupport, match="no token allowed at step 0: constraints grammar and allowed_ids"):
        say(tokenizer, [5] * 4, [19556], policy=Policy(grammar={"regex": "a"}, allowed_ids=(500,)))  # type: ignore[arg-type]


def test_the_ledger_says_what_was_allowed_and_forced() -> None:
    model = glassbox.load("bigram")
    run = model.generate("ab", policy=Policy(grammar={"regex": "(a|b)ccc"}), seed=1, max_tokens=9)  # type: ignore[arg-type]
    rows = [next(r for r in s.ledger if r.name == "grammar") for s in run.steps]
    assert [r.params for r in rows] == [
        {"allowed": 2}, {"allowed": 1, "forced": 1, "forced_tokens": 3},
        {"allowed": 1, "forced": 1, "forced_tokens": 2},
        {"allowed": 1, "forced": 1, "forced_tokens": 1},
    ]  # fmt: skip
    assert [r.alive_after for r in rows] == [2, 1, 1, 1] and run.text in ("accc", "bccc")
    assert (run.finish_reason, run.stop_reason) == ("stop", {"kind": "grammar"})


def test_a_recorded_run_loads_again_and_repeats(tmp_path: Path) -> None:
    model = glassbox.load("bigram")
    with glassbox.open_store(tmp_path / "runs.db") as store:
        policy = Policy(grammar={"gbnf": 'root ::= "a" root | "b" | "c"'})  # type: ignore[arg-type]
        run = model.generate("ab", policy=policy, seed=5, max_tokens=20, store=store)
        loaded = store.load(run.run_id)
        assert loaded.request.policy == policy and loaded.stop_reason == run.stop_reason == {"kind": "grammar"}
        assert [s.ledger for s in loaded.steps] == [s.ledger for s in run.steps]
        again = model.generate("ab", policy=loaded.request.policy, seed=5, max_tokens=20)
        assert [(s.id, s.ledger) for s in again.steps] == [(s.id, s.ledger) for s in run.steps]
        guesses = model.generate("ab", policy=policy, seed=5, max_tokens=20, speculate=True)
        assert [s.id for s in guesses.steps] == [s.id for s in run.steps]


def test_a_bad_grammar_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    model = glassbox.load("bigram")
    with glassbox.open_store(tmp_path / "runs.db") as store:
        with pytest.raises(GrammarError, match=r"no text of this vocabulary"):
            model.stream("ab", policy=Policy(grammar={"regex": "x"}), store=store)  # type: ignore[arg-type]
        with pytest.raises(GrammarError, match=r"column 10.*'\("):
            model.stream("ab", policy=Policy(grammar={"gbnf": "root ::= ("}), store=store)  # type: ignore[arg-type]
        assert list(store.runs()) == []


@pytest.mark.model
def test_a_real_model_writes_json(smollm2: glassbox.Model) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["colour", "n"], "additionalProperties": False}  # fmt: skip # noqa: E501
    for seed in range(3):
        run = smollm2.generate(
            messages=[{"role": "user", "content": "A colour and a number."}], seed=seed, max_tokens=80,
            policy=Policy(temperature=1.5, grammar={"json_schema": schema}),  # type: ignore[arg-type]
        )  # fmt: skip
        found = json.loads(run.text)
        assert run.finish_reason == "stop" and found["colour"] in ("red", "blue") and 0 <= found["n"] <= 99


def test_nothing_is_imported_without_a_grammar() -> None:
    code = (
        "import sys, glassbox\nglassbox.load('bigram').generate('ab', max_tokens=2)\n"
        "assert 'llguidance' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- The command line ---------------------------------------------------------------------------------------------


def traced(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str, code: int = 0) -> Any:
    common = ["trace", "ab", "--model", "bigram", "--seed", "5", "--json", "--store", str(folder / "runs.db")]
    assert invoke([*common, *flags]) == code
    caught = capsys.readouterr()
    return json.loads(caught.out) if code == 0 else caught.err


def test_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rules.gbnf").write_text('root ::= "ab" "c"')
    (tmp_path / "rules.lark").write_text('start: "ab" "c"')
    for flags, text in [
        (["--regex", "abc"], "abc"), (["--choice", "cab", "--choice", "cab "], None),
        (["--grammar", 'root ::= "cc"'], "cc"),
        (["--grammar", str(tmp_path / "rules.gbnf")], "abc"), (["--grammar", str(tmp_path / "rules.lark")], "abc"),
    ]:  # fmt: skip
        got = traced(capsys, tmp_path, *flags)
        assert got["text"] == (text or got["text"]) and got["sources"]["grammar"] == "flag"
        assert (got["finish_reason"] == "stop" and text is None) or got["stop_reason"] == {"kind": "grammar"}
    assert invoke(["policy", "--choice", "a", "--choice", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"]["grammar"] == {"choice": ["a", "b"]}
    assert invoke(["policy", "--json-object"]) == 0
    assert " 3 on  grammar: grammar json_object\n       p_i = 0 unless the bytes" in capsys.readouterr().out
    (tmp_path / "s.json").write_text(json.dumps(A_STRING))
    for given in (str(tmp_path / "s.json"), json.dumps(A_STRING)):
        assert invoke(["policy", "--json-schema", given, "--json"]) == 0
        assert json.loads(json.loads(capsys.readouterr().out)["policy"]["grammar"]["json_schema"]) == A_STRING


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--regex", "a", "--json-object"], "--json-object and --regex"), (["--regex", ""], "some text"),
        (["--json-schema", "nofile.json"], "or a file that there is"), (["--grammar", "root ::= ["], "column 10"),
        (["--regex", "x"], "no text of this vocabulary"), (["--regex", "a", "--preset", "mlx"], "preset mlx has only"),
        (["--grammar", "."], "a file that there is"), (["--grammar", "no/file.gbnf"], "a file that there is"),
        (["--json-schema", "{"], "no JSON"),
    ],
)  # fmt: skip
def test_bad_flags_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str], words: str
) -> None:
    err = traced(capsys, tmp_path, *flags, code=2)
    assert words in err and len(err.splitlines()) == 1
