"""Files that are no model, or are kept in a way that is not known: called by their name, never half loaded."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf_writer import ARRAY, STRING, UINT32, array, build, kv, tensor, text, u32
from safetensors_writer import folder, tensors

import glassbox
from glassbox.errors import GlassboxError, ModelFormatError, ModelNotFound, Unsupported
from glassbox.weights.foreign import ggml_format
from glassbox.weights.kinds import refuse_what_is_no_model
from glassbox.weights.opening import open_checkpoint

ARCH = kv("general.architecture", STRING, text("llama"))
T = [tensor("t", [8])]


def typed(kind: str) -> bytes:
    return build([ARCH, kv("general.type", STRING, text(kind))], T, bytes(32))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (typed("adapter"), "LoRA adapter"),
        (build([ARCH, kv("adapter.type", STRING, text("lora"))], T, bytes(32)), "LoRA adapter"),
        (typed("mmproj"), r"mmproj \(the vision or audio part"),
        (build([kv("general.architecture", STRING, text("clip"))], T, bytes(32)), "mmproj"),
        (typed("imatrix"), "importance matrix"),
        (typed("vocab"), "vocabulary without weights"),
        (build([ARCH, kv("tokenizer.ggml.tokens", ARRAY, array(STRING, text("a")))]), "vocabulary without weights"),
        (build([ARCH]), "metadata without weights"),
        (build([kv("general.architecture", STRING, text("controlvector"))], T, bytes(32)), "control vector"),
        (build([ARCH], [tensor("t", [256], 16)], bytes(66)), "format of the tensor t: 'IQ2_XXS'"),
        (build([ARCH], [tensor("t", [256], 34)], bytes(54)), "'TQ1_0'"),
        (build([ARCH], [tensor("t", [8], 28)], bytes(64)), "'F64'"),
    ],
)
def test_a_gguf_file_that_is_no_model(tmp_path: Path, raw: bytes, words: str) -> None:
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(Unsupported, match=words) as caught:
        glassbox.load(tmp_path / "m.gguf")
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["general.type", "general.architecture"])
def test_what_a_file_is_must_be_said_in_words(tmp_path: Path, key: str) -> None:
    others = [] if key == "general.architecture" else [ARCH]
    (tmp_path / "m.gguf").write_bytes(build([*others, kv(key, UINT32, u32(7))], T, bytes(32)))
    with pytest.raises(ModelFormatError, match=r"is 7, but must be a string") as caught:
        glassbox.load(tmp_path / "m.gguf")
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("LlamaForSequenceClassification", True),
        ("Qwen2ForRewardModel", True),
        ("BertForMaskedLM", True),
        ("LlamaForCausalLM", False),
        ("GPT2LMHeadModel", False),
    ],
)
def test_a_model_of_something_else_than_the_next_token(tmp_path: Path, name: str, refused: bool) -> None:
    files = {"config.json": {"model_type": "llama", "architectures": [name]}, "model.safetensors": WEIGHTS}
    file = open_checkpoint(folder(tmp_path / "m", files))
    with pytest.raises(Unsupported, match=f"kind of model '{name}'") if refused else nullcontext():
        refuse_what_is_no_model(file)


@pytest.mark.parametrize(
    ("code", "words"), [(4, "Q4_2 is not supported"), (36, "IQ4_NL_4_4 is not"), (99, "code 99 is")]
)
def test_a_format_that_is_gone_or_unknown(tmp_path: Path, code: int, words: str) -> None:
    (tmp_path / "m.gguf").write_bytes(build([ARCH], [tensor("t", [256], code)], bytes(512)))
    with pytest.raises(ModelFormatError, match=words):
        glassbox.load(tmp_path / "m.gguf")


WEIGHTS = tensors({"w": np.zeros((2, 8), np.float32)})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quantization_config": {"quant_method": m}}, f"quantisation .quantization_config. '{m}'")
        for m in ("gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors")
    ]
    + [
        ({"quantization_config": {"load_in_8bit": True}}, "'?'"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantisation .quantization."),
    ],
)
def test_codes_of_a_quantiser(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    files = {"config.json": {"model_type": "llama"} | config, "model.safetensors": WEIGHTS}
    with pytest.raises(Unsupported, match=words):
        glassbox.load(folder(tmp_path / "m", files))


def test_a_dtype_that_is_not_decoded_is_refused_unless_it_is_a_mask(tmp_path: Path) -> None:
    mask = {"h.0.attn.bias": np.ones((1, 1, 4, 4), bool), "embeddings.position_ids": np.arange(4)}
    files = {"config.json": {"model_type": "gpt2"}, "model.safetensors": tensors(mask)}
    refuse_what_is_no_model(open_checkpoint(folder(tmp_path / "m", files)))
    for name in ("h.0.attn.c_attn.bias", "h.0.mlp.c_fc.weight", "w"):
        weights = tensors(mask | {name: np.arange(4)})
        with pytest.raises(Unsupported, match=rf"format of the tensor {name}: 'I64' .*\(known: F32, F16, BF16\)"):
            glassbox.load(folder(tmp_path / "m", files | {"model.safetensors": weights}))


@pytest.mark.parametrize(
    ("name", "raw", "kind", "words"),
    [
        ("pytorch_model.bin", b"PK\3\4" + bytes(9), Unsupported, "PyTorch pickle"),
        ("m.pt", b"\x80\2}q\0.", Unsupported, "PyTorch pickle"),
        ("model", b"PK\3\4" + bytes(9), Unsupported, "PyTorch pickle"),
        ("model.gguf", b"\x80\4}.", Unsupported, "PyTorch pickle"),
        ("model.onnx", b"\x08", Unsupported, "ONNX"),
        ("ggml-model.q4_0", b"tjgg" + bytes(9), Unsupported, "GGML before GGUF"),
        ("adapter_model.safetensors", WEIGHTS, Unsupported, "LoRA adapter"),
        ("adapter_model.bin", b"PK\3\4", Unsupported, "LoRA adapter"),
        ("model.safetensors", WEIGHTS, ModelNotFound, "name the folder that holds it"),
        ("config.json", b"{}", ModelNotFound, "name the folder that holds it"),
        ("model.safetensors.index.json", b"{}", ModelNotFound, "name the folder that holds it"),
        ("m.gguf", b"", ModelFormatError, "the file is empty"),
        ("m.txt", b"hello", ModelFormatError, "not a GGUF file"),
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, name: str, raw: bytes, kind: type[GlassboxError], words: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(kind, match=words):
        glassbox.load(tmp_path / name)


def test_a_gguf_may_be_called_what_it_likes(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(build([ARCH], T, bytes(32)))
    assert list(open_checkpoint(tmp_path / "m.bin").tensors) == ["t"]


@pytest.mark.parametrize("kind", GGMLQuantizationType, ids=lambda k: k.name)
def test_blocks_are_as_large_as_the_formats_owner_says(kind: GGMLQuantizationType) -> None:
    fmt = ggml_format(kind.value)
    if fmt is None:
        assert kind.name in ("Q1_0", "Q8_1", "Q8_K")  # of no file, or younger than the table: refused when it is opened
    else:
        assert (fmt.name, fmt.code, (fmt.elements, fmt.bytes)) == (kind.name, kind.value, GGML_QUANT_SIZES[kind])
