"""Options as token columns: case variants, the boundary rule, the chain rule, and the scores that follow from read values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from spinf_core.compiler.trie import IntArray
from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.tokenizer import MARKS, Tokenizer

FloatArray = NDArray[np.float64]

# Of a reversed text: the last place where a letter or digit is followed by what ends a word.
_WORD_END = re.compile(rf"[{re.escape(MARKS)}](?=[^\W_])")
_WORD_END_AT_SPACE = re.compile(r" (?=[A-Za-z0-9])")
_IN_WORD = re.compile(r"[A-Za-z0-9]\Z")
_NEW_WORD = re.compile(r" [A-Za-z0-9]")


@attrs.frozen(eq=False)
class OptionPlan:
    """What is read for the O options of a question.

    A question reads `width` values: first the columns of one-token forms, at the template's last row, then for each option
    of several tokens the column of each of its tokens, each at the row before that token.

    Attributes:
        options: as given.
        single_column: [s] one-token forms. single_option: [s] the option that each belongs to.
        chains: (option, tokens) of each option of several tokens.
        tokens_after_first: over all options as given; what they add to a question's count.
    """

    options: tuple[str, ...]
    single_column: IntArray
    single_option: IntArray
    chains: tuple[tuple[int, tuple[int, ...]], ...]
    tokens_after_first: int

    @cached_property
    def columns(self) -> IntArray:
        """[width] the column of each value."""
        return np.concatenate((self.single_column, *(np.array(tokens, np.int32) for _, tokens in self.chains)))

    @property
    def width(self) -> int:
        """Values read per question."""
        return len(self.columns)

    @cached_property
    def longest_lead_in(self) -> int:
        """The most tokens of an option that take rows of their own: all but its last."""
        return max((len(tokens) - 1 for _, tokens in self.chains), default=0)

    @cached_property
    def _counted(self) -> tuple[bool, ...]:
        """Whether each form counts in the union of all: not if it repeats another or starts with one."""
        forms = [(int(column),) for column in self.single_column] + [tokens for _, tokens in self.chains]
        known = set(forms)
        seen: set[tuple[int, ...]] = set()
        counted = []
        for form in forms:
            counted.append(form not in seen and not any(form[:stop] in known for stop in range(1, len(form))))
            seen.add(form)
        return tuple(counted)

    def score(self, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Scores of Q questions.

        Args:
            values: [Q, width] log-probabilities.

        Returns:
            logprob [Q, O], the log of each option's mass over its forms; p [Q, O], that mass over all options' masses;
            residual [Q], 1 − the mass of the union of the options, never negative.
        """
        singles = len(self.single_column)
        forms = [values[:, column] for column in range(singles)]
        at = singles
        for _, tokens in self.chains:
            total = values[:, at]
            for step in range(1, len(tokens)):  # log p(tokens) = Σ log p(token | those before), the chain rule
                total = total + values[:, at + step]
            forms.append(total)
            at += len(tokens)
        owners = [*self.single_option.tolist(), *(option for option, _ in self.chains)]
        logprob = np.full((len(values), len(self.options)), -np.inf)
        union = np.zeros(len(values))
        with np.errstate(invalid="ignore"):  # a value that is not a number stays one, for the caller to find
            for form, owner, counted in zip(forms, owners, self._counted, strict=True):
                logprob[:, owner] = np.logaddexp(logprob[:, owner], form)
                if counted:
                    union = union + np.exp(form)
        highest = logprob.max(axis=1, keepdims=True)
        share = np.exp(logprob - highest)
        total = np.zeros((len(values), 1))
        for option in range(len(self.options)):
            total = total + share[:, option : option + 1]
        return logprob, share / total, np.maximum(0.0, 1.0 - union)


def ending(text: str, tokenizer: Tokenizer) -> str:
    """The end of a template that decides how an option tokenizes behind it: from the last place on across which the
    tokenizer merges nothing, whatever follows; the whole text where there is no such place."""
    if tokenizer.splits_words:
        found = _WORD_END.search(text[::-1])
    elif tokenizer.breaks_at_spaces:
        found = _WORD_END_AT_SPACE.search(text[::-1])
    else:
        found = None
    return text[-found.end() :] if found else text


@attrs.frozen
class _Form:
    """A way to write an option.

    Attributes:
        option: its number.
        text, tokens: on its own.
        given: whether it is the option as given, not a case variant of one token.
        new_word: whether it begins one, so that nothing merges with a word before it, given a tokenizer that breaks there.
    """

    option: int
    text: str
    tokens: tuple[int, ...]
    given: bool
    new_word: bool


