"""spinf on a CPU beside llama.cpp and transformers: the same weights, threads, contents and questions, in one run.

    python benchmarks/cpu_peers.py SmolLM2-135M-Instruct.Q4_1.gguf [--llama-python PATH] [--threads 2]

| peer | how it answers |
|---|---|
| spinf | one request of all contents |
| tree | transformers, bfloat16: content and questions as one trie, one forward with a dense mask |
| prompts | transformers: each full prompt by itself, in float32 and in bfloat16 |
| kept | llama.cpp: the content's cache is kept, one question after another continues it |
| batched | llama.cpp: the content's cache is shared by sequences that are run together, as many as it takes |

The other peers share nothing between contents, so they answer one of them. Each peer is a process of its own and they take
turns, one round after another, so that whatever else the machine does is shared out; what is shown are medians. A peer that
takes long answers only some of the questions: then the seconds of the content, and of each question, are found apart and made
up to the whole, and the table says from how many.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

ROOT = Path(__file__).parents[1]
OPTIONS = (" rise", " fall")
THINGS = ("rent", "wages", "demand", "prices", "output", "trade", "risk", "stock", "supply", "tax", "debt", "growth", "noise")
PEERS = ("spinf", "tree", "prompts fp32", "prompts bf16", "kept", "batched")
# The most questions that a peer answers in a round.
MOST = {"prompts fp32": 2, "prompts bf16": 3, "kept": 16}
TREE_ROWS = 4096  # above this a dense mask takes minutes
SEQUENCES = 56

Answers = list[tuple[float, float]]
"""The log-probabilities of both options, question by question."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is asked: texts, and what stands between each and the options."""

    contents: tuple[str, ...]
    questions: tuple[str, ...]

    @classmethod
    def of(cls, contents: int, tokens: int, questions: int, seed: int) -> Cell:
        """Contents of random words, about as many tokens."""
        chance = random.Random(seed)
        texts = ["The " + " ".join(chance.choice(THINGS) for _ in range(tokens - 1)) + "." for _ in range(contents)]
        pairs = [(a, b, c) for a in THINGS for b in THINGS for c in THINGS if len({a, b, c}) == 3]
        chance.shuffle(pairs)
        chosen = [f"\n\nIf {a} and {b} go up, {c} will" for a, b, c in pairs[:questions]]
        return cls(tuple(texts), tuple(chosen))

    @property
    def content(self) -> str:
        """The first."""
        return self.contents[0]


def common(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """The tokens that both begin with."""
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False))]


class Peer(Protocol):
    """Answers the questions of a cell."""

    def answer(self, cell: Cell) -> Answers: ...


class Spinf:
    """This engine, as a library."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        for part in (".", "plugins/smollm2"):
            sys.path.insert(0, str(ROOT / part))
        import spinf_smollm2.plugin

        from spinf_core.engine.engine import Engine
        from spinf_core.plugins import discover
        from spinf_core.settings import load_settings

        plugins = discover(only=(), extra=[("smollm2", spinf_smollm2.plugin)])
        settings = load_settings({"engine.threads": threads}, plugins=plugins)
        self.engine = Engine(checkpoint, settings=settings, plugins=plugins, progress=lambda line: print(line, file=sys.stderr))

    def answer(self, cell: Cell) -> Answers:
        queries = [{"id": str(n), "template": text + "{?}", "options": OPTIONS} for n, text in enumerate(cell.questions)]
        scoring = {"queries": queries, "empty_floor": False, "case_insensitive": False}
        inputs = [{"id": str(n), "messages": [{"role": "user", "content": text}]} for n, text in enumerate(cell.contents)]
        response = self.engine.score({"inputs": inputs, "scoring": scoring})
        return [(a.logprob, b.logprob) for a, b in (query.combinations[0].options for query in response.results[0].queries)]


class Transformers:
    """transformers' Llama; each prompt alone, or all as one tree under a dense mask."""

    def __init__(self, checkpoint: str, threads: int, dtype: str, tree: bool) -> None:
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM

        torch.set_num_threads(threads)
        self.torch, self.tree = torch, tree
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype), attn_implementation="sdpa")
        self.options = [self.tokenizer(option)["input_ids"][0] for option in OPTIONS]

    def answer(self, cell: Cell) -> Answers:
        prompts = [self.tokenizer(cell.content + text)["input_ids"] for text in cell.questions]
        with self.torch.inference_mode():
            rows = self._tree(prompts) if self.tree else [self._prompt(prompt) for prompt in prompts]
            logits = self.model.lm_head(self.torch.stack(list(rows))).float()
            logprobs = logits.log_softmax(-1)[:, self.options]
        return [(a, b) for a, b in logprobs.tolist()]

    def _prompt(self, prompt: list[int]) -> Any:
        return self.model.model(self.torch.tensor([prompt]), use_cache=False).last_hidden_state[0, -1]

    def _tree(self, prompts: Sequence[Sequence[int]]) -> Any:
        torch, nodes, ids, parents, ends = self.torch, {}, [], [], []
        for prompt in prompts:
            at = -1
            for token in prompt:
                if (at, token) not in nodes:
                    nodes[at, token] = len(ids)
                    ids.append(token)
                    parents.append(at)
                at = nodes[at, token]
            ends.append(at)
        seen = torch.zeros(len(ids), len(ids), dtype=torch.bool)
        depth = []
        for row, parent in enumerate(parents):
            if parent >= 0:
                seen[row] = seen[parent]
            seen[row, row] = True
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
        dtype = self.model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)[None, None]
        inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([depth]), "attention_mask": mask}
        return self.model.model(**inputs, use_cache=False).last_hidden_state[0, ends]


