"""A checkpoint's tokenizer, for text that is never trusted: what a user typed cannot become a control token."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spinf_core.errors import SetupError

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

# Added tokens that look like a conversation's markup, not like text: <|…|>, <|…>, <…|>, <name>, </name>, [NAME].
_CONTROL = re.compile(r"<\|.*>|<.*\|>|</?[A-Za-z][\w:. -]*>|\[/?[A-Za-z][\w -]*\]", re.DOTALL)

# Tags of HTML are text: Gemma's vocabulary has some as pieces, and was trained on pages that were not split there.
_HTML = re.compile(
    r"""</?(?:
    a|abbr|b|big|blockquote|body|br|button|caption|center|cite|code|col|colgroup|dd|del|div|dl|dt|em|figure|font|footer|
    form|h[1-6]|head|header|hr|html|i|img|input|ins|kbd|label|li|link|main|mark|meta|nav|ol|option|p|pre|q|s|samp|
    script|section|select|small|span|strike|strong|style|sub|summary|sup|table|tbody|td|textarea|tfoot|th|thead|title|
    tr|tt|u|ul|var|video
    )>""",
    re.VERBOSE | re.IGNORECASE,
)

_BROKEN_BREAK = re.compile("[A-Za-z0-9][ Ġ▁]")
"""A piece that spans a letter or digit and the space after it, in any way in which vocabularies write a space."""

MARKS = '!"#$%&()*+,-./:;<=>?@[\\]^`{|}~ \n，。：；？！、（）「」《》…'
"""What ends a word: ASCII and Chinese punctuation, a space, a line break. Not the apostrophe and the underscore, which some
pre-tokenizers take into a word."""

FEW_CHARACTERS = 2000  # in a batch take less time than waking the library's threads

_PROBES = ("ab", "Word", "x1", "THE end", "a,b 7", "it's", "ab\n\ncd", "é9z", "你a", "a  b")

_TOKENIZER_FILES = (
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


class EncodedText:
    """The tokens of a text; made into Python objects when they are asked for, for texts may be long.

    Args:
        encoding: a `tokenizers.Encoding`.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def __len__(self) -> int:
        return len(self._encoding)

    @property
    def ids(self) -> list[int]:
        """Token ids."""
        ids: list[int] = self._encoding.ids
        return ids

    def start(self, number: int) -> int:
        """The character at which a token begins. Tokens that share a character share its position."""
        characters = self._encoding.token_to_chars(number)
        assert characters is not None
        return characters[0]

    def piece(self, number: int) -> int | None:
        """The number of the pre-tokenizer's piece that a token is in. Without a pre-tokenizer all tokens are in one piece."""
        piece: int | None = self._encoding.token_to_word(number)
        return piece


