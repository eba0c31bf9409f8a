"""Compiles a parsed request: contents to cuts, queries to branches with option plans, floors to keys, all to jobs.

Whatever can be refused is refused before the first input is compiled, so that inputs may run while others are compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

import attrs

from spinf_core.compiler.asked import AllAsked, Asked, Prompt
from spinf_core.compiler.content import Content, Joiner, cut_contents, merges_uncut
from spinf_core.compiler.floors import Floors
from spinf_core.compiler.jobs import Job, build_job
from spinf_core.compiler.known import KnownQuestions, asked_key
from spinf_core.compiler.options import OptionCompiler, OptionPlan, ending
from spinf_core.compiler.questions import KeptQuestions, QuestionCompiler, nothing_to_read
from spinf_core.compiler.words import KnownWords, WordEncoder
from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol import ParsedInput, ParsedQuery, ParsedRequest, Warning
from spinf_core.protocol.parse import DEFAULT_LIMITS
from spinf_core.tokenizer import Tokenizer


@attrs.frozen(eq=False)
class CompiledInput:
    """One input: its job, its prompts in the order of their questions, query by query, and warnings about joins."""

    id: str
    job: Job
    prompts: tuple[Prompt, ...]
    content_tokens: int
    warnings: tuple[Warning, ...]


@attrs.frozen(eq=False)
class CompiledRequest:
    """A request, ready to be packed: its inputs in their order, and its distinct floors."""

    inputs: tuple[CompiledInput, ...]
    floors: Floors


class Compiler:
    """Compiles requests for one model. May be used from several threads.

    The queries of packs, which come again with every request that names the pack, are compiled once and kept. What recent
    requests asked is kept too, for those that ask exactly the same of other contents.

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
        self._known = KnownQuestions()

    def keep(self, queries: Iterable[ParsedQuery]) -> None:
        """Compile the queries of a pack before anybody asks for them.

        Raises:
            Rejected: what only a tokenizer can tell; `param` begins with the pack's id and version.
        """
        self._kept.get(queries)

    def begin(self, request: ParsedRequest) -> Compilation:
        """Compile of a request what it takes to accept it.

        Raises:
            Rejected: what only a tokenizer can tell: `option_boundary`, `option_too_long`, `template_too_long`,
                `content_too_long`, `request_too_large`, or `invalid_field` for a prompt with nothing to read.
        """
        words = WordEncoder(self._tokenizer, self._words)
        return Compilation(self._tokenizer, self._max_rows, request, self._kept, self._known, words)

    def compile(self, request: ParsedRequest) -> CompiledRequest:
        """Compile a request whole.

        Raises:
            Rejected: see `begin`.
        """
        compilation = self.begin(request)
        return CompiledRequest(tuple(compilation.inputs()), compilation.floors)


@attrs.frozen(eq=False)
class _Accepted:
    """An input that will not be refused, before the trie of its branches is built.

    Attributes:
        joints: by the first word of a template, the tokens from the cut to that word's end.
        plans, prompts: of every question.
        rows: that its job takes at most: no two branches might share a token.
    """

    entry: ParsedInput
    content: Content
    asked: Asked
    joints: dict[str, tuple[int, ...]]
    plans: tuple[OptionPlan, ...]
    prompts: tuple[Prompt, ...]
    rows: int


