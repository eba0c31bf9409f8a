"""Options as token columns: case variants, the boundary rule, the chain rule, and the scores that follow from read values."""

from __future__ import annotations

import re
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
_WORD_END = re.compile(rf"[{re.escape(MARKS)}](?=[A-Za-z0-9])")
_WORD_END_AT_SPACE = re.compile(r" (?=[A-Za-z0-9])")


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


class OptionCompiler:
    """Compiles options, once per (template ending, options, case rule).

    Args:
        tokenizer: of the model.
        limits: `max_option_tokens` is enforced here.
    """

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._plans: dict[tuple[str, tuple[str, ...], bool], OptionPlan] = {}
        self._tokens: dict[str, tuple[int, ...]] = {}

    def plan(self, text: str, options: tuple[str, ...], case_insensitive: bool, param: str) -> OptionPlan:
        """The plan of `options` behind `text`.

        Raises:
            Rejected: `option_too_long`, or `option_boundary` where an option as given merges with the text; `param` is the
                path of the options.
        """
        end = ending(text, self._tokenizer)
        key = (end, options, case_insensitive)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._compile(end, options, case_insensitive, param)
        return plan

    def _compile(self, end: str, options: tuple[str, ...], case_insensitive: bool, param: str) -> OptionPlan:
        singles: list[tuple[int, int]] = []
        chains: list[tuple[int, tuple[int, ...]]] = []
        after_first = 0
        for number, option in enumerate(options):
            tokens = self._encode(option)
            if len(tokens) > self._limits.max_option_tokens:
                raise Rejected(
                    "option_too_long",
                    f"option {option!r} has {len(tokens)} tokens, at most {self._limits.max_option_tokens} are allowed; "
                    "shorten it, or ask for the text with an extraction slot",
                    f"{param}.{number}",
                )
            if not self._joins(end, option, tokens):
                raise Rejected(
                    "option_boundary",
                    f"option {option!r} merges with the end of the template, {end!r}; begin the option with a space or end "
                    "the template with punctuation or a line break",
                    f"{param}.{number}",
                )
            after_first += len(tokens) - 1
            mine = {tokens[0]} if len(tokens) == 1 else set()
            if len(tokens) > 1:
                chains.append((number, tokens))
            if case_insensitive:
                for form in _case_forms(option):
                    variant = self._encode(form)
                    if len(variant) == 1 and self._joins(end, form, variant):
                        mine.add(variant[0])
            singles += [(column, number) for column in sorted(mine)]
        return OptionPlan(
            options=options,
            single_column=np.array([column for column, _ in singles], np.int32),
            single_option=np.array([number for _, number in singles], np.int32),
            chains=tuple(chains),
            tokens_after_first=after_first,
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        tokens = self._tokens.get(text)
        if tokens is None:
            tokens = self._tokens[text] = tuple(self._tokenizer.encode(text))
        return tokens

    def _joins(self, end: str, option: str, tokens: tuple[int, ...]) -> bool:
        """Whether `option` behind `end` tokenizes as on its own."""
        return self._encode(end + option) == self._encode(end) + tokens


def _case_forms(option: str) -> set[str]:
    core = option.strip()
    forms = {core.lower(), core.capitalize(), core.upper()}
    return {space + form for form in forms for space in ("", " ")}