class Tokenizer:
    """Encodes text without special tokens, with the spelling of special tokens split into ordinary characters.

    Its methods may be called from several threads at once: nothing is changed after construction.

    Args:
        backend: a `tokenizers.Tokenizer`; it is changed and from then on belongs to this object.
        bos: the token that stands before every text, where the model was trained with one.
        eos: tokens that end a text.

    Attributes:
        bos: as given.
        eos: as given.
        control: ids of the tokens that no text can produce.
        vocab_size: tokens, added ones included.

    Raises:
        SetupError: when the text of a control token still encodes to it.
    """

    def __init__(self, backend: Backend, *, bos: int | None = None, eos: Iterable[int] = ()) -> None:
        self.bos = bos
        self.eos = tuple(dict.fromkeys(eos))
        # Truncation and padding are a batch's affair, and a post-processor would trim offsets and add special tokens.
        backend.no_truncation()
        backend.no_padding()
        backend.post_processor = None
        self._backend = backend
        self.control = self._split_control()
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read a checkpoint's tokenizer.

        `tokenizer.json` is read as it is. Other formats (`tokenizer.model`, `vocab.json` with `merges.txt`) are
        converted by transformers once; the result is kept in spinf's cache, never in the checkpoint's folder.

        BOS is the one that the tokenizer adds: `add_bos_token` in `tokenizer_config.json` decides, and without it
        whether the tokenizer's own template puts it first. A `bos_token` that is merely named is not added.

        Raises:
            SetupError: where there is no tokenizer, or it cannot be read.
        """
        from tokenizers import Tokenizer as Backend

        path = folder / "tokenizer.json"
        if not path.is_file():
            path = _converted(folder)
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise SetupError(f"checkpoint {folder}: {path.name} cannot be read: {error}") from error
        settings = _read_optional(folder / "tokenizer_config.json")
        config = _read_optional(folder / "config.json")
        generation = _read_optional(folder / "generation_config.json")
        return cls(
            backend,
            bos=_find_bos(folder, backend, settings, config),
            eos=_find_eos(backend, settings, config, generation),
        )

    def _split_control(self) -> frozenset[int]:
        """Make the spelling of control tokens ordinary text, and return their ids."""
        from tokenizers import AddedToken

        added = self._backend.get_added_tokens_decoder()
        control = {number: token for number, token in added.items() if token.special or _looks_like_control(token.content)}
        # Only tokens marked special are split, and the markup of conversations (`<think>`) often is not marked.
        unmarked = [token.content for token in control.values() if not token.special]
        self._backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in unmarked])
        self._backend.encode_special_tokens = True

        split = set(control)
        for number, ids in zip(control, self.encode_batch([token.content for token in control.values()]), strict=True):
            if number not in ids:
                continue
            if control[number].special:
                raise SetupError(
                    f"the tokenizer cannot split its control token {control[number].content!r}: text that spells it "
                    "would act as the token, so this checkpoint cannot be served safely"
                )
            # The vocabulary's own merges make it from plain characters, so it was text in training too.
            split.remove(number)
        return frozenset(split)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the tokenizer as its library writes it, and of its BOS, in hex."""
        return hashlib.sha256(f"{self._backend.to_str()}\n{self.bos}".encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; no BOS, no control tokens."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_with_places(self, texts: Sequence[str]) -> list[EncodedText]:
        """Each text with where its tokens lie in it, in parallel where the tokenizers library is allowed to.

        Other threads go on meanwhile, as the library lets them in batches only.
        """
        return [EncodedText(each) for each in self._backend.encode_batch(list(texts), add_special_tokens=False)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, in parallel where that is worth it and the tokenizers library is allowed to."""
        if sum(map(len, texts)) <= FEW_CHARACTERS:
            return [self.encode(text) for text in texts]
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens spelled out."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text

    @functools.cached_property
    def breaks_at_spaces(self) -> bool:
        """Whether a text may be cut between an ASCII letter or digit and a space, and its parts encoded apart.

        True when no piece of the vocabulary spans such a break, so that no merge crosses it, and when nothing is added
        or taken away at the ends of a text; the latter is checked on probes.
        """
        pieces = self._backend.get_vocab(with_added_tokens=False)
        added = [token.content for n, token in self._backend.get_added_tokens_decoder().items() if n not in self.control]
        if any(map(_BROKEN_BREAK.search, (*pieces, *added))):
            return False
        return all(
            self.encode(head + tail) == self.encode(head) + self.encode(tail)
            for head in _PROBES
            for tail in (" cd", "  cd ", " 12", " ", " \n", " é", " " + head)
        ) and all(self.decode(self.encode(text)) == text for text in ("ab", " ab", "ab "))

    @functools.cached_property
    def splits_words(self) -> bool:
        """Whether a text may be cut between a letter or digit and one of `MARKS` after it, and its parts encoded apart.

        True when the pre-tokenizer starts a new piece there, so that no merge crosses the cut; checked on probes.
        """
        pre_tokenizer = self._backend.pre_tokenizer
        if pre_tokenizer is None:
            return False
        for word in ("word", "Answer", "x1", "27", "né", "слово", "你好", "答え"):
            for rest in (mark + end for mark in MARKS for end in ("", "x", " x", mark)):
                starts = {start for _, (start, _) in pre_tokenizer.pre_tokenize_str(word + rest)}
                if len(word) not in starts or self.encode(word + rest) != self.encode(word) + self.encode(rest):
                    return False
        return True


def _looks_like_control(text: str) -> bool:
    return _CONTROL.fullmatch(text) is not None and _HTML.fullmatch(text) is None


def _find_bos(folder: Path, backend: Backend, settings: dict[str, Any], config: dict[str, Any]) -> int | None:
    named = _token_text(settings.get("bos_token"))
    bos = backend.token_to_id(named) if named is not None else _text_config(config).get("bos_token_id")
    adds = settings.get("add_bos_token")
    if adds is None:
        return bos if bos is not None and backend.encode("a", add_special_tokens=True).ids[:1] == [bos] else None
    if adds and bos is None:
        raise SetupError(f"checkpoint {folder}: tokenizer_config.json asks for a BOS token and names none that is known")
    return bos if adds else None


def _find_eos(backend: Backend, *configs: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for config in configs:
        text = _token_text(config.get("eos_token"))
        if text is not None and (number := backend.token_to_id(text)) is not None:
            found.append(number)
        numbers = _text_config(config).get("eos_token_id")
        found += numbers if isinstance(numbers, list) else [] if numbers is None else [numbers]
    return found


def _token_text(entry: object) -> str | None:
    """A token of `tokenizer_config.json`, which is a string or a description with `content`."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that is about text; multimodal checkpoints nest it."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def _read_optional(path: Path) -> dict[str, Any]:
    from spinf_core.checkpoints.integrity import read_json

    return read_json(path.parent, path.name) if path.is_file() else {}


def _converted(folder: Path) -> Path:
    """`tokenizer.json` made by transformers from a folder's other tokenizer files, kept in spinf's cache."""
    from spinf_core.checkpoints.cache import cache_root, file_sha256, write_atomically

    files = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if not any(path.name in ("tokenizer.model", "vocab.json", "vocab.txt") for path in files):
        raise SetupError(
            f"checkpoint {folder} has no tokenizer: tokenizer.json is missing, and so are tokenizer.model and "
            "vocab.json; fetch it again with its tokenizer"
        )
    key = hashlib.sha256("\n".join(f"{path.name} {file_sha256(path)}" for path in files).encode()).hexdigest()
    target = cache_root() / "tokenizers" / key[:32] / "tokenizer.json"
    if not target.is_file():
        from transformers import AutoTokenizer

        try:
            text = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer.to_str()
        except Exception as error:  # transformers raises what its parts raise
            raise SetupError(f"checkpoint {folder}: transformers cannot convert its tokenizer: {error}") from error
        write_atomically(target, text)
    return target
