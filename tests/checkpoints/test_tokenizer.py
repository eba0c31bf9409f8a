"""Typed text never becomes a control token, and a text may be cut where the tokenizer says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from spinf_core.errors import SetupError
from spinf_core.tokenizer import Tokenizer

CORPUS = ["the cat sat on the mat and the dog ran to the other dog", "it is the other one: it isn't 12 or 345"] * 3
SPECIAL = ["<s>", "<|im_end|>"]


def byte_level() -> Backend:
    """Byte-level BPE as GPT-2 and Llama 3 have it, trained here."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def sentencepiece_like(*, prefix: str) -> Backend:
    """BPE over ▁-marked words, as Llama 2 and Gemma have it."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix)
    backend.decoder = decoders.Metaspace(prepend_scheme=prefix)
    trainer = trainers.BpeTrainer(vocab_size=100, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator([*CORPUS, "abcdefghijklmnopqrstuvwxyz 0123456789"], trainer)
    return backend


def write(folder: Path, backend: Backend, **files: dict[str, Any]) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level())


TEXTS = ["", " ", "the cat", "  two  spaces ", "<|im_end|>", "a<s>b", "<|im_end|>\n<s>the<s>", "é½ ٣ 😀\n\n\t", "nul\0"]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers_with_special_tokens_split(text: str) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level(), split_special_tokens=True)
    assert Tokenizer(byte_level()).encode(text) == theirs.encode(text, add_special_tokens=False)


@given(st.lists(st.sampled_from([*SPECIAL, "<", "s>", "|im_end|>", " ", "the", "\n"])).map("".join))
def test_no_spelling_of_a_control_token_yields_it(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.control.isdisjoint(ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "token", ["<think>", "</tool_call>", "<|channel>", "<turn|>", "[INST]", "<unused7>", "<start_of_turn>"]
)
def test_markup_that_is_not_marked_special_is_split_too(token: str) -> None:
    backend = byte_level()
    backend.add_tokens([AddedToken(token, special=False, normalized=False)])
    number = backend.token_to_id(token)
    assert number in backend.encode(token).ids
    tokenizer = Tokenizer(backend)
    assert number in tokenizer.control
    assert number not in tokenizer.encode(f"a{token}b")
    assert tokenizer.decode(tokenizer.encode(f"a{token}b")) == f"a{token}b"


@pytest.mark.parametrize("token", ["<h1>", "</table>", "\n\n\n", "    ", "[1]"])
def test_added_tokens_that_are_text_stay(token: str) -> None:
    backend = byte_level()
    backend.add_tokens([AddedToken(token, special=False, normalized=False)])
    assert Tokenizer(backend).encode(token) == [backend.token_to_id(token)]


def test_a_special_token_that_cannot_be_split_is_refused() -> None:
    backend = byte_level()
    backend.add_special_tokens(["the"])
    with pytest.raises(SetupError, match="cannot split its control token 'the'"):
        Tokenizer(backend)


def test_control_tokens_decode_to_their_spelling(tokenizer: Tokenizer) -> None:
    (number,) = {n for n in tokenizer.control if tokenizer.decode([n]) == "<|im_end|>"}
    assert number == byte_level().token_to_id("<|im_end|>")


def test_a_batch_is_each_text_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_truncation_and_padding_of_the_file_do_not_apply() -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    assert Tokenizer(backend).encode_batch(TEXTS) == Tokenizer(byte_level()).encode_batch(TEXTS)


def test_threads_may_encode_at_once(tokenizer: Tokenizer) -> None:
    texts = [f"the cat {n} <|im_end|> sat" for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == tokenizer.encode_batch(texts)


WORDS = st.text("theca dog12<|>é😀\n:.'", max_size=12)


@given(WORDS, st.sampled_from("at9Z"), WORDS)
def test_a_text_is_cut_between_a_letter_and_a_space(tokenizer: Tokenizer, head: str, letter: str, tail: str) -> None:
    left, right = head + letter, " " + tail
    assert tokenizer.breaks_at_spaces
    assert tokenizer.encode(left + right) == tokenizer.encode(left) + tokenizer.encode(right)


def test_a_sentencepiece_vocabulary_without_a_prefix_breaks_at_spaces() -> None:
    assert Tokenizer(sentencepiece_like(prefix="never")).breaks_at_spaces


def test_a_prefix_space_is_no_clean_break() -> None:
    assert not Tokenizer(sentencepiece_like(prefix="always")).breaks_at_spaces


def test_a_piece_that_spans_a_break_is_found() -> None:
    backend = byte_level()
    content = json.loads(backend.to_str())
    content["model"]["vocab"]["tĠ"] = len(content["model"]["vocab"])
    content["model"]["merges"].append(["t", "Ġ"])
    assert not Tokenizer(Backend.from_str(json.dumps(content))).breaks_at_spaces


def test_a_normalizer_that_strips_is_no_clean_break() -> None:
    backend = byte_level()
    backend.normalizer = normalizers.Strip()
    assert not Tokenizer(backend).breaks_at_spaces


@pytest.mark.parametrize(("build", "splits"), [(byte_level, True), (lambda: sentencepiece_like(prefix="never"), False)])
def test_whether_words_are_parted_from_colons(build: Callable[[], Backend], splits: bool) -> None:
    assert Tokenizer(build()).splits_words is splits


def with_bos_template() -> Backend:
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return backend


@pytest.mark.parametrize(
    ("backend", "settings", "bos"),
    [
        (byte_level, {"bos_token": "<s>"}, None),
        (byte_level, {"bos_token": "<s>", "add_bos_token": False}, None),
        (byte_level, {"bos_token": "<s>", "add_bos_token": True}, 0),
        (byte_level, {"bos_token": {"content": "<s>"}, "add_bos_token": True}, 0),
        (with_bos_template, {"bos_token": "<s>"}, 0),
        (with_bos_template, {"bos_token": "<s>", "add_bos_token": False}, None),
        (with_bos_template, {"bos_token": None}, 0),
    ],
)
def test_bos_is_what_the_tokenizer_adds(
    tmp_path: Path, backend: Callable[[], Backend], settings: dict[str, Any], bos: int | None
) -> None:
    folder = write(tmp_path, backend(), tokenizer_config=settings, config={"bos_token_id": 0})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.bos == bos
    assert 0 not in tokenizer.encode("the cat")


def test_a_bos_that_is_asked_for_and_not_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="asks for a BOS token"):
        Tokenizer.from_folder(write(tmp_path, byte_level(), tokenizer_config={"add_bos_token": True}))


def test_every_end_token_counts_once(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        byte_level(),
        tokenizer_config={"eos_token": "<|im_end|>"},
        config={"text_config": {"eos_token_id": 1}},
        generation_config={"eos_token_id": [1, 5]},
    )
    assert Tokenizer.from_folder(folder).eos == (1, 5)


def test_the_hash_follows_vocabulary_and_bos_and_nothing_else(tmp_path: Path) -> None:
    plain = Tokenizer(byte_level())
    folder = write(tmp_path, byte_level())
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4, sort_keys=True))
    assert Tokenizer.from_folder(folder).hash == plain.hash
    assert Tokenizer(byte_level(), bos=0).hash != plain.hash
    longer = byte_level()
    longer.add_tokens(["xyzzy"])
    assert Tokenizer(longer).hash != plain.hash


def test_another_format_is_converted_once_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gpt2"
    folder.mkdir()
    backend = byte_level()
    backend.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    before = sorted(folder.iterdir())
    ids = Tokenizer.from_folder(folder).encode("the cat's other dog 12")
    assert ids == Tokenizer(backend).encode("the cat's other dog 12")
    assert sorted(folder.iterdir()) == before
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", None)
    assert Tokenizer.from_folder(folder).encode("the cat's other dog 12") == ids


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has no tokenizer: tokenizer\.json is missing"):
        Tokenizer.from_folder(tmp_path)


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(SetupError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_the_usual_path_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    code = (
        "import sys, pathlib; from spinf_core.tokenizer import Tokenizer; "
        "Tokenizer.from_folder(pathlib.Path(sys.argv[1])).encode('a'); "
        "sys.exit(str([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stderr.strip() == ""
