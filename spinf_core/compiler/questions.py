"""Queries before they meet a content: filled, tokenized, their options planned. Those of packs are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from threading import Condition

import attrs

from spinf_core.compiler.content import TemplateTokens, tokenize_templates
from spinf_core.compiler.options import OptionCompiler, OptionPlan, ending
from spinf_core.compiler.words import WordEncoder
from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol import ParsedQuery
from spinf_core.tokenizer import Tokenizer

MOST_KEPT = 50_000
"""Filled templates of packs that are kept."""


@attrs.frozen(cache_hash=True)
class FloorKey:
    """What decides a floor: the filled template, the options and the case rule."""

    template: str
    options: tuple[str, ...]
    case_insensitive: bool


@attrs.frozen(eq=False)
class Question:
    """One filled template of a query, before it meets a content.

    Attributes:
        values: the combination that filled it.
        template: filled.
        plan: of its options; None where the template is so short that the content's end decides how they tokenize.
        floor: what decides its floor, and the plan that reads it; None where floors are off.
    """

    values: Mapping[str, str]
    template: TemplateTokens
    plan: OptionPlan | None
    floor: tuple[FloorKey, OptionPlan] | None


Questions = tuple[Question, ...]
"""Of one query, one for each combination."""


class QuestionCompiler:
    """Compiles what no content changes about queries.

    Args:
        tokenizer: of the model.
        options: compiles the options; shared by whatever should be read together.
        max_rows: the longest path that the model and the engine run.
        max_query_tokens: of a filled template; None: any number.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: OptionCompiler, max_rows: int, max_query_tokens: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._max_rows = max_rows
        self._limit = max_query_tokens

    def compile(self, queries: Iterable[ParsedQuery], words: WordEncoder) -> list[Questions]:
        """The questions of each query, all templates tokenized at once.

        Raises:
            Rejected: `template_too_long`, `option_boundary`, `option_too_long`, or `invalid_field` for a floor with nothing to
                read.
        """
        queries = list(queries)
        filled = [tuple(map(query.template.fill, query.combinations)) for query in queries]
        texts = list(dict.fromkeys(text for some in filled for text in some))
        templates = dict(zip(texts, tokenize_templates(texts, words), strict=True))
        return [
            tuple(self._question(query, values, templates[text]) for values, text in zip(query.combinations, some, strict=True))
            for query, some in zip(queries, filled, strict=True)
        ]

    def _question(self, query: ParsedQuery, values: Mapping[str, str], template: TemplateTokens) -> Question:
        if self._limit is not None and len(template.ids) > self._limit:
            raise Rejected(
                "template_too_long",
                f"a filled template has {len(template.ids)} tokens, at most {self._limit} are allowed; shorten the template or "
                "its values",
                f"{query.param}.template",
            )
        end = ending(template.text, self._tokenizer)
        whole = len(end) == len(template.text)
        plan = self.plan(query, end) if query.empty_floor or not whole else None
        floor = None
        if query.empty_floor and plan:
            self._check_floor(query, template, plan)
            floor = FloorKey(template.text, query.options, query.case_insensitive), plan
        return Question(values, template, None if whole else plan, floor)

    def plan(self, query: ParsedQuery, end: str) -> OptionPlan:
        """The plan of a query's options behind a text or its `ending`."""
        return self._options.plan(end, query.options, query.case_insensitive, f"{query.param}.options")

    def _check_floor(self, query: ParsedQuery, template: TemplateTokens, plan: OptionPlan) -> None:
        bos = self._tokenizer.bos is not None
        if not (template.ids or bos):
            raise nothing_to_read(query)
        longest = bos + len(template.ids) + plan.longest_lead_in
        if longest > self._max_rows:
            raise Rejected(
                "template_too_long",
                f"a filled template and its longest option take {longest} tokens, this model runs at most {self._max_rows}; "
                "shorten the template, its values or the option",
                f"{query.param}.template",
            )


class KeptQuestions:
    """The questions of packs' queries, compiled when they are first asked for, the least recently used out first.

    May be used from several threads; those that ask for a query which is being compiled wait for it, and no others.

    Args:
        tokenizer, max_rows: see `QuestionCompiler`.
        limits: the server's, for the options; packs are exempt from `max_query_tokens`.
        most: filled templates that are kept.
    """

    def __init__(self, tokenizer: Tokenizer, max_rows: int, limits: Limits, most: int = MOST_KEPT) -> None:
        self._tokenizer = tokenizer
        self.compiler = QuestionCompiler(tokenizer, OptionCompiler(tokenizer, limits), max_rows)
        self._most = most
        # By the query's identity, which it has for as long as it is kept here.
        self._kept: OrderedDict[int, tuple[ParsedQuery, Questions]] = OrderedDict()
        self._count = 0
        self._compiling: set[int] = set()
        self._changed = Condition()

    def __len__(self) -> int:
        return self._count

    def get(self, queries: Iterable[ParsedQuery]) -> list[Questions]:
        """The questions of each query.

        Raises:
            Rejected: see `QuestionCompiler.compile`.
        """
        queries = list(queries)
        missing = {id(query): query for query in queries}
        found: dict[int, Questions] = {}
        while missing:
            with self._changed:
                # What another thread compiles is waited for, and compiled here where that thread fails.
                while self._compiling.issuperset(missing):
                    self._changed.wait()
                found |= self._known(missing)
                mine = [query for key, query in missing.items() if key not in found and key not in self._compiling]
                self._compiling.update(map(id, mine))
            try:
                compiled = self.compiler.compile(mine, WordEncoder(self._tokenizer)) if mine else []
                found |= zip(map(id, mine), compiled, strict=True)
            finally:
                with self._changed:
                    self._compiling.difference_update(map(id, mine))
                    self._keep([query for query in mine if id(query) in found], found)
                    self._changed.notify_all()
            missing = {key: query for key, query in missing.items() if key not in found}
        return [found[id(query)] for query in queries]

    def _known(self, keys: Iterable[int]) -> dict[int, Questions]:
        known = [key for key in keys if key in self._kept]
        for key in known:
            self._kept.move_to_end(key)
        return {key: self._kept[key][1] for key in known}

    def _keep(self, queries: Iterable[ParsedQuery], found: Mapping[int, Questions]) -> None:
        for query in queries:
            self._kept[id(query)] = query, found[id(query)]
            self._count += len(found[id(query)])
        while self._count > self._most:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._count -= len(dropped)


def nothing_to_read(query: ParsedQuery) -> Rejected:
    """The refusal of a prompt without a single token."""
    return Rejected(
        "invalid_field",
        "this model adds no token before a text, so a template of the slot alone has nothing to read without a content; put "
        "text before the slot, or turn empty_floor off and send a content",
        f"{query.param}.template",
    )