class LlamaCpp:
    """llama.cpp through the low-level interface of llama-cpp-python."""

    def __init__(self, gguf: str, threads: int, together: int) -> None:
        import llama_cpp

        self.api, self.together = llama_cpp, together
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(gguf.encode(), llama_cpp.llama_model_default_params())
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 8192, 2048, 512
        settings.n_threads = settings.n_threads_batch = threads
        settings.n_seq_max, settings.kv_unified = together + 1, True
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)
        self.options = [self._tokens(option)[0] for option in OPTIONS]

    def answer(self, cell: Cell) -> Answers:
        prompts = [self._tokens(cell.content + text) for text in cell.questions]
        shared = min(len(common(prompt, self._tokens(cell.content))) for prompt in prompts)
        self.api.llama_memory_clear(self.memory, True)
        for first in range(0, shared, 2048):
            stop = min(shared, first + 2048)
            self._run([(token, first + at, 0, False) for at, token in enumerate(prompts[0][first:stop])])
        answers: Answers = []
        for first in range(0, len(prompts), self.together):
            rows = []
            some = prompts[first : first + self.together]
            for number, prompt in enumerate(some, 1):
                self.api.llama_memory_seq_cp(self.memory, 0, number, 0, shared)
                last = len(prompt) - 1
                rows += [(prompt[at], at, number, at == last) for at in range(shared, len(prompt))]
            answers += self._run(rows)
            for number in range(1, len(some) + 1):
                self.api.llama_memory_seq_rm(self.memory, number, -1, -1)
        return answers

    def _tokens(self, text: str) -> list[int]:
        data = text.encode()
        found = (self.api.llama_token * (len(data) + 8))()
        count = self.api.llama_tokenize(self.vocab, data, len(data), found, len(found), False, False)
        return list(found[:count])

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> Answers:
        """Decode (token, position, sequence, whether it is read) rows; what is read."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, read) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
            batch.seq_id[at][0], batch.logits[at] = sequence, read
        if self.api.llama_decode(self.context, batch):
            raise SystemExit("llama.cpp could not run a batch")
        return [self._read(at) for at, row in enumerate(rows) if row[3]]

    def _read(self, at: int) -> tuple[float, float]:
        logits = np.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, at), shape=(self.size,))
        normaliser = float(logits.max()) + math.log(float(np.exp(logits - logits.max()).sum()))
        a, b = (float(logits[option]) - normaliser for option in self.options)
        return a, b


def made(peer: str, gguf: str, checkpoint: str, threads: int) -> Peer:
    """A peer by its name."""
    if peer == "spinf":
        return Spinf(checkpoint, threads)
    if peer in ("kept", "batched"):
        return LlamaCpp(gguf, threads, 1 if peer == "kept" else SEQUENCES)
    return Transformers(checkpoint, threads, "float32" if peer.endswith("fp32") else "bfloat16", tree=peer == "tree")


def serve(peer: Peer, clock: Callable[[], float]) -> None:
    """Answer cells that come as lines of JSON, each with the seconds it took."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        cell = Cell(**json.loads(line))
        began = clock()
        answers = peer.answer(cell)
        replies.write(json.dumps({"seconds": clock() - began, "answers": answers}) + "\n")
        replies.flush()