class Compilation:
    """A request that was accepted, whose inputs are compiled as they are asked for. Made by `Compiler.begin`.

    Attributes:
        floors: of all inputs.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_rows: int,
        request: ParsedRequest,
        kept: KeptQuestions,
        known: KnownQuestions,
        words: WordEncoder,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_rows = max_rows
        self._request = request
        self._kept = kept
        self._words = words
        self._bos = () if tokenizer.bos is None else (tokenizer.bos,)
        options = OptionCompiler(tokenizer, request.limits)
        self._own = QuestionCompiler(tokenizer, options, max_rows, request.limits.max_query_tokens)
        lists = {_identity(entry): entry.queries for entry in request.inputs}
        key = asked_key(lists.values(), request.limits)
        asked = known.get(key)
        if asked is None:
            asked = self._ask(lists.values())
            known.put(key, asked)
        self.floors = asked.floors
        self._accepted = self._accept(dict(zip(lists, asked.lists, strict=True)), self._contents())
        self._made: list[CompiledInput] = []
        self._latest: dict[int, tuple[dict[str, tuple[int, ...]], tuple[OptionPlan, ...], Job]] = {}  # by what is asked
        self._check_size()

    def __len__(self) -> int:
        """Number of inputs."""
        return len(self._accepted)

    def inputs(self) -> Iterator[CompiledInput]:
        """The inputs in their order, each compiled when it is asked for."""
        yield from self._made
        yield from map(self._compile, self._accepted[len(self._made) :])

    def _ask(self, lists: Collection[tuple[ParsedQuery, ...]]) -> AllAsked:
        """Everything about the queries that no content changes: done once, whatever the number of inputs."""
        queries = {id(query): query for some in lists for query in some}.values()
        own = [query for query in queries if query.pack is None]
        packs = [query for query in queries if query.pack is not None]
        found = dict(zip(map(id, own), self._own.compile(own, self._words), strict=True))
        found |= zip(map(id, packs), self._kept.get(packs), strict=True)
        floors = Floors.of((each for query in queries for each in found[id(query)]), self._bos)
        return AllAsked(floors, tuple(Asked.of(((query, found[id(query)]) for query in some), floors) for some in lists))

    def _contents(self) -> list[Content]:
        limit = self._request.limits.max_content_tokens
        texts = [entry.content for entry in self._request.inputs]
        encoded = self._tokenizer.encode_with_places(texts)
        for entry, each in zip(self._request.inputs, encoded, strict=True):
            if len(each) > limit:
                raise Rejected(
                    "content_too_long",
                    f"the content has {len(each)} tokens, at most {limit} are allowed; shorten it or split it into several "
                    "inputs",
                    entry.messages_param,
                )
        return cut_contents(texts, encoded, self._tokenizer)

    def _accept(self, lists: dict[tuple[int, ...], Asked], contents: list[Content]) -> list[_Accepted]:
        entries = self._request.inputs
        asked = [lists[_identity(entry)] for entry in entries]
        joiners = [Joiner(content, self._words) for content in contents]
        self._words.learn(
            word for joiner, each in zip(joiners, asked, strict=True) for head in each.heads for word in joiner.words(head)
        )
        return [self._accept_input(*each) for each in zip(entries, contents, asked, joiners, strict=True)]

    def _accept_input(self, entry: ParsedInput, content: Content, asked: Asked, joiner: Joiner) -> _Accepted:
        """An input all of whose refusals are found from counts of tokens."""
        joints = {head: joiner.joint(head) for head in asked.heads}
        plans, prompts = self._decided(content, asked, joints)
        shared = len(self._bos) + len(content.head)
        rows = shared + sum(len(joints[head]) * sums.questions + sums.tokens for head, sums in asked.sums.items())
        longest = shared + max((len(joints[head]) + sums.longest for head, sums in asked.sums.items()), default=0)
        for number in asked.undecided:
            (head, rest), plan = asked.rests[number], plans[number]
            rows += plan.tokens_after_first
            longest = max(longest, shared + len(joints[head]) + len(rest) + plan.longest_lead_in)
        if longest > self._max_rows:
            raise Rejected(
                "content_too_long",
                f"the content and its longest question take {longest} tokens, this model runs at most {self._max_rows}; "
                "shorten the content",
                entry.messages_param,
            )
        return _Accepted(entry, content, asked, joints, plans, prompts, rows)

    def _decided(
        self, content: Content, asked: Asked, joints: Mapping[str, tuple[int, ...]]
    ) -> tuple[tuple[OptionPlan, ...], tuple[Prompt, ...]]:
        """The plan and the prompt of every question. Where no content decides one they are the same two tuples for all
        contents, so that what follows from them is found once."""
        plans, prompts = list(asked.plans), list(asked.prompts)
        bare = not (content.head or self._bos)
        for number in range(len(plans)) if bare else asked.undecided:
            query, question = asked.questions[number]
            head, rest = asked.rests[number]
            if bare and not (joints[head] or rest):
                raise nothing_to_read(query)
            if question.plan is None:
                plan = self._plan(query, content.tail + question.template.text)
                plans[number], prompts[number] = plan, Prompt.of(query, question, plan, self.floors)
        if not asked.undecided:
            return cast(tuple[OptionPlan, ...], asked.plans), cast(tuple[Prompt, ...], asked.prompts)
        return tuple(plan for plan in plans if plan is not None), tuple(prompt for prompt in prompts if prompt is not None)

    def _plan(self, query: ParsedQuery, text: str) -> OptionPlan:
        compiler = self._own if query.pack is None else self._kept.compiler
        return compiler.plan(query, ending(text, self._tokenizer))

    def _check_size(self) -> None:
        """Count the request's rows, to the row where that can matter, for which all inputs have to be compiled."""
        limit = self._request.limits.max_processed_tokens
        if sum(each.rows for each in self._accepted) + self.floors.tokens <= limit:
            return
        self._made = [self._compile(each) for each in self._accepted]
        rows = sum(each.job.rows for each in self._made) + self.floors.tokens
        if rows > limit:
            raise Rejected(
                "request_too_large",
                f"the request takes about {rows} tokens, at most {limit} are allowed; send fewer inputs or questions at once",
                "inputs" if len(self) > 1 else "scoring.queries",
            )

    def _compile(self, accepted: _Accepted) -> CompiledInput:
        entry, content = accepted.entry, accepted.content
        stem = _stem(accepted.joints.values())
        job = self._branches(accepted, len(stem)).behind((*self._bos, *content.head), stem)
        warnings = () if content.clean else tuple(self._join_warnings(accepted))
        return CompiledInput(entry.id, job, accepted.prompts, content.tokens, warnings)

    def _branches(self, accepted: _Accepted, stem: int) -> Job:
        """What comes behind a stem of so many tokens, as a job without a content. Where nothing merges with their ends, that is
        the same for all contents of the same questions: what was made for one is kept until another needs something else."""
        asked, plans = accepted.asked, accepted.plans
        joints = {head: joint[stem:] for head, joint in accepted.joints.items()}
        made = self._latest.get(id(asked))
        if made is None or made[:2] != (joints, plans):
            job = build_job((), [joints[head] + rest for head, rest in asked.rests], plans)
            made = self._latest[id(asked)] = joints, plans, job
        return made[2]

    def _join_warnings(self, accepted: _Accepted) -> Iterator[Warning]:
        warned: set[int] = set()
        for query, question in accepted.asked.questions:
            if id(query) not in warned and merges_uncut(accepted.entry.content, question.template, self._words):
                warned.add(id(query))
                yield _join_warning(accepted.entry.id, query.id)


def _stem(joints: Collection[tuple[int, ...]]) -> tuple[int, ...]:
    """The tokens that all joints begin with."""
    first, last = min(joints, default=()), max(joints, default=())  # what these share lies between them too
    return first[: next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))]


def _identity(entry: ParsedInput) -> tuple[int, ...]:
    """Which queries an input has."""
    return tuple(map(id, entry.queries))


def _join_warning(input_id: str, query_id: str) -> Warning:
    return Warning(
        code="join_not_merged",
        message="the template tokenizes differently against the end of this content, which has no clean cut; it was joined at "
        "the token boundary",
        input_id=input_id,
        query_id=query_id,
    )
