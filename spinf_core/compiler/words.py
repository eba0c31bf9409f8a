"""Tokenizing many texts that share words: each word once, where the tokenizer lets a text be parted at spaces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

from spinf_core.tokenizer import Tokenizer

BREAK = re.compile(r"(?<=[A-Za-z0-9])(?= [A-Za-z0-9])")
"""Between an ASCII letter or digit and a space before another; see `Tokenizer.breaks_at_spaces`."""


class WordEncoder:
    """Encodes texts word by word and remembers every word, for as long as a request is compiled.

    A word is a stretch of text that tokenizes apart from its neighbours: with the space before it, up to the next break. For
    a tokenizer that does not break at spaces every text is one word. Everything is a tuple: the collector of garbage passes
    over tuples of numbers and strings, and there are very many.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._breaks = tokenizer.breaks_at_spaces
        self._known: dict[str, tuple[int, ...]] = {}

    def split(self, text: str) -> tuple[str, ...]:
        """The words of a text, one behind another; at least one, which may be empty."""
        return tuple(BREAK.split(text)) if self._breaks else (text,)

    def learn(self, words: Iterable[str]) -> None:
        """Tokenize the words that are not known yet, all at once."""
        unknown = list(dict.fromkeys(word for word in words if word not in self._known))
        self._known.update(zip(unknown, map(tuple, self._tokenizer.encode_batch(unknown)), strict=True))

    def ids(self, words: Iterable[str]) -> tuple[int, ...]:
        """Token ids of words that were learnt, one behind another."""
        return tuple(chain.from_iterable(map(self._known.__getitem__, words)))

    def encode(self, word: str) -> tuple[int, ...]:
        """Token ids of one word."""
        ids = self._known.get(word)
        if ids is None:
            ids = self._known[word] = tuple(self._tokenizer.encode(word))
        return ids
