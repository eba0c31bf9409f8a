"""Texts tokenized word by word."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from spinf_core.compiler.words import LONGEST_WORD, KnownWords, WordEncoder
from spinf_core.testing.tokenizers import texts
from spinf_core.testing.toy import toy_tokenizer

TOKENIZER = toy_tokenizer()


@settings(deadline=None)
@given(texts(20))
def test_the_words_of_a_text_are_the_text(text: str) -> None:
    assert "".join(WordEncoder(TOKENIZER).split(text)) == text


@settings(deadline=None)
@given(texts(20))
def test_their_tokens_one_behind_another_are_the_text_s(text: str) -> None:
    words = WordEncoder(TOKENIZER)
    parts = words.split(text)
    words.learn(parts)
    assert list(words.ids(parts)) == TOKENIZER.encode(text)


def test_a_text_is_parted_at_spaces_between_letters_and_digits_only() -> None:
    assert WordEncoder(TOKENIZER).split("is it 7 or  8, Sta tus?") == ("is", " it", " 7", " or  8, Sta", " tus?")


def test_a_tokenizer_that_does_not_break_at_spaces_gets_its_texts_whole() -> None:
    tokenizer = toy_tokenizer()
    tokenizer.__dict__["breaks_at_spaces"] = False
    assert WordEncoder(tokenizer).split("is it red?") == ("is it red?",)


def test_words_of_earlier_requests_are_not_tokenized_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = KnownWords()
    before = WordEncoder(TOKENIZER, shared)
    before.learn(["the", " gate"])
    asked: list[str] = []
    encode = type(TOKENIZER).encode_batch
    monkeypatch.setattr(TOKENIZER, "encode_batch", lambda words: asked.extend(words) or encode(TOKENIZER, words))
    later = WordEncoder(TOKENIZER, shared)
    later.learn(["the", " gate", " opens"])
    assert asked == [" opens"]
    assert list(later.ids(["the", " gate", " opens"])) == TOKENIZER.encode("the gate opens")


def test_known_words_are_bounded_in_number_and_length() -> None:
    shared = KnownWords(most=2)
    words = WordEncoder(TOKENIZER, shared)
    words.learn(["a", "b", "c" * (LONGEST_WORD + 1)])
    assert [shared.get(word) is not None for word in ("a", "b", "c" * (LONGEST_WORD + 1))] == [True, True, False]
    words.learn(["d"])
    assert shared.get("a") is None
    assert shared.get("d") == tuple(TOKENIZER.encode("d"))
    assert list(words.ids(["a", "d"])) == [*TOKENIZER.encode("a"), *TOKENIZER.encode("d")]