MOST_ENDINGS = 10_000
"""Endings whose plans are kept: where one holds a content's end there may be any number of them."""


class OptionCompiler:
    """Compiles options, once per (template ending, options, case rule). Equal plans are one object, so that their questions
    are read and scored together.

    Args:
        tokenizer: of the model.
        limits: `max_option_tokens` is enforced here.
    """

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._by_ending: dict[tuple[str, tuple[str, ...], bool], OptionPlan] = {}
        self._by_forms: dict[tuple[tuple[str, ...], bool, tuple[bool, ...]], OptionPlan] = {}
        self._forms: dict[tuple[tuple[str, ...], bool], tuple[_Form, ...]] = {}

    def plan(self, text: str, options: tuple[str, ...], case_insensitive: bool, param: str) -> OptionPlan:
        """The plan of `options` behind `text`, a template or its `ending`.

        Raises:
            Rejected: `option_too_long`, or `option_boundary` where an option as given merges with the text; `param` is the
                path of the options.
        """
        end = ending(text, self._tokenizer)
        key = (end, options, case_insensitive)
        plan = self._by_ending.get(key)
        if plan is None:
            if len(self._by_ending) >= MOST_ENDINGS:
                self._by_ending.clear()
            plan = self._by_ending[key] = self._compile(end, options, case_insensitive, param)
        return plan

    def _compile(self, end: str, options: tuple[str, ...], case_insensitive: bool, param: str) -> OptionPlan:
        forms = self._forms.get((options, case_insensitive))
        if forms is None:
            forms = self._forms[options, case_insensitive] = tuple(self._all_forms(options, case_insensitive, param))
        joins = self._joins(end, forms)
        key = (options, case_insensitive, joins)
        plan = self._by_forms.get(key)
        if plan is None:
            for form, joined in zip(forms, joins, strict=True):
                if form.given and not joined:
                    raise Rejected(
                        "option_boundary",
                        f"option {form.text!r} merges with the end of the template, {end!r}; begin the option with a space or "
                        "end the template with punctuation or a line break",
                        f"{param}.{form.option}",
                    )
            plan = self._by_forms[key] = _plan(options, [form for form, joined in zip(forms, joins, strict=True) if joined])
        return plan

    def _all_forms(self, options: tuple[str, ...], case_insensitive: bool, param: str) -> Iterator[_Form]:
        """Each option as given, with its case variants of one token."""
        for number, option in enumerate(options):
            tokens = tuple(self._tokenizer.encode(option))
            if len(tokens) > self._limits.max_option_tokens:
                raise Rejected(
                    "option_too_long",
                    f"option {option!r} has {len(tokens)} tokens, at most {self._limits.max_option_tokens} are allowed; "
                    "shorten it, or ask for the text with an extraction slot",
                    f"{param}.{number}",
                )
            yield _Form(number, option, tokens, True, _NEW_WORD.match(option) is not None)
            for text in sorted(_case_forms(option) - {option}) if case_insensitive else ():
                variant = tuple(self._tokenizer.encode(text))
                if len(variant) == 1:
                    yield _Form(number, text, variant, False, _NEW_WORD.match(text) is not None)

    def _joins(self, end: str, forms: tuple[_Form, ...]) -> tuple[bool, ...]:
        """Whether each form tokenizes behind `end` as on its own."""
        encode = self._tokenizer.encode
        before = encode(end)
        apart = self._tokenizer.breaks_at_spaces and _IN_WORD.search(end) is not None
        return tuple((apart and form.new_word) or encode(end + form.text) == [*before, *form.tokens] for form in forms)


def _plan(options: tuple[str, ...], forms: list[_Form]) -> OptionPlan:
    singles = sorted({(form.option, form.tokens[0]) for form in forms if len(form.tokens) == 1})
    given = [form for form in forms if form.given]
    return OptionPlan(
        options=options,
        single_column=np.array([column for _, column in singles], np.int32),
        single_option=np.array([option for option, _ in singles], np.int32),
        chains=tuple((form.option, form.tokens) for form in given if len(form.tokens) > 1),
        tokens_after_first=sum(len(form.tokens) - 1 for form in given),
    )


def _case_forms(option: str) -> set[str]:
    core = option.strip()
    forms = {core.lower(), core.capitalize(), core.upper()}
    return {space + form for form in forms for space in ("", " ")}
