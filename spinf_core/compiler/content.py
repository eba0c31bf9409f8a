"""The cut of a content, and how templates join its end.

The last few tokens of a text content are left to the trie, so that each prompt's branch starts with that tail tokenized anew
together with its template. The cut depends on the content alone.
"""

from __future__ import annotations

import re

import attrs

from spinf_core.tokenizer import Tokenizer

TAIL_CHARACTERS = 32
LONGEST_TAIL = 512
_SPACE_BREAK = re.compile(r"[A-Za-z0-9](?= [A-Za-z0-9])")


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
    """Cut a content before the shortest tail of at least `TAIL_CHARACTERS` that stays apart from what is before it.

    Both sides must tokenize as they do together, and still do so when a template follows. So the cut lies where the
    pre-tokenizer starts a piece, for merges inside a piece can reach back from its end; and not behind white space, for how
    white space is parted may depend on where it ends. A content of up to `TAIL_CHARACTERS` is left to the trie whole.
    """
    ids, starts, pieces = tokenizer.encode_with_starts(text)
    if len(text) <= TAIL_CHARACTERS:
        return Content((), text, tuple(ids))
    for number in range(len(ids) - 1, -1, -1):
        start = starts[number]
        if len(text) - start < TAIL_CHARACTERS:
            continue
        if len(text) - start > LONGEST_TAIL:
            break
        if number and not (
            starts[number - 1] < start
            and not text[start - 1].isspace()
            and (pieces[number - 1] != pieces[number] or (tokenizer.breaks_at_spaces and _SPACE_BREAK.match(text, start - 1)))
        ):
            continue
        head, tail = ids[:number], ids[number:]
        if tokenizer.encode(text[start:]) == tail and tokenizer.encode(text[:start]) == head:
            return Content(tuple(head), text[start:], tuple(tail))
    return Content(tuple(ids), "", (), clean=False)


def space_break(text: str) -> int:
    """Where a text can be split so that both sides tokenize as they do together, given a tokenizer that `breaks_at_spaces`:
    before the first space between ASCII letters or digits; 0 where there is none."""
    found = _SPACE_BREAK.search(text)
    return found.end() if found else 0


def last_space_break(text: str) -> int:
    """The last such place; 0 where there is none."""
    last = 0
    for found in _SPACE_BREAK.finditer(text):
        last = found.end()
    return last


@attrs.frozen
class TemplateTokens:
    """A filled template on its own.

    Attributes:
        text: the template. ids: its tokens.
        break_at: a character position at which it can be split, 0 for none (see `space_break`).
        break_token: how many tokens lie before it.
    """

    text: str
    ids: tuple[int, ...]
    break_at: int
    break_token: int


def tokenize_templates(texts: list[str], tokenizer: Tokenizer) -> list[TemplateTokens]:
    """Each text tokenized on its own."""
    if not tokenizer.breaks_at_spaces:
        return [TemplateTokens(text, tuple(ids), 0, 0) for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)]
    breaks = [space_break(text) for text in texts]
    encoded = tokenizer.encode_split(texts, breaks)
    return [
        TemplateTokens(text, tuple(ids), at, before) for text, at, (ids, before) in zip(texts, breaks, encoded, strict=True)
    ]


class Joiner:
    """Joins templates to the end of one content: the tokens of a branch, from the cut on.

    Only the words on both sides of the joint are tokenized again where the tokenizer lets a text be split at spaces.
    """

    def __init__(self, content: Content, tokenizer: Tokenizer) -> None:
        self._content = content
        self._tokenizer = tokenizer
        split = last_space_break(content.tail) if tokenizer.breaks_at_spaces else 0
        self._fixed = tokenizer.encode(content.tail[:split]) if split else []
        self._loose = content.tail[split:]
        self._joints: dict[str, list[int]] = {}

    def prepare(self, templates: list[TemplateTokens]) -> None:
        """Tokenize the joints of many templates at once."""
        heads = {self._head(template) for template in templates if self._content.tail} - self._joints.keys()
        ordered = sorted(heads)
        encoded = self._tokenizer.encode_batch([self._loose + head for head in ordered])
        self._joints.update(zip(ordered, encoded, strict=True))

    def join(self, template: TemplateTokens) -> list[int]:
        """The branch's tokens: the content's tail and the template, tokenized as one text."""
        if not self._content.tail:
            return list(template.ids)
        joint = self._joints.get(self._head(template))
        if joint is None:
            self.prepare([template])
            joint = self._joints[self._head(template)]
        return [*self._fixed, *joint, *template.ids[template.break_token :]] if template.break_at else [*self._fixed, *joint]

    @staticmethod
    def _head(template: TemplateTokens) -> str:
        return template.text[: template.break_at] if template.break_at else template.text


def merges_uncut(text: str, template: TemplateTokens, tokenizer: Tokenizer) -> bool:
    """Whether a template would tokenize otherwise right behind a content that has no clean cut."""
    return tokenizer.encode(text + template.text) != [*tokenizer.encode(text), *template.ids]
