"""Contents and questions that meet in every way, and what transformers says about them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, LlamaForCausalLM

_PROSE = (
    "The parcel was promised for the third of May and came on the twentieth, with one of the four chairs broken. I wrote to "
    "your support twice and was told, both times, that someone would call me back within two working days; nobody has. "
)
_CODE = (
    'def area(self) -> float:\n    """Square metres."""\n    return self.width * self.height\n\n\nclass Room:\n    doors = 2\n'
)

CONTENTS = {
    "nothing": "",
    "a letter": "A",
    "prose": _PROSE + "I want my money back.",
    "half a word": "The customer asks about the current sta",
    "a line break": "Name: Ada Lovelace\nCity: London\nThe customer writes in English.\n",
    "a space": "Please answer the following question about the weather in Paris today: ",
    "digits": "Invoice 2024-0815, amount due 1,204.50, reference 123456789",
    "code": _CODE * 2,
    "JSON": '{"order": {"id": 7710482, "items": [{"sku": "CH-04", "count": 4}], "paid": true, "note": null}}',
    "emoji": "Great service 😀😀 thanks 👩‍👩‍👧‍👦 see you soon 🎉",
    "Chinese": "昨天收到的椅子有一把坏了，我想要退款。请尽快回复我，谢谢。",
    "white space": "a\n\n\n   b\t\tc      \n \n  d   ",
    "long prose": _PROSE * 7,
    "1,500 tokens": (_PROSE + _CODE) * 18,
}

Question = tuple[str, tuple[str, ...]]

# Options of one token and of several, shared stems and lead-ins, options that begin others, starts that merge with a content.
QUESTIONS: tuple[Question, ...] = (
    ("\n\nIs the customer asking for a refund?\nAnswer:", (" yes", " no")),
    ("\n\nIs the customer angry?\nAnswer:", (" yes", " no")),
    ("\n\nIs the customer angry?\nAnswer:", (" certainly not", " certainly", " Unclear")),
    ("\nLanguage:", (" English", " Chinese", " Python", " JavaScript Object Notation")),
    ("tus is", (" open", " closed", " in", " in part")),
    ("tus:", (" open", "open wing", " CLOSED")),
    ("0 is a", (" number", " word")),
    ("7", (" apples", ".", " pears")),
    ("\n", ("The", "def", " return", "{")),
    (" and then", (" the", " a", " North Wing", " North Gate")),
    ("s are", (" good", " bad")),
    ("\n\n\n- tone:", (" 😀", " happy", " sad and slow")),
    (" (true or false):", (" true", "FALSE")),
    ("。情绪：", ("好", "坏", "生气")),
    ("Question? Answer with one word.", (" Yes", " No", "Maybe")),
    (" puppet", ("s", " show", " theatre", "in")),
    ("", (" the", "\n", " and so on")),
)


@attrs.frozen
class Scored:
    """A question's scores: the log of each option's mass, each option's share, the probability on none."""

    logprobs: tuple[float, ...]
    shares: tuple[float, ...]
    residual: float


def _case_forms(option: str) -> Iterator[str]:
    core = option.strip()
    for form in (core.lower(), core.capitalize(), core.upper()):
        yield from (form, " " + form)


class Oracle:
    """transformers' tokenizer and model on full texts, and the API's rules for options spelled out once more."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
        self._scored_before: dict[tuple[str, tuple[Question, ...]], list[Scored]] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids; the model adds no BOS."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def joins(self, prompt: str, option: str) -> bool:
        """Whether an option tokenizes behind the whole prompt as on its own."""
        return self.encode(prompt + option) == self.encode(prompt) + self.encode(option)

    def forms(self, prompt: str, option: str) -> set[tuple[int, ...]]:
        """The token sequences that count as an option: itself, and its case variants of one token."""
        variants = [form for form in _case_forms(option) if len(self.encode(form)) == 1 and self.joins(prompt, form)]
        return {self.encode(option), *map(self.encode, variants)}

    def score(self, content: str, questions: Sequence[Question]) -> list[Scored]:
        """The scores of every question; remembered."""
        key = (content, tuple(questions))
        if key not in self._scored_before:
            self._scored_before[key] = self._score(content, questions)
        return self._scored_before[key]

    def _score(self, content: str, questions: Sequence[Question]) -> list[Scored]:
        prompts = [content + template for template, _ in questions]
        forms = [
            [self.forms(prompt, option) for option in options] for prompt, (_, options) in zip(prompts, questions, strict=True)
        ]
        wanted = {
            self.encode(prompt) + form[:stop]
            for prompt, options in zip(prompts, forms, strict=True)
            for form in itertools.chain.from_iterable(options)
            for stop in range(len(form))
        }
        following = dict(self._following(sorted(wanted)))
        return [self._scored(following, self.encode(prompt), options) for prompt, options in zip(prompts, forms, strict=True)]

    def _scored(
        self, following: dict[tuple[int, ...], Tensor], prompt: tuple[int, ...], options: list[set[tuple[int, ...]]]
    ) -> Scored:
        def logprob(form: tuple[int, ...]) -> Tensor:  # the chain rule
            return sum(
                (following[prompt + form[:n]][token] for n, token in enumerate(form)), torch.zeros((), dtype=torch.float64)
            )

        masses = torch.stack([torch.logsumexp(torch.stack([logprob(form) for form in forms]), 0) for forms in options])
        every = set().union(*options)
        union = [form for form in every if not any(form[:stop] in every for stop in range(1, len(form)))]
        residual = 1 - sum(logprob(form).exp().item() for form in union)
        return Scored(tuple(masses.tolist()), tuple(masses.softmax(0).tolist()), max(0.0, residual))

    @torch.inference_mode()
    def _following(self, sequences: list[tuple[int, ...]], batch: int = 16) -> Iterable[tuple[tuple[int, ...], Tensor]]:
        """Each sequence with the log-probabilities [V] of its next token; what all begin with is read once, into the cache."""
        first, last = sequences[0], sequences[-1]
        shared = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
        shared = min(shared, min(map(len, sequences)) - 1)
        cache = DynamicCache(config=self.model.config)
        if shared:
            self.model(torch.tensor([first[:shared]]), past_key_values=cache, logits_to_keep=1)
        sequences = sorted(sequences, key=len)
        for start in range(0, len(sequences), batch):
            some = sequences[start : start + batch]
            width = max(map(len, some)) - shared
            rests = [[*sequence[shared:], *[0] * (width + shared - len(sequence))] for sequence in some]  # nothing looks ahead
            past = copy.deepcopy(cache)
            if shared:
                past.batch_repeat_interleave(len(some))
            logits = self.model(torch.tensor(rests), past_key_values=past).logits
            for row, sequence in enumerate(some):
                yield sequence, logits[row, len(sequence) - shared - 1].double().log_softmax(-1)
