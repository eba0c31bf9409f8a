"""Compiles a parsed request: contents to cuts, queries to branches with option plans, floors to keys, all to jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from spinf_core.compiler.content import Content, Joiner, cut_contents, merges_uncut
from spinf_core.compiler.jobs import Job, build_job
from spinf_core.compiler.options import OptionCompiler, OptionPlan, ending
from spinf_core.compiler.questions import FloorKey, KeptQuestions, Question, QuestionCompiler, Questions, nothing_to_read
from spinf_core.compiler.words import KnownWords, WordEncoder
from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol import ParsedInput, ParsedQuery, ParsedRequest, Warning
from spinf_core.protocol.parse import DEFAULT_LIMITS
from spinf_core.tokenizer import Tokenizer


@attrs.frozen(eq=False)
class Prompt:
    """One filled template with its options: question `number` of its input's job.

    Attributes:
        query: whose. values: the combination that filled it. tokens: its count in usage.
        longer_options: whether some option has several tokens.
        floor: its floor's number in the request, or None.
    """

    query: ParsedQuery
    values: Mapping[str, str]
    tokens: int
    longer_options: bool
    floor: int | None


@attrs.frozen(eq=False)
class CompiledInput:
    """One input: its job, and its prompts in the order of their questions, query by query."""

    id: str
    job: Job
    prompts: tuple[Prompt, ...]
    content_tokens: int


@attrs.frozen(eq=False)
class CompiledRequest:
    """A request, ready to be packed.

    Attributes:
        inputs: in the request's order.
        floors: the distinct floors, with the tokens that each counts.
        floor_plans, floor_branches: of each floor, to build the job of those that are not cached.
        warnings: about joins.
    """

    inputs: tuple[CompiledInput, ...]
    floors: tuple[FloorKey, ...]
    floor_tokens: int
    floor_plans: tuple[OptionPlan, ...]
    floor_branches: tuple[tuple[int, ...], ...]
    warnings: tuple[Warning, ...]
    bos: tuple[int, ...]

    def floor_job(self, numbers: Sequence[int]) -> Job:
        """The job of some of the floors: branches without a content."""
        return build_job(self.bos, [self.floor_branches[n] for n in numbers], [self.floor_plans[n] for n in numbers])


class Compiler:
    """Compiles requests for one model. May be used from several threads.

    The queries of packs, which come again with every request that names the pack, are compiled once and kept.

    Args:
        tokenizer: the model's.
        max_rows: the longest path that the model and the engine run, BOS and content included.
        limits: the server's, which packs are held to; a request brings its own.
    """

    def __init__(self, tokenizer: Tokenizer, max_rows: int, limits: Limits = DEFAULT_LIMITS) -> None:
        self._tokenizer = tokenizer
        self._max_rows = max_rows
        self._kept = KeptQuestions(tokenizer, max_rows, limits)
        self._words = KnownWords()

    def keep(self, queries: Iterable[ParsedQuery]) -> None:
        """Compile the queries of a pack before anybody asks for them.

        Raises:
            Rejected: what only a tokenizer can tell; `param` begins with the pack's id and version.
        """
        self._kept.get(queries)

    def compile(self, request: ParsedRequest) -> CompiledRequest:
        """Compile a request.

        Raises:
            Rejected: what only a tokenizer can tell: `option_boundary`, `option_too_long`, `template_too_long`,
                `content_too_long`, `request_too_large`, or `invalid_field` for a prompt with nothing to read.
        """
        words = WordEncoder(self._tokenizer, self._words)
        return _Compilation(self._tokenizer, self._max_rows, request, self._kept, words).run()


class _Compilation:
    """One request under compilation; gathers floors and warnings over its inputs."""

    def __init__(
        self, tokenizer: Tokenizer, max_rows: int, request: ParsedRequest, kept: KeptQuestions, words: WordEncoder
    ) -> None:
        self.tokenizer = tokenizer
        self.max_rows = max_rows
        self.request = request
        self.kept = kept
        self.bos = () if tokenizer.bos is None else (tokenizer.bos,)
        self.words = words
        options = OptionCompiler(tokenizer, request.limits)
        self.own = QuestionCompiler(tokenizer, options, max_rows, request.limits.max_query_tokens)
        self.questions: dict[int, Questions] = {}
        self.floors: dict[FloorKey, int] = {}
        self.floor_plans: list[OptionPlan] = []
        self.floor_branches: list[tuple[int, ...]] = []
        self.floor_tokens = 0
        self.warnings: list[Warning] = []

    def run(self) -> CompiledRequest:
        self._prepare_questions()
        contents = self._contents()
        inputs = tuple(self._input(entry, content) for entry, content in zip(self.request.inputs, contents, strict=True))
        self._check_size(inputs)
        return CompiledRequest(
            inputs=inputs,
            floors=tuple(self.floors),
            floor_tokens=self.floor_tokens,
            floor_plans=tuple(self.floor_plans),
            floor_branches=tuple(self.floor_branches),
            warnings=tuple(self.warnings),
            bos=self.bos,
        )

    def _prepare_questions(self) -> None:
        """Everything about the queries that no content changes: done once, whatever the number of inputs."""
        queries = {id(query): query for entry in self.request.inputs for query in entry.queries}.values()
        own = [query for query in queries if query.pack is None]
        packs = [query for query in queries if query.pack is not None]
        self.questions = dict(zip(map(id, own), self.own.compile(own, self.words), strict=True))
        self.questions |= zip(map(id, packs), self.kept.get(packs), strict=True)

    def _floor(self, question: Question) -> int | None:
        """The number of a question's floor in the request."""
        if question.floor is None:
            return None
        key, plan = question.floor
        number = self.floors.setdefault(key, len(self.floors))
        if number == len(self.floor_plans):
            self.floor_plans.append(plan)
            self.floor_branches.append(question.template.ids)
            self.floor_tokens += len(question.template.ids) + plan.tokens_after_first
        return number

    def _plan(self, query: ParsedQuery, text: str) -> OptionPlan:
        compiler = self.own if query.pack is None else self.kept.compiler
        return compiler.plan(query, ending(text, self.tokenizer))

    def _contents(self) -> list[Content]:
        limit = self.request.limits.max_content_tokens
        texts = [entry.content for entry in self.request.inputs]
        encoded = self.tokenizer.encode_with_places(texts)
        for entry, each in zip(self.request.inputs, encoded, strict=True):
            if len(each) > limit:
                raise Rejected(
                    "content_too_long",
                    f"the content has {len(each)} tokens, at most {limit} are allowed; shorten it or split it into several "
                    "inputs",
                    entry.messages_param,
                )
        return cut_contents(texts, encoded, self.tokenizer)

    def _input(self, entry: ParsedInput, content: Content) -> CompiledInput:
        joiner = Joiner(content, self.words)
        joiner.prepare([question.template for query in entry.queries for question in self.questions[id(query)]])
        branches: list[tuple[int, ...]] = []
        plans: list[OptionPlan] = []
        prompts: list[Prompt] = []
        for query in entry.queries:
            questions = self.questions[id(query)]
            for question in questions:
                template = question.template
                branch = joiner.join(template)
                if not (branch or content.head or self.bos):
                    raise nothing_to_read(query)
                plan = question.plan or self._plan(query, content.tail + template.text)
                branches.append(branch)
                plans.append(plan)
                tokens = len(template.ids) + plan.tokens_after_first
                prompts.append(Prompt(query, question.values, tokens, bool(plan.chains), self._floor(question)))
            if not content.clean and any(merges_uncut(entry.content, each.template, self.words) for each in questions):
                self.warnings.append(_join_warning(entry.id, query.id))
        head = (*self.bos, *content.head)
        job = build_job(head, branches, plans)
        longest = len(head) + int(job.depth.max(initial=-1)) + 1
        if longest > self.max_rows:
            raise Rejected(
                "content_too_long",
                f"the content and its longest question take {longest} tokens, this model runs at most {self.max_rows}; "
                "shorten the content",
                entry.messages_param,
            )
        return CompiledInput(entry.id, job, tuple(prompts), content.tokens)

    def _check_size(self, inputs: tuple[CompiledInput, ...]) -> None:
        rows = sum(entry.job.rows for entry in inputs) + self.floor_tokens
        limit = self.request.limits.max_processed_tokens
        if rows > limit:
            raise Rejected(
                "request_too_large",
                f"the request takes about {rows} tokens, at most {limit} are allowed; send fewer inputs or questions at once",
                "inputs" if len(inputs) > 1 else "scoring.queries",
            )


def _join_warning(input_id: str, query_id: str) -> Warning:
    return Warning(
        code="join_not_merged",
        message="the template tokenizes differently against the end of this content, which has no clean cut; it was joined at "
        "the token boundary",
        input_id=input_id,
        query_id=query_id,
    )
