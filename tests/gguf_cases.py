"""GGUF files made by hand: faulty ones with what must be said about each, unusual ones that are sound."""

from __future__ import annotations

from gguf_writer import (
    ARRAY,
    BOOL,
    F16,
    INT32,
    Q8_0,
    STRING,
    UINT8,
    UINT32,
    array,
    build,
    kv,
    tensor,
    text,
    u32,
    u64,
)  # fmt: skip

MAX64 = (1 << 64) - 1
HEADER = 24  # bytes before the first metadata entry
ALIGN = "general.alignment"
AB = kv("ab", UINT32, u32(7))  # 8 + 2 + 4 + 4 = 18 bytes
AFTER_AB = HEADER + len(AB)


def align(n: int, kind: int = UINT32) -> bytes:
    return kv(ALIGN, kind, u32(n))


def nested(depth: int) -> bytes:
    """An array of one array of one array of …, with a byte in the innermost."""
    return (u32(ARRAY) + u64(1)) * (depth - 1) + array(UINT8, b"\1")


# In capitals as in the reference implementation's test of faulty files (test-gguf.cpp), then what came since.
# name -> (bytes, the field that must be blamed, the offset that must be given)
BAD: dict[str, tuple[bytes, str, int]] = {
    "HEADER_BAD_MAGIC": (build(magic=b"FUGG"), "magic", 0),
    "HEADER_BAD_VERSION_0": (build(version=0), "version", 4),
    "HEADER_BAD_VERSION_1": (build(version=1), "version", 4),
    "HEADER_BAD_VERSION_FUTURE": (build(version=4), "version", 4),
    "HEADER_BAD_N_TENSORS": (build(n_tensors=MAX64), "tensor count", 8),
    "HEADER_BAD_N_KV": (build(n_kv=MAX64), "metadata count", 16),
    "KV_BAD_KEY_SIZE": (build([text("ab", length=MAX64) + u32(UINT32) + u32(7)]), "metadata key 0", HEADER),
    "KV_EMPTY_KEY": (build([kv("", UINT32, u32(7))]), "metadata key 0", HEADER),
    "KV_BAD_TYPE": (build([kv("ab", 13, b"\0")]), "ab", HEADER + 10),
    "KV_DUPLICATE_KEY": (build([AB, AB]), "ab", AFTER_AB),
    "KV_BAD_ALIGN": (build([AB, align(13)]), ALIGN, AFTER_AB),
    "KV_WRONG_TYPE_ALIGN": (build([AB, align(32, INT32)]), ALIGN, AFTER_AB),
    "TENSORS_BAD_NAME_SIZE": (build([AB], [tensor("t" * 64, [1])], bytes(4)), "tensor 0 name", AFTER_AB),
    "TENSORS_BAD_N_DIMS": (build([AB], [tensor("t", [1] * 5)], bytes(4)), "t", AFTER_AB),
    "TENSORS_BAD_SHAPE": (build([AB], [tensor("t", [MAX64])], bytes(4)), "t shape", AFTER_AB),
    "TENSORS_ZERO_DIM": (build([AB], [tensor("t", [0, 5])]), "t shape", AFTER_AB),  # case C11-01; llama.cpp takes it
    "TENSORS_NE_TOO_BIG": (build([AB], [tensor("t", [1 << 40, 1 << 40])], bytes(4)), "t shape", AFTER_AB),
    "TENSORS_NBYTES_TOO_BIG": (build([AB], [tensor("t", [(1 << 63) - 1])], bytes(4)), "t data", AFTER_AB),
    "TENSORS_NBYTES_PAD_WRAP": (build([AB], [tensor("t", [(1 << 62) - 1])], bytes(4)), "t data", AFTER_AB),
    "rows_of_half_a_block": (build([AB], [tensor("t", [16, 2], Q8_0)], bytes(34)), "t shape", AFTER_AB),
    "TENSORS_BAD_TYPE": (build([AB], [tensor("t", [1], 0xFFFFFFFF)]), "t format", AFTER_AB + 21),
    "TENSORS_BAD_OFFSET": (build([AB], [tensor("t", [1], offset=32)], bytes(64)), "t offset", AFTER_AB),
    "TENSORS_DUPLICATE_NAME": (
        build([AB], [tensor("t", [1]), tensor("t", [1], offset=32)], bytes(36)), "t", AFTER_AB + 33,
    ),
    "TENSORS_BAD_ALIGN": (build([align(13)], [tensor("t", [1])], bytes(4), align=13), ALIGN, HEADER),
    "TENSORS_INCONSISTENT_ALIGN": (
        build([AB], [tensor("t", [1]), tensor("u", [1], offset=4)], bytes(8)), "u offset", AFTER_AB + 33,
    ),
    "DATA_NOT_ENOUGH_DATA": (build([AB], [tensor("t", [8])], bytes(31)), "t data", AFTER_AB),
    "DATA_BAD_ALIGN": (build([align(48)], [tensor("t", [8])], bytes(32), align=48), ALIGN, HEADER),
    "DATA_INCONSISTENT_ALIGN": (
        build([align(8)], [tensor("t", [1]), tensor("u", [1], offset=32)], bytes(36), align=8), "u offset",
        HEADER + len(align(8)) + 33,
    ),
    "DATA_MEM_SIZE_OVERFLOW": (  # each is possible, their sum wraps to nearly nothing
        build([AB], [tensor("t", [1 << 62]), tensor("u", [1 << 62])], bytes(64)), "t data", AFTER_AB,
    ),
    "second_tensor_past_the_end": (
        build([AB], [tensor("t", [8]), tensor("u", [8], offset=32)], bytes(63)), "u data", AFTER_AB + 33,
    ),
    "align_0": (build([align(0)]), ALIGN, HEADER),
    "array_past_the_end": (build([kv("ab", ARRAY, array(UINT8, count=1 << 20))]), "ab", HEADER + 26),
    "strings_past_the_end": (build([kv("ab", ARRAY, array(STRING, count=MAX64))]), "ab", HEADER + 18),
    "array_of_nothing": (build([kv("ab", ARRAY, array(99, b"\0"))]), "ab", HEADER + 14),
    "arrays_5000_deep": (build([kv("ab", ARRAY, nested(5000))]), "ab", HEADER + 14 + 4 * 12),
    "bool_7": (build([kv("ab", BOOL, b"\7")]), "ab", HEADER + 14),
    "bool_7_in_an_array": (build([kv("ab", ARRAY, array(BOOL, b"\1", b"\0", b"\7"))]), "ab", HEADER + 28),
    "string_of_2_to_the_63": (build([kv("ab", STRING, text("x", length=1 << 63))]), "ab", HEADER + 14),
    "string_past_the_end": (build([kv("ab", STRING, text("x", length=2))]), "ab", HEADER + 22),
    "string_not_utf_8": (build([kv("ab", STRING, text(b"x\xff"))]), "ab", HEADER + 23),
    "key_not_utf_8": (build([kv(b"\xff", UINT32, u32(1))]), "metadata key 0", HEADER + 8),
    "key_of_64_KiB": (build([kv("k" * 65537, UINT32, u32(1))]), "metadata key 0", HEADER),
    "counts_of_2_to_the_62": (build(n_tensors=1 << 62, n_kv=1 << 40), "tensor count", 8),
    "one_kv_less_than_said": (build([AB], n_kv=2, data=bytes(40)), "metadata key 1", AFTER_AB),
    "dims_200": (build([AB], [tensor("t", [1], n_dims=200)], bytes(4)), "t", AFTER_AB),
    "dims_that_wrap": (build([AB], [tensor("t", [MAX64, 2])], bytes(4)), "t shape", AFTER_AB),
    "dims_that_wrap_to_a_few_mib": (
        build([AB], [tensor("t", [(1 << 42) + 1, 576])], bytes(4)), "t data", AFTER_AB,
    ),
    "dims_2_to_the_32_four_times": (build([AB], [tensor("t", [1 << 32] * 4)], bytes(4)), "t shape", AFTER_AB),
    "half_a_block": (build([AB], [tensor("t", [16], Q8_0)], bytes(34)), "t shape", AFTER_AB),
    "half_a_block_without_dims": (build([AB], [tensor("t", [], Q8_0)], bytes(34)), "t shape", AFTER_AB),
    "tensors_overlap": (
        build([AB], [tensor("t", [16]), tensor("u", [16], offset=32)], bytes(128)), "u offset", AFTER_AB + 33,
    ),
    "tensors_leave_a_gap": (
        build([AB], [tensor("t", [8]), tensor("u", [8], offset=64)], bytes(128)), "u offset", AFTER_AB + 33,
    ),
    "big_endian": (build(version=0x03000000), "version", 4),
    "git_lfs_pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "magic", 0),
    "empty": (b"", "header", 0),
}  # fmt: skip

GOOD: dict[str, bytes] = {
    "HEADER_EMPTY": build(),
    "KV_SUCCESS": build([AB]),
    "TENSORS_SUCCESS": build([AB], [tensor("t", [8]), tensor("u", [3], offset=32)], bytes(44)),
    "TENSORS_CUSTOM_ALIGN": build([align(1)], [tensor("t", [3], F16), tensor("u", [1], offset=6)], bytes(10), align=1),
    "DATA_SUCCESS": build([AB], [tensor("t", [32, 2], Q8_0)], bytes(68)),
    "DATA_CUSTOM_ALIGN": build([align(64)], [tensor("t", [3]), tensor("u", [1], offset=64)], bytes(68), align=64),
    "version_2": build([AB], version=2),
    "arrays_4_deep": build([kv("ab", ARRAY, nested(4))]),
    "an_empty_array_at_the_end": build([kv("ab", ARRAY, array(UINT8))]),
    "no_dims_is_one_number": build([AB], [tensor("t", [])], bytes(4)),
    "a_name_of_63": build([AB], [tensor("t" * 63, [1])], bytes(4)),
}
