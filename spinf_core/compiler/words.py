"""Tokenizing many texts that share words: each word once, where the tokenizer lets a text be parted at spaces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

from spinf_core.tokenizer import Tokenizer

BREAK = re.compile(r"(?<=[A-Za-z0-9])(?= [A-Za-z0-9])")
"""Between an ASCII letter or digit and a space before another; see `Tokenizer.breaks_at_spaces`."""


LONGEST_WORD = 64
"""Characters of a word that is kept for later requests."""


class KnownWords:
    """Words that requests have had tokenized, for those to come: the same questions are asked of content after content.

    May be used from several threads. Forgets everything when it is full.

    Args:
        most: words that are kept.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._known: dict[str, tuple[int, ...]] = {}

    def get(self, word: str) -> tuple[int, ...] | None:
        """Token ids of a word, if they are known."""
        return self._known.get(word)

    def add(self, words: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """Keep words that are not too long."""
        fresh = {word: ids for word, ids in words if len(word) <= LONGEST_WORD}
        if len(self._known) + len(fresh) > self._most:
            self._known = {}
        self._known.update(fresh)


class WordEncoder:
    """Encodes texts word by word and remembers every word, for as long as a request is compiled.

    A word is a stretch of text that tokenizes apart from its neighbours: with the space before it, up to the next break. For
    a tokenizer that does not break at spaces every text is one word. Everything is a tuple: the collector of garbage passes
    over tuples of numbers and strings, and there are very many.

    Args:
        tokenizer: of the model.
        shared: words of earlier requests.
    """

    def __init__(self, tokenizer: Tokenizer, shared: KnownWords | None = None) -> None:
        self._tokenizer = tokenizer
        self._breaks = tokenizer.breaks_at_spaces
        self._shared = shared or KnownWords()
        self._known: dict[str, tuple[int, ...]] = {}

    def split(self, text: str) -> tuple[str, ...]:
        """The words of a text, one behind another; at least one, which may be empty."""
        return tuple(BREAK.split(text)) if self._breaks else (text,)

    def learn(self, words: Iterable[str]) -> None:
        """Tokenize the words that are not known yet, all at once."""
        unknown = []
        for word in dict.fromkeys(word for word in words if word not in self._known):
            if (ids := self._shared.get(word)) is None:
                unknown.append(word)
            else:
                self._known[word] = ids
        fresh = [*zip(unknown, map(tuple, self._tokenizer.encode_batch(unknown)), strict=True)]
        self._known.update(fresh)
        self._shared.add(fresh)

    def ids(self, words: Iterable[str]) -> tuple[int, ...]:
        """Token ids of words that were learnt, one behind another."""
        return tuple(chain.from_iterable(map(self._known.__getitem__, words)))

    def encode(self, word: str) -> tuple[int, ...]:
        """Token ids of one word."""
        ids = self._known.get(word)
        if ids is None:
            ids = self._known[word] = tuple(self._tokenizer.encode(word))
        return ids
