"""What the compiler relies on in a tokenizer, as checks that a plugin's tests run on its own.

    class TestMyTokenizer(TokenizerConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def tokenizer(cls):
            return Tokenizer.from_folder(folder)

`check_joins` and `check_ending` try one text each, outside pytest.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spinf_core.compiler.content import Joiner, cut_content, merges_uncut, tokenize_templates
from spinf_core.compiler.options import ending
from spinf_core.compiler.words import WordEncoder
from spinf_core.tokenizer import Tokenizer

_WORDS = (
    *(
        "the",
        "of",
        "Yes",
        "no",
        "status",
        "Sta",
        "tus",
        "question",
        "it's",
        "don't",
        "north wing",
        "foo_bar",
        "naïve",
        "Straße",
    ),
    *("x1", "7", "2024", "3.14", "½", "你好", "世界", "，", "。", "😀", "👩‍👩‍👧", "é", "हिन्दी", "ไทย", "\u200b"),
    *("'", "''", '"', "-", "--", "...", "??", "!", ":", ";", "(", ")", "{", "}", "_", "=", "https://ex.am/ple", "<|end|>"),
)
_SPACES = (" ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ")
_RUNS = st.builds(lambda piece, count: piece * count, st.sampled_from([*_WORDS, *_SPACES, "a", "ab"]), st.integers(2, 90))


def texts(max_pieces: int) -> st.SearchStrategy[str]:
    """Words, punctuation, digits, runs of white space, emoji, CJK and long runs of one thing, with spaces here and there."""
    piece = st.one_of(st.sampled_from(_WORDS), st.just(" "), st.sampled_from(_SPACES), _RUNS, st.text(max_size=4))
    return st.lists(piece, max_size=max_pieces).map("".join).filter(_encodable)


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_joins(tokenizer: Tokenizer, text: str, template: str) -> None:
    """Behind a content that was cut cleanly, the content's head and the branch are the tokens of the whole prompt."""
    content = cut_content(text, tokenizer)
    words = WordEncoder(tokenizer)
    (tokens,) = tokenize_templates([template], words)
    branch = Joiner(content, words).join(tokens)
    whole = tokenizer.encode(text + template)
    if content.clean:
        assert [*content.head, *branch] == whole, f"content {text!r} cut before {content.tail!r}, template {template!r}"
    else:
        assert ([*content.head, *branch] != whole) == merges_uncut(text, tokens, words), f"{text!r}, {template!r}"


def check_ending(tokenizer: Tokenizer, template: str, option: str) -> None:
    """Whether an option stands apart from a whole template can be told from the template's `ending`."""

    def apart(text: str) -> bool:
        return tokenizer.encode(text + option) == tokenizer.encode(text) + tokenizer.encode(option)

    end = ending(template, tokenizer)
    assert template.endswith(end)
    assert apart(end) == apart(template), f"option {option!r} behind {template!r}, told from {end!r}"


_checked = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


class TokenizerConformance:
    """Subclass it in a plugin's tests; see the module's docstring."""

    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls) -> Tokenizer:
        """The checkpoint's tokenizer."""
        raise TypeError(f"{cls.__name__} must define the fixture `tokenizer`")

    @_checked
    @given(text=texts(40), template=texts(6))
    @example(text="\n" + " " * 112, template="!")  # the last space of a run goes to what follows it
    @example(text="gate\n" + " " * 40, template="\n")  # white space up to the last line break may be one piece
    def test_branches_hold_the_tokens_of_the_whole_prompt(self, tokenizer: Tokenizer, text: str, template: str) -> None:
        """See `check_joins`."""
        check_joins(tokenizer, text, template)

    @_checked
    @given(template=texts(8), option=texts(3).map(lambda text: text[:24]).filter(bool))
    def test_the_ending_decides_as_the_whole_template_does(self, tokenizer: Tokenizer, template: str, option: str) -> None:
        """See `check_ending`."""
        check_ending(tokenizer, template, option)

    @_checked
    @given(text=texts(12))
    def test_text_never_becomes_a_control_token(self, tokenizer: Tokenizer, text: str) -> None:
        """The spelling of control tokens is ordinary text."""
        assert tokenizer.control.isdisjoint(tokenizer.encode(text)), repr(text)
