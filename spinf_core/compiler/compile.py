"""Compiles a parsed request: contents to cuts, queries to branches with option plans, floors to keys, all to jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from spinf_core.compiler.content import Joiner, TemplateTokens, cut_content, merges_uncut, tokenize_templates
from spinf_core.compiler.jobs import Job, build_job
from spinf_core.compiler.options import OptionCompiler, OptionPlan, ending
from spinf_core.compiler.words import WordEncoder
from spinf_core.errors import Rejected
from spinf_core.protocol import ParsedInput, ParsedQuery, ParsedRequest, Warning
from spinf_core.tokenizer import Tokenizer


@attrs.frozen
class FloorKey:
    """What decides a floor: the filled template, the options and the case rule."""

    template: str
    options: tuple[str, ...]
    case_insensitive: bool


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
    """Compiles requests for one model.

    Args:
        tokenizer: the model's.
        max_rows: the longest path that the model and the engine run, BOS and content included.
    """

    def __init__(self, tokenizer: Tokenizer, max_rows: int) -> None:
        self._tokenizer = tokenizer
        self._max_rows = max_rows

    def compile(self, request: ParsedRequest) -> CompiledRequest:
        """Compile a request.

        Raises:
            Rejected: what only a tokenizer can tell: `option_boundary`, `option_too_long`, `template_too_long`,
                `content_too_long`, `request_too_large`, or `invalid_field` for a prompt with nothing to read.
        """
        return _Compilation(self._tokenizer, self._max_rows, request).run()


@attrs.frozen(eq=False)
class _Question:
    """One filled template of a query, before it meets a content.

    Attributes:
        values: the combination that filled it.
        template: filled.
        plan: of its options; None where the template is so short that the content's end decides how they tokenize.
        floor: its floor's number in the request, or None.
    """

    values: Mapping[str, str]
    template: TemplateTokens
    plan: OptionPlan | None
    floor: int | None


class _Compilation:
    """One request under compilation; gathers floors and warnings over its inputs."""

    def __init__(self, tokenizer: Tokenizer, max_rows: int, request: ParsedRequest) -> None:
        self.tokenizer = tokenizer
        self.max_rows = max_rows
        self.request = request
        self.bos = () if tokenizer.bos is None else (tokenizer.bos,)
        self.words = WordEncoder(tokenizer)
        self.options = OptionCompiler(tokenizer, request.limits)
        self.questions: dict[int, tuple[_Question, ...]] = {}
        self.floors: dict[FloorKey, int] = {}
        self.floor_plans: list[OptionPlan] = []
        self.floor_branches: list[tuple[int, ...]] = []
        self.floor_tokens = 0
        self.warnings: list[Warning] = []

    def run(self) -> CompiledRequest:
        self._prepare_questions()
        inputs = tuple(self._input(entry) for entry in self.request.inputs)
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
        queries = {id(query): query for entry in self.request.inputs for query in entry.queries}
        filled = {key: tuple(map(query.template.fill, query.combinations)) for key, query in queries.items()}
        texts = list(dict.fromkeys(text for some in filled.values() for text in some))
        templates = dict(zip(texts, tokenize_templates(texts, self.words), strict=True))
        for key, query in queries.items():
            pairs = zip(query.combinations, filled[key], strict=True)
            self.questions[key] = tuple(self._question(query, values, templates[text]) for values, text in pairs)

    def _question(self, query: ParsedQuery, values: Mapping[str, str], template: TemplateTokens) -> _Question:
        limit = self.request.limits.max_query_tokens
        if len(template.ids) > limit:
            raise Rejected(
                "template_too_long",
                f"a filled template has {len(template.ids)} tokens, at most {limit} are allowed; shorten the template or its "
                "values",
                f"{query.param}.template",
            )
        end = ending(template.text, self.tokenizer)
        whole = len(end) == len(template.text)
        plan = self._plan(query, end) if query.empty_floor or not whole else None
        floor = self._floor(query, template, plan) if query.empty_floor and plan else None
        return _Question(values, template, None if whole else plan, floor)

    def _floor(self, query: ParsedQuery, template: TemplateTokens, plan: OptionPlan) -> int:
        key = FloorKey(template.text, query.options, query.case_insensitive)
        number = self.floors.setdefault(key, len(self.floors))
        if number == len(self.floor_plans):
            if not (template.ids or self.bos):
                raise _nothing_to_read(query)
            longest = len(self.bos) + len(template.ids) + plan.longest_lead_in
            if longest > self.max_rows:
                raise Rejected(
                    "template_too_long",
                    f"a filled template and its longest option take {longest} tokens, this model runs at most {self.max_rows}; "
                    "shorten the template, its values or the option",
                    f"{query.param}.template",
                )
            self.floor_plans.append(plan)
            self.floor_branches.append(template.ids)
            self.floor_tokens += len(template.ids) + plan.tokens_after_first
        return number

    def _plan(self, query: ParsedQuery, end: str) -> OptionPlan:
        return self.options.plan(end, query.options, query.case_insensitive, f"{query.param}.options")

    def _input(self, entry: ParsedInput) -> CompiledInput:
        limit = self.request.limits.max_content_tokens
        text = entry.content
        tokens = self.tokenizer.count(text)  # before the cut, which holds up other threads on a long text
        if tokens > limit:
            raise Rejected(
                "content_too_long",
                f"the content has {tokens} tokens, at most {limit} are allowed; shorten it or split it into several inputs",
                entry.messages_param,
            )
        content = cut_content(text, self.tokenizer)
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
                    raise _nothing_to_read(query)
                plan = question.plan or self._plan(query, ending(content.tail + template.text, self.tokenizer))
                branches.append(branch)
                plans.append(plan)
                tokens = len(template.ids) + plan.tokens_after_first
                prompts.append(Prompt(query, question.values, tokens, bool(plan.chains), question.floor))
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


def _nothing_to_read(query: ParsedQuery) -> Rejected:
    return Rejected(
        "invalid_field",
        "this model adds no token before a text, so a template of the slot alone has nothing to read without a content; put "
        "text before the slot, or turn empty_floor off and send a content",
        f"{query.param}.template",
    )


def _join_warning(input_id: str, query_id: str) -> Warning:
    return Warning(
        code="join_not_merged",
        message="the template tokenizes differently against the end of this content, which has no clean cut; it was joined at "
        "the token boundary",
        input_id=input_id,
        query_id=query_id,
    )