class Process:
    """A peer in a process of its own."""

    def __init__(self, name: str, python: str, arguments: Sequence[str]) -> None:
        self.name = name
        command = [python, __file__, *arguments, "--worker", name]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"{name} did not start; see why with: {' '.join(command)}")

    def ask(self, cell: Cell) -> tuple[float, Answers]:
        """Seconds and answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(dataclasses.asdict(cell)) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        return reply["seconds"], [(a, b) for a, b in reply["answers"]]

    def timed(self, cell: Cell) -> tuple[float, Answers]:
        """Seconds for a content of the cell, made up from fewer questions where the peer is a slow one."""
        if self.name == "spinf":
            seconds, answers = self.ask(cell)
            return seconds / len(cell.contents), answers
        cell = dataclasses.replace(cell, contents=cell.contents[:1])
        most = MOST.get(self.name, len(cell.questions))
        if len(cell.questions) <= most:
            return self.ask(cell)
        few, _ = self.ask(dataclasses.replace(cell, questions=cell.questions[: most // 2]))
        many, answers = self.ask(dataclasses.replace(cell, questions=cell.questions[:most]))
        each = (many - few) / (most - most // 2)
        return many + each * (len(cell.questions) - most), answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", help="SmolLM2-135M-Instruct as GGUF")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-seconds", action="store_true", help="of the process, for a busy machine; with one thread")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contents", type=int, default=1, help="in a request")
    parser.add_argument("--tokens", type=int, nargs="+", default=[100, 470, 2000], help="of contents")
    parser.add_argument("--questions", type=int, nargs="+", default=[8, 56, 500])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--checkpoint", help="a folder that the GGUF file was converted into, to save doing it again")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        clock = time.process_time if arguments.cpu_seconds else time.perf_counter
        serve(made(arguments.worker, arguments.gguf, arguments.checkpoint, arguments.threads), clock)
        return
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.checkpoint:
            sys.path[:0] = [str(ROOT), str(ROOT / "plugins/smollm2")]
            from spinf_smollm2.gguf import convert

            convert(Path(arguments.gguf), Path(folder))
        common = [arguments.gguf, "--checkpoint", arguments.checkpoint or folder, "--threads", str(arguments.threads)]
        common += ["--cpu-seconds"] if arguments.cpu_seconds else []
        if arguments.cpu_seconds and arguments.threads != 1:
            parser.error("--cpu-seconds goes with --threads 1: threads that wait for one another take CPU seconds too")
        peers = []
        for name in arguments.peers:
            python = arguments.llama_python if name in ("kept", "batched") else sys.executable
            peers.append(Process(name, python, common))
        compare(peers, arguments.contents, arguments.tokens, arguments.questions, arguments.rounds)


def compare(peers: Sequence[Process], contents: int, tokens: Sequence[int], questions: Sequence[int], rounds: int) -> None:
    """Print the table: questions a second, and how many times that spinf answers."""
    print(f"questions a second, medians of {rounds} rounds; in brackets: of spinf's speed; how far answers are from spinf's")
    print("| content | questions | " + " | ".join(peer.name for peer in peers) + " |\n" + "|---" * (2 + len(peers)) + "|")
    for length in tokens:
        for count in questions:
            chosen = [peer for peer in peers if peer.name != "tree" or length + 7 * count <= TREE_ROWS]
            seconds: dict[str, list[float]] = {peer.name: [] for peer in chosen}
            answers: dict[str, Answers] = {}
            for number in range(rounds + 1):
                cell = Cell.of(contents, length, count, seed=number)
                for peer in chosen:
                    taken, answers[peer.name] = peer.timed(cell)
                    if number:  # the first round warms up
                        seconds[peer.name].append(taken)
            entries = " | ".join(_entry(peer.name, seconds, answers, count) for peer in peers)
            print(f"| {length} | {count} | {entries} |", flush=True)
            report_answers(answers)


def _entry(name: str, seconds: dict[str, list[float]], answers: dict[str, Answers], count: int) -> str:
    if name not in seconds:
        return "–"
    rate = count / statistics.median(seconds[name])
    text = f"{rate:.1f}"
    if "spinf" in seconds and name != "spinf":
        ratios = [theirs / ours for theirs, ours in zip(seconds[name], seconds["spinf"], strict=True)]
        text += f" (1/{statistics.median(ratios):.1f})"
    return text + (f", from {len(answers[name])}" if len(answers[name]) < count else "")


def report_answers(answers: dict[str, Answers]) -> None:
    """Say on stderr how near the peers' answers of the last round are to spinf's."""
    mine = answers.get("spinf", [])
    for name, theirs in answers.items():
        gaps = [abs(a - b) for ours, other in zip(mine, theirs, strict=False) for a, b in zip(ours, other, strict=True)]
        same = sum((a > b) == (c > d) for (a, b), (c, d) in zip(mine, theirs, strict=False))
        if gaps and name != "spinf":
            print(
                f"  {name}: log-probabilities differ by {statistics.mean(gaps):.3f} on average, {max(gaps):.3f} at most; "
                f"the same option leads in {same} of {min(len(mine), len(theirs))}",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    main()
