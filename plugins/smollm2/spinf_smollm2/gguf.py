"""Turns a Llama-architecture GGUF file into a checkpoint folder in Hugging Face's names.

Sources of the facts used here: the GGUF specification (github.com/ggml-org/ggml/blob/master/docs/gguf.md) for keys,
token types and tensor names; `convert_hf_to_gguf.py` of llama.cpp for the rotary permutation and the names of
pre-tokenizers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from spinf_core.errors import SetupError

VERSION = 1
"""Raised whenever `convert` writes something else for the same file, so that cached conversions are made again."""

_ARCHITECTURE = "llama"

_KNOWN_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
    }
)

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5


def convert(source: Path, folder: Path) -> None:
    """Write `config.json`, `model.safetensors`, `tokenizer.json` and `tokenizer_config.json` for a GGUF file.

    Weights are stored as float32. A quantized value is scale times integer plus offset with float16 scale and offset,
    which float32 holds and float16 does not: 42 % of SmolLM2's Q4_1 and Q8_0 values would change, and bfloat16 is
    coarser still. The file grows from 98 MB to 538 MB, but a start maps it and need not dequantize again.

    Args:
        source: the GGUF file.
        folder: an empty folder to write into.

    Raises:
        SetupError: for a file that is not GGUF, and for an architecture, key, tensor, token type or pre-tokenizer that
            is not known to be carried over exactly.
    """
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError, OSError) as error:
        raise SetupError(f"{source.name} cannot be read as GGUF: {error}") from error
    metadata = _Metadata(source.name, dict(reader.fields))
    shape = _read_shape(metadata, {tensor.name for tensor in reader.tensors})
    tokenizer, tokenizer_config = _read_tokenizer(metadata)
    if tokenizer.get_vocab_size() != shape.vocab_size:
        raise metadata.error(f"has {tokenizer.get_vocab_size():,} tokens for {shape.vocab_size:,} embeddings")
    _write_weights(folder / "model.safetensors", source.name, reader.tensors, shape)
    _write_json(folder / "config.json", _config(metadata, shape))
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"))


convert.version = VERSION  # type: ignore[attr-defined]  # checkpoints read it from the callable


@attrs.frozen
class _Metadata:
    """Typed access to a GGUF file's keys."""

    file: str
    fields: dict[str, Any]

    def error(self, what: str) -> SetupError:
        return SetupError(f"GGUF file {self.file} {what}")

    def get(self, name: str, default: Any = None) -> Any:
        field = self.fields.get(name)
        return default if field is None else field.contents()

    def need(self, name: str) -> Any:
        if name not in self.fields:
            raise self.error(f"lacks the key {name}")
        return self.get(name)


