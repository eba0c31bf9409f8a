"""The cut of a content, and how templates join its end.

The last few tokens of a text content are left to the trie, so that each prompt's branch starts with that tail tokenized anew
together with its template. The cut depends on the content alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from spinf_core.compiler.words import BREAK, WordEncoder
from spinf_core.tokenizer import EncodedText, Tokenizer

TAIL_CHARACTERS = 32
LONGEST_TAIL = 512


@attrs.frozen
class Content:
    """A content before its questions.

    Attributes:
        head: token ids up to the cut, without BOS.
        tail: the text left to the trie.
        tail_ids: its token ids, as they stand in the content.
        clean: whether a cut was found; if not, `tail` is empty and branches join at the token boundary.
    """

    head: tuple[int, ...]
    tail: str
    tail_ids: tuple[int, ...]
    clean: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of the content, BOS excluded."""
        return len(self.head) + len(self.tail_ids)


def cut_content(text: str, tokenizer: Tokenizer) -> Content:
    """`cut_contents` of one text."""
    (content,) = cut_contents([text], tokenizer.encode_with_places([text]), tokenizer)
    return content


def cut_contents(texts: Sequence[str], encoded: Sequence[EncodedText], tokenizer: Tokenizer) -> list[Content]:
    """Cut each content before the shortest tail of at least `TAIL_CHARACTERS` that stays apart from what is before it.

    Both sides must tokenize as they do together, and still do so when a template follows. So the cut lies where the
    pre-tokenizer starts a piece, for merges inside a piece can reach back from its end; and not behind white space, for how
    white space is parted may depend on where it ends. Where any text may be parted there is nothing to try. A content of up to
    `TAIL_CHARACTERS` is left to the trie whole.

    Args:
        texts: and how each is `encoded`.
    """
    ids = [each.ids for each in encoded]
    found: dict[int, Content] = {}
    places: dict[int, Iterator[tuple[int, int]]] = {}
    for index, text in enumerate(texts):
        if len(text) <= TAIL_CHARACTERS:
            found[index] = Content((), text, tuple(ids[index]))
        else:
            places[index] = _places(text, encoded[index], tokenizer)
    while places:
        chosen = {index: place for index, mine in places.items() if (place := next(mine, None)) is not None}
        for index in places.keys() - chosen.keys():
            found[index] = Content(tuple(ids[index]), "", (), clean=False)
        breaks = {index: _break_before(texts[index], encoded[index], *place, tokenizer) for index, place in chosen.items()}
        unsure = {index: place for index, place in chosen.items() if breaks[index] != place}
        sides = [
            side
            for index, (_, start) in unsure.items()
            for side in (texts[index][breaks[index][1] : start], texts[index][start:])
        ]
        encodings = iter(tokenizer.encode_batch(sides))
        for index, (number, start) in chosen.items():
            head, tail = ids[index][:number], ids[index][number:]
            if index not in unsure or (next(encodings), next(encodings)) == (head[breaks[index][0] :], tail):
                found[index] = Content(tuple(head), texts[index][start:], tuple(tail))
        places = {index: mine for index, mine in places.items() if index not in found}
    return [found[index] for index in range(len(texts))]


def _places(text: str, encoded: EncodedText, tokenizer: Tokenizer) -> Iterator[tuple[int, int]]:
    """Where a content may be cut, nearest to its end first: the number of a token, and the character at which it begins."""
    for number in range(len(encoded) - 1, -1, -1):
        start = encoded.start(number)
        if len(text) - start < TAIL_CHARACTERS:
            continue
        if len(text) - start > LONGEST_TAIL:
            return
        if number and not (
            encoded.start(number - 1) < start
            and not text[start - 1].isspace()
            and (
                encoded.piece(number - 1) != encoded.piece(number) or (tokenizer.breaks_at_spaces and BREAK.match(text, start))
            )
        ):
            continue
        yield number, start


def _break_before(text: str, encoded: EncodedText, number: int, start: int, tokenizer: Tokenizer) -> tuple[int, int]:
    """The last token up to `number` at which any text may be parted, and its character: how the text before it tokenizes does
    not depend on what follows, so it need not be tokenized again to see what a cut at `start` does."""
    if tokenizer.breaks_at_spaces:
        for before in range(number, 0, -1):
            at = encoded.start(before)
            if BREAK.match(text, at):
                return before, at
    return 0, 0


@attrs.frozen
class TemplateTokens:
    """A filled template on its own.

    Attributes:
        text: the template. ids: its tokens.
        head: its first word, the part that is tokenized together with a content's end. head_tokens: how many tokens that has
            on its own.
    """

    text: str
    ids: tuple[int, ...]
    head: str
    head_tokens: int


def tokenize_templates(texts: list[str], words: WordEncoder) -> list[TemplateTokens]:
    """Each text tokenized on its own."""
    split = [words.split(text) for text in texts]
    words.learn(word for parts in split for word in parts)
    return [
        TemplateTokens(text, words.ids(parts), parts[0], len(words.encode(parts[0])))
        for text, parts in zip(texts, split, strict=True)
    ]


class Joiner:
    """Joins templates to the end of one content: the tokens of a branch, from the cut on.

    Only the words on both sides of the joint are tokenized again.
    """

    def __init__(self, content: Content, words: WordEncoder) -> None:
        self._words = words
        *self._fixed, self._loose = words.split(content.tail)

    def words(self, head: str) -> tuple[str, ...]:
        """The words that make up the joint with a template's first word; `WordEncoder.learn` takes those of many at once."""
        return (*self._fixed, self._loose + head)

    def joint(self, head: str) -> tuple[int, ...]:
        """The tokens from the cut to the end of a template's first word."""
        return tuple(token for word in self.words(head) for token in self._words.encode(word))

    def join(self, template: TemplateTokens) -> tuple[int, ...]:
        """The branch's tokens: the content's tail and the template, tokenized as one text."""
        return self.joint(template.head) + template.ids[template.head_tokens :]


def merges_uncut(text: str, template: TemplateTokens, words: WordEncoder) -> bool:
    """Whether a template would tokenize otherwise right behind a content that has no clean cut.

    The content's last `TAIL_CHARACTERS` answer for it: the whole of it, tokenized again for each of many templates, would take
    very long.
    """
    end = text[-TAIL_CHARACTERS:]
    return words.encode(end + template.head) != (*words.encode(end), *template.ids[: template.head_tokens])
