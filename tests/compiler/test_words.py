"""Texts tokenized word by word."""

from __future__ import annotations

from hypothesis import given, settings

from spinf_core.compiler.words import WordEncoder
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