@attrs.frozen(kw_only=True)
class _Shape:
    """The numbers that fix every tensor's shape."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """GGUF name -> Hugging Face name and shape (out, in), in the order in which they are written."""
        hidden, queries, keys = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        known: dict[str, tuple[str, tuple[int, ...]]] = {
            "token_embd.weight": ("model.embed_tokens.weight", (self.vocab_size, hidden))
        }
        for layer in range(self.layers):
            for name, theirs, shape in (
                ("attn_norm", "input_layernorm", (hidden,)),
                ("attn_q", "self_attn.q_proj", (queries, hidden)),
                ("attn_k", "self_attn.k_proj", (keys, hidden)),
                ("attn_v", "self_attn.v_proj", (keys, hidden)),
                ("attn_output", "self_attn.o_proj", (hidden, queries)),
                ("ffn_norm", "post_attention_layernorm", (hidden,)),
                ("ffn_gate", "mlp.gate_proj", (self.intermediate, hidden)),
                ("ffn_up", "mlp.up_proj", (self.intermediate, hidden)),
                ("ffn_down", "mlp.down_proj", (hidden, self.intermediate)),
            ):
                known[f"blk.{layer}.{name}.weight"] = (f"model.layers.{layer}.{theirs}.weight", shape)
        known["output_norm.weight"] = ("model.norm.weight", (hidden,))
        if not self.tied:
            known["output.weight"] = ("lm_head.weight", (self.vocab_size, hidden))
        return known

    def rotary_heads(self, name: str) -> int:
        """How many rotary heads the rows of a GGUF tensor hold; 0 where none."""
        if name.endswith(".attn_q.weight"):
            return self.heads
        return self.kv_heads if name.endswith(".attn_k.weight") else 0


def _read_shape(metadata: _Metadata, tensors: set[str]) -> _Shape:
    architecture = metadata.need("general.architecture")
    if architecture != _ARCHITECTURE:
        raise metadata.error(f"holds the architecture {architecture!r}; this converter reads {_ARCHITECTURE!r} only")
    prefix = f"{_ARCHITECTURE}."
    for name in metadata.fields:
        if name.startswith(prefix) and name.removeprefix(prefix) not in _KNOWN_KEYS:
            raise metadata.error(f"has the key {name}, which this converter does not know how to honour")
    hidden = metadata.need(f"{prefix}embedding_length")
    heads = metadata.need(f"{prefix}attention.head_count")
    head_dim = metadata.get(f"{prefix}attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if (other := metadata.get(prefix + name, head_dim)) != head_dim:
            raise metadata.error(f"has {prefix}{name} {other} where heads are {head_dim} wide; only equal widths are read")
    return _Shape(
        layers=metadata.need(f"{prefix}block_count"),
        hidden=hidden,
        intermediate=metadata.need(f"{prefix}feed_forward_length"),
        heads=heads,
        kv_heads=metadata.get(f"{prefix}attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=metadata.get(f"{prefix}vocab_size", len(metadata.need("tokenizer.ggml.tokens"))),
        tied="output.weight" not in tensors,
    )


def _config(metadata: _Metadata, shape: _Shape) -> dict[str, Any]:
    theta = metadata.get("llama.rope.freq_base", 10000.0)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.need("llama.context_length"),
        "rms_norm_eps": metadata.need("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied,
    }
    for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{key}_token_id"] = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return config


def _write_weights(path: Path, file: str, tensors: Iterable[Any], shape: _Shape) -> None:
    """Write the safetensors file tensor by tensor: one dequantized tensor is in memory at a time."""
    known = shape.tensors()
    present = {tensor.name: tensor for tensor in tensors}
    if unknown := sorted(present.keys() - known.keys()):
        raise SetupError(f"GGUF file {file} holds tensors that this converter does not know: {', '.join(unknown[:8])}")
    if missing := sorted(known.keys() - present.keys()):
        raise SetupError(f"GGUF file {file} lacks the tensors {', '.join(missing[:8])}")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (theirs, dimensions) in known.items():
        # GGUF lists dimensions innermost first.
        if (found := tuple(int(size) for size in reversed(present[name].shape))) != dimensions:
            raise SetupError(f"GGUF file {file}: tensor {name} has shape {list(found)}, expected {list(dimensions)}")
        size = 4 * math.prod(dimensions)
        header[theirs] = {"dtype": "F32", "shape": dimensions, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little"))
        out.write(encoded)
        for name in known:
            out.write(_dequantized(present[name], shape.rotary_heads(name)).data)


def _dequantized(tensor: Any, rotary_heads: int) -> NDArray[np.float32]:
    """The tensor's values [out, in] (or [width]) as contiguous little-endian float32."""
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise SetupError(f"tensor {tensor.name} is quantized as {tensor.tensor_type.name}, which is not read") from error
    if rotary_heads:
        # llama.cpp rotates neighbouring pairs of a head's width, Hugging Face its two halves: the converter to GGUF
        # interleaved the halves of every head, and this puts them back.
        out, width = values.shape
        half = out // rotary_heads // 2
        values = values.reshape(rotary_heads, half, 2, width).swapaxes(1, 2).reshape(out, width)
    return np.ascontiguousarray(values, dtype="<f4")


def _read_tokenizer(metadata: _Metadata) -> tuple[Tokenizer, dict[str, Any]]:
    """The byte-level BPE tokenizer, and the content of `tokenizer_config.json`."""
    model = metadata.need("tokenizer.ggml.model")
    if model != "gpt2":
        raise metadata.error(f"has the tokenizer model {model!r}; only 'gpt2' (byte-level BPE) is read")
    if metadata.get("tokenizer.ggml.add_space_prefix", False):
        raise metadata.error("asks for a space before every text (tokenizer.ggml.add_space_prefix), which is not read")
    tokens: list[str] = metadata.need("tokenizer.ggml.tokens")
    types: list[int] = metadata.need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.need("tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise metadata.error("lists a token twice")
    if odd := sorted(set(types) - {_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED}):
        raise metadata.error(f"has tokens of type {odd[0]}, which byte-level BPE does not use")

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(metadata)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added(tokens, types, _CONTROL))
    tokenizer.add_tokens(_added(tokens, types, _USER_DEFINED))

    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "model_max_length": metadata.need("llama.context_length"),
        "clean_up_tokenization_spaces": False,
    }
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (number := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{key}_token"] = tokens[number]
    return tokenizer, config


def _added(tokens: list[str], types: list[int], wanted: int) -> list[AddedToken]:
    special = wanted == _CONTROL
    return [
        AddedToken(token, special=special, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == wanted
    ]


def _pre_tokenizer(metadata: _Metadata) -> Any:
    """The splitter that `tokenizer.ggml.pre` names; its results are tested against llama.cpp's own."""
    name = metadata.need("tokenizer.ggml.pre")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return byte_level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    raise metadata.error(f"has the pre-tokenizer {name!r} (tokenizer.ggml.pre); 'smollm' and 'gpt-2' are read")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
