"""Where a content is cut, and how templates join it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spinf_core.compiler.content import Content, Joiner, cut_content, merges_uncut, tokenize_templates
from spinf_core.compiler.words import WordEncoder
from spinf_core.testing.tokenizers import texts
from spinf_core.testing.toy import toy_tokenizer

TOKENIZER = toy_tokenizer()
WORDS = WordEncoder(TOKENIZER)
LONG_WORD = "x" * 600


def joined(content: Content, template: str) -> list[int]:
    (tokens,) = tokenize_templates([template], WORDS)
    return list(Joiner(content, WordEncoder(TOKENIZER)).join(tokens))


@given(texts(8).map(lambda text: text[:32]))
def test_a_content_of_up_to_32_characters_is_left_to_the_trie_whole(text: str) -> None:
    assert cut_content(text, TOKENIZER) == Content((), text, tuple(TOKENIZER.encode(text)))


@settings(deadline=None)
@given(texts(40))
def test_head_and_tail_are_the_content_s_own_tokens(text: str) -> None:
    content = cut_content(text, TOKENIZER)
    assert [*content.head, *content.tail_ids] == TOKENIZER.encode(text)
    assert content.tokens == len(TOKENIZER.encode(text))
    if content.clean:
        assert TOKENIZER.decode(content.head) + content.tail == text
        assert len(content.tail) >= min(32, len(text))


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        ("the question is about the red wing and the blue gate", " about the red wing and the blue gate"),
        ("the red gate. " + "x" * 31, " " + "x" * 31),  # 32 characters, to the very one
        ("the red gate. " + "x" * 30, ". " + "x" * 30),
        ("the red gate" + " " * 60, " " * 60),  # white space is not parted
        ("你好，" * 20, "你好，" * 11),
    ],
)
def test_the_tail_is_the_shortest_that_stands_apart(text: str, tail: str) -> None:
    content = cut_content(text, TOKENIZER)
    assert content.tail == tail
    assert content.clean


def test_one_long_word_has_no_clean_cut() -> None:
    content = cut_content("the red gate " + LONG_WORD, TOKENIZER)
    assert not content.clean
    assert content.tail == ""
    assert list(content.head) == TOKENIZER.encode("the red gate " + LONG_WORD)


def test_the_long_word_may_come_earlier() -> None:
    assert cut_content(LONG_WORD + " and the question is about the red gate", TOKENIZER).clean


@pytest.mark.parametrize("end", ["Sta", "the question is about the north wing, Sta"])
def test_a_template_merges_with_the_end_of_a_content(end: str) -> None:
    content = cut_content(end, TOKENIZER)
    branch = joined(content, "tus is it?")
    assert [*content.head, *branch] == TOKENIZER.encode(end + "tus is it?")
    assert branch[: len(content.tail_ids)] != list(content.tail_ids)


def test_templates_that_do_not_merge_share_the_tail_as_their_stem() -> None:
    content = cut_content("the question is about the north wing and the gate", TOKENIZER)
    for template in ("\nIs it red?", " yes", ""):
        assert joined(content, template)[: len(content.tail_ids)] == list(content.tail_ids)


def test_prepared_joints_equal_those_made_one_by_one() -> None:
    content = cut_content("the question is about the north wing, Sta", TOKENIZER)
    templates = tokenize_templates(["tus is it?", " is it red or blue?", "", "tus", "\n\nanswer: it is"], WORDS)
    words = WordEncoder(TOKENIZER)
    prepared = Joiner(content, words)
    words.learn(word for each in templates for word in prepared.words(each.head))
    assert [prepared.join(each) for each in templates] == [
        Joiner(content, WordEncoder(TOKENIZER)).join(each) for each in templates
    ]


@pytest.mark.parametrize(("template", "merges"), [("tus", True), (" yes", False), ("!", False), ("", False)])
def test_which_templates_merge_with_a_content_without_a_cut(template: str, merges: bool) -> None:
    (tokens,) = tokenize_templates([template], WORDS)
    assert merges_uncut(LONG_WORD + "Sta", tokens, WORDS) is merges


@settings(deadline=None)
@given(texts(12), st.integers(0, 40))
def test_the_cut_depends_on_the_content_alone(text: str, number: int) -> None:
    """Cut twice, with templates joined in between: a joiner leaves nothing behind in the tokenizer."""
    before = cut_content(text, TOKENIZER)
    joined(before, "tus" * number)
    assert cut_content(text, TOKENIZER) == before
