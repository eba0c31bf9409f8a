"""What recent requests asked, compiled: the same questions are asked of content after content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from threading import Lock

from spinf_core.compiler.asked import AllAsked
from spinf_core.limits import Limits
from spinf_core.protocol import ParsedQuery

MOST_BYTES = 32 << 20
MOST_SEEN = 10_000
"""Hashes of keys that came once."""

_QUESTION = 1500  # bytes of a question beside its text and tokens: its objects here, its floor's, its place in the key
_TOKEN = 16
_OPTION = 150


def asked_key(lists: Iterable[tuple[ParsedQuery, ...]], limits: Limits) -> Hashable:
    """What decides how some lists of queries compile, and which of them are refused.

    A pack's query is known by its identity, which it has for as long as something that was compiled of it is kept.
    """
    keys: dict[int, Hashable] = {}
    found = []
    for queries in lists:
        for query in queries:
            if id(query) not in keys:
                keys[id(query)] = query.key if query.pack is None else id(query)
        found.append(tuple(keys[id(query)] for query in queries))
    return limits.max_query_tokens, limits.max_option_tokens, tuple(found)


class KnownQuestions:
    """Keeps what is asked a second time, least recently used out first. May be used from several threads.

    What is asked once is not kept: it would cost memory, and the collector of garbage time, for nothing.

    Args:
        max_bytes: about how much memory it may hold; what takes more than a quarter of that is not kept.
    """

    def __init__(self, max_bytes: int = MOST_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, tuple[AllAsked, int]] = OrderedDict()
        self._seen: set[int] = set()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """Memory held, about."""
        return self._bytes

    def get(self, key: Hashable) -> AllAsked | None:
        """What is known to be asked by the key's queries under the key's limits."""
        with self._lock:
            known = self._kept.get(key)
            if known is None:
                return None
            self._kept.move_to_end(key)
            return known[0]

    def put(self, key: Hashable, asked: AllAsked) -> None:
        """Keep what the key's queries ask, if somebody has asked it before."""
        seen = hash(key)
        with self._lock:
            if seen not in self._seen:
                if len(self._seen) >= MOST_SEEN:
                    self._seen.clear()
                self._seen.add(seen)
                return
        size = _size(asked)
        if size > self._max_bytes // 4:
            return
        with self._lock:
            old = self._kept.pop(key, None)
            self._kept[key] = asked, size
            self._bytes += size - (old[1] if old else 0)
            while self._bytes > self._max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._bytes -= freed


def _size(asked: AllAsked) -> int:
    questions = [pair for each in asked.lists for pair in each.questions]
    queries = {id(query): query for query, _ in questions}.values()
    texts = sum(_QUESTION + 2 * len(question.template.text) + _TOKEN * len(question.template.ids) for _, question in questions)
    return texts + sum(_OPTION + 2 * len(option) for query in queries for option in query.options)
