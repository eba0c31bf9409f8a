"""The toy's tokenizer does what the compiler relies on, and so do kinds that split words and spaces otherwise."""

from __future__ import annotations

import json

import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from spinf_core.testing.tokenizers import TokenizerConformance
from spinf_core.testing.toy import toy_tokenizer
from spinf_core.tokenizer import Tokenizer

CORPUS = [
    "the north wing, the north gate; it's a question of status: yes or no?",
    "out of  the\n\n  question ...",
    "aaaa == --",
]
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class TestToy(TokenizerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls) -> Tokenizer:
        return toy_tokenizer()


class TestLlama3Splitting(TokenizerConformance):
    """Its pre-tokenizer takes line breaks into the punctuation before them, and looks through white space for one."""

    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls) -> Tokenizer:
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        backend.train_from_iterator([*CORPUS, "gate\n \n \n the"] * 3, trainer)
        return Tokenizer(backend)


class TestWithoutPreTokenizer(TokenizerConformance):
    """Merges run over the whole text, as in Gemma's vocabulary; only the spaces between words hold them apart."""

    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls) -> Tokenizer:
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        backend.decoder = decoders.Metaspace(prepend_scheme="never")
        trainer = trainers.BpeTrainer(vocab_size=90, show_progress=False)
        backend.train_from_iterator([" ".join(word) for word in CORPUS], trainer)
        # As Gemma's does, it spells a character that it does not know in bytes rather than drop it.
        description = json.loads(backend.to_str())
        vocab = description["model"]["vocab"]
        for byte in range(256):
            vocab[f"<0x{byte:02X}>"] = len(vocab)
        description["model"]["byte_fallback"] = True
        return Tokenizer(Backend.from_str(json.dumps(description)))
