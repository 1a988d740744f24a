"""safetensors files made by hand: faulty ones with what must be said about each, unusual ones that are sound."""

from __future__ import annotations

import json

from safetensors_writer import build, entry

T = entry("F32", [2], 0, 8)
RAW = json.dumps(T).encode()
MAX64 = (1 << 64) - 1
FIRST = 9  # where the first key of a header begins


def named(**entries: object) -> bytes:
    return build(entries, bytes(8))


def after(first: str, then: str) -> int:
    """The offset of `then` in the header that has both entries in this order."""
    return build({first: T, then: T}).find(f'"{then}"'.encode())


# name -> (bytes, the field that must be blamed, the offset that must be given)
BAD: dict[str, tuple[bytes, str, int]] = {
    "empty": (b"", "header length", 0),
    "three_bytes": (b"\1\0\0", "header length", 0),
    "only_a_length": (build({}, length=100)[:8], "header length", 0),
    "length_over_the_file": (build({"t": T}, bytes(8), length=1000), "header length", 0),
    "length_2_to_the_64": (build({"t": T}, bytes(8), length=MAX64), "header length", 0),
    "length_2_to_the_63": (build({"t": T}, bytes(8), length=1 << 63), "header length", 0),
    "header_over_the_limit": (build(b"{" + b" " * (17 << 20)), "header length", 0),
    "git_lfs_pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "header length", 0),
    "header_of_length_0": (build(b"", bytes(8)), "header", 8),
    "header_cut_short": (build(b'{"t":{"dty'), "header", 8 + 6),
    "not_json": (build(b"{nonsense}"), "header", 9),
    "begins_with_a_space": (build(b' {"t":1}'), "header", 8),
    "a_list": (build(b"[1,2]"), "header", 8),
    "two_objects": (build(b"{}{}"), "header", 10),
    "not_utf_8": (build(b'{"\xff":1}'), "header", 10),
    "utf_16": (build('{"t":1}'.encode("utf-16")), "header", 8),
    "deep": (build(b'{"t":' + b"[" * 100_000), "header", 8),
    "deep_and_whole": (build(b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "header", 8),
    "a_number_of_10000_digits": (build(b'{"t":' + b"9" * 10_000 + b"}"), "header", 8),
    "a_name_twice": (build(b'{"t":%s,"t":%s}' % (RAW, RAW), bytes(8)), "header", FIRST + 5 + len(RAW)),
    "a_name_twice_by_an_escape": (build(b'{"t":%s,"\\u0074":%s}' % (RAW, RAW), bytes(8)), "header", 8),
    "a_key_of_an_entry_twice": (build(b'{"t":{"dtype":"F32","dtype":"F16"}}'), "header", 8 + 20),
    "half_a_surrogate_pair": (build(b'{"\\ud800":' + b"1}"), "\\ud800", FIRST),
    "notes_that_are_no_strings": (build({"__metadata__": {"a": 1}}), "__metadata__", 8),
    "notes_that_are_a_list": (build({"__metadata__": []}), "__metadata__", 8),
    "an_entry_that_is_a_number": (named(t=1), "t", FIRST),
    "no_dtype": (named(t={"shape": [2], "data_offsets": [0, 8]}), "t", FIRST),
    "a_key_too_many": (named(t=T | {"scale": 1}), "t", FIRST),
    "dtype_unknown": (named(t=T | {"dtype": "F31"}), "t dtype", FIRST),
    "dtype_in_small_letters": (named(t=T | {"dtype": "f32"}), "t dtype", FIRST),
    "dtype_a_number": (named(t=T | {"dtype": 1}), "t dtype", FIRST),
    "dtype_of_another_size": (named(t=T | {"dtype": "F16"}), "t data_offsets", FIRST),
    "shape_too_large_for_its_bytes": (named(t=T | {"shape": [3]}), "t data_offsets", FIRST),
    "shape_negative": (named(t=T | {"shape": [-2]}), "t shape", FIRST),
    "shape_with_a_fraction": (named(t=T | {"shape": [2.0]}), "t shape", FIRST),
    "shape_of_a_bool": (named(t=T | {"shape": [2, True]}), "t shape", FIRST),
    "shape_null": (named(t=T | {"shape": None}), "t shape", FIRST),
    "shape_that_wraps": (named(t=T | {"shape": [1 << 62, 8]}), "t shape", FIRST),
    "shape_of_2_to_the_64": (named(t=T | {"shape": [1 << 64]}), "t shape", FIRST),
    "nine_dimensions": (named(t=T | {"shape": [1] * 9}), "t shape", FIRST),
    "offsets_of_one": (named(t=T | {"data_offsets": [0]}), "t data_offsets", FIRST),
    "offsets_backwards": (named(t=T | {"data_offsets": [8, 0]}), "t data_offsets", FIRST),
    "offsets_negative": (named(t=T | {"data_offsets": [-8, 0]}), "t data_offsets", FIRST),
    "offsets_past_the_end": (named(t=T | {"data_offsets": [8, 16]}), "t data_offsets", FIRST),
    "offsets_of_2_to_the_64": (named(t=T | {"data_offsets": [MAX64 - 7, MAX64 + 1]}), "t data_offsets", FIRST),
    "truncated_data": (build({"t": T}, bytes(7)), "t data_offsets", FIRST),
    "a_hole_before": (build({"t": entry("F32", [2], 8, 16)}, bytes(16)), "t data_offsets", FIRST),
    "a_hole_between": (
        build({"t": T, "u": entry("F32", [2], 12, 20)}, bytes(20)), "u data_offsets", after("t", "u"),
    ),
    "an_overlap": (build({"t": T, "u": entry("F32", [2], 4, 12)}, bytes(12)), "u data_offsets", after("t", "u")),
    "the_same_bytes_twice": (build({"t": T, "u": T}, bytes(8)), "u data_offsets", after("t", "u")),
    "bytes_that_belong_to_none": (build({"t": T}, bytes(9)), "data", len(build({"t": T})) + 8),
    "half_a_byte": (build({"t": entry("F4", [3], 0, 1)}, bytes(1)), "t data_offsets", FIRST),
}  # fmt: skip

GOOD: dict[str, bytes] = {
    "no_tensors": build({}),
    "spaces_after_the_header": build(b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   ', bytes(8)),
    "notes": build({"__metadata__": {"format": "pt"}, "t": T}, bytes(8)),
    "a_number": build({"t": entry("F32", [], 0, 4)}, bytes(4)),
    "no_elements": build({"t": entry("F32", [0, 5], 0, 0), "u": T}, bytes(8)),
    "no_elements_at_the_end": build({"u": T, "t": entry("F32", [0], 8, 8)}, bytes(8)),
    "not_in_order": build({"u": entry("F32", [2], 8, 16), "t": T}, bytes(16)),
    "not_aligned": build({"a": entry("U8", [1], 0, 1), "t": entry("F16", [2], 1, 5)}, bytes(5)),
    "bfloat16": build({"t": entry("BF16", [4], 0, 8)}, bytes(8)),
    "four_bits": build({"t": entry("F4", [4], 0, 2)}, bytes(2)),
    "a_name_with_escapes": build(b'{"a\\u0062\\"\\/c":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
}
