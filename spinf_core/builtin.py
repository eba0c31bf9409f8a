"""Core's own records, registered through the same hooks as everyone's."""

from __future__ import annotations

from collections.abc import Iterable

from spinf_core.hookspecs import hookimpl
from spinf_core.records import Command, Frontend, QuantScheme

COMMANDS: tuple[Command, ...] = (
    Command(name="serve", summary="Serve a model over HTTP.", factory="spinf_core.cli:serve"),
    Command(name="score", summary="Score a request read from a file.", factory="spinf_core.cli:score"),
    Command(name="models", summary="List the models that can be served.", factory="spinf_core.cli:models"),
    Command(name="plugins", summary="List plugins and what they register.", factory="spinf_core.cli:plugins"),
)


@hookimpl
def spinf_commands() -> Iterable[Command]:
    """The commands that need no plugin."""
    return COMMANDS


@hookimpl
def spinf_quant_schemes() -> Iterable[QuantScheme]:
    """The schemes that run on any device."""
    unquantized, int8 = "spinf_core.quant.unquantized:build", "spinf_core.quant.int8:build"
    yield QuantScheme(name="fp32", summary="Weights and activations in float32.", factory=unquantized)
    yield QuantScheme(name="bf16", summary="Weights and activations in bfloat16.", factory=unquantized)
    yield QuantScheme(name="w8a16", summary="Weights in int8 per channel, activations in float.", factory=int8)
    yield QuantScheme(name="w8a8", summary="Weights in int8 per channel, activations in int8 per token.", factory=int8)


@hookimpl
def spinf_frontends() -> Iterable[Frontend]:
    """The scoring API and its chat alias."""
    yield Frontend(
        name="spinf",
        summary="The scoring API: /v1/score, models, packs, /v0.",
        factory="spinf_core.server.frontends.spinf:build",
    )
    yield Frontend(
        name="openai",
        summary="/v1/chat/completions, for the OpenAI SDKs.",
        factory="spinf_core.server.frontends.openai:build",
    )
