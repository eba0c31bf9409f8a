"""The settings that exist: what flags, environment names, help and the checks of the settings file are made from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import attrs

from spinf_core.limits import Limits
from spinf_core.manifests import MediaKind
from spinf_core.strict import hints


def _setting(default: Any, help: str, *, repr: bool = True, **metadata: Any) -> Any:
    """A field with what its flag, its environment name and its checks are made from.

    Args:
        default: its value when nothing sets it.
        help: one line.
        repr: False for a secret, whose value no message may show.
        metadata: `flag` (False: none) and `env` where they do not follow from the name, `both` for a switch with a flag
            for either side, `many` for a list given as several words, `least` and `most` for numbers.
    """
    return attrs.field(default=default, metadata={"help": help, **metadata}, repr=repr)


@attrs.frozen(kw_only=True)
class EngineSettings:
    """What runs and how. See each field's help; None stands for the engine's own choice."""

    model: str | None = _setting(None, "id or alias of a served model, a checkpoint folder, or a Hub id", flag=False)
    device: str = _setting("auto", "where to run: auto, cpu, cuda, cuda:1, … or the UUID of a GPU, GPU-…")
    quant: str | None = _setting(
        None, "quantization scheme, such as bf16, fp32 or w8a16; without it, the model's own or what suits the device"
    )
    model_dir: Path | None = _setting(None, "folder of the checkpoint, instead of the cache")  # noqa: RUF009
    token_budget: int | None = _setting(None, "rows that jobs share a pass up to; without it, what suits the device", least=64)
    max_tokens: int | None = _setting(
        None, "rows of the largest job, a larger one is split by branches; without it, what suits the device", least=64
    )
    lm_head: Literal["f32out", "bf16", "fp32"] = _setting("f32out", "products of the language model's head: f32out, bf16, fp32")
    media: bool = _setting(True, "load what embeds images, audio and video; without effect as yet")
    compile: bool = _setting(True, "compile the model for the device; without effect as yet")
    warmup: Literal["full", "short", "none"] = _setting("full", "passes that a server runs first: full, short, none")
    stack_options: Mapping[str, str] = _setting(MappingProxyType({}), "research options of the stack, name=value,…")
    threads: int | None = _setting(None, "CPU threads; without it, the physical cores that the process may use", least=1)
    self_test: bool = _setting(False, "run the invariance self-test even where its result is on disk")
    share_passes: bool = _setting(True, "let requests share passes")
    floor_cache_bytes: int = _setting(64 * 2**20, "memory for cached floors", least=0)


@attrs.frozen(kw_only=True)
class ServerSettings:
    """How the server listens and whom it answers."""

    host: str | None = _setting(None, "address to listen on; without it, 127.0.0.1, or every address where a token is set")
    port: int = _setting(8000, "port to listen on", least=0, most=65535)
    token: str | None = _setting(None, "token that requests must carry; without one the server is open", repr=False)
    trusted_token: str | None = _setting(
        None, "token whose holders may send limits and features", env="SPINF_ENGINE_TOKEN", repr=False
    )
    queue: int = _setting(64, "requests that may wait", least=1)
    max_body_bytes: int = _setting(2 * 2**20, "largest request body", least=1)
    debug: bool = _setting(False, "log more, and show the engine's inner fields")
    frontends: tuple[str, ...] | None = _setting(None, "front ends to run, comma-separated; without it, every installed one")
    log_format: Literal["plain", "json"] = _setting("plain", "lines of the log: plain or json")
    drain_seconds: int = _setting(30, "how long a stopping server goes on with what it has accepted", least=0)


@attrs.frozen(kw_only=True)
class FeatureSettings:
    """What requests may ask for."""

    media_kinds: tuple[MediaKind, ...] = _setting(
        get_args(MediaKind),
        "kinds of media to accept: image,audio,video; without effect as yet",
        flag="--media",
        env="SPINF_MEDIA",
    )
    extraction: bool = _setting(True, "answer extraction slots; without effect as yet: they are refused", both=True)
    generation: bool = _setting(True, "answer slots that generate; without effect as yet: they are refused", both=True)
    packs: tuple[str, ...] = _setting((), "sources of prompt packs", many=True)
    official_packs: bool = _setting(True, "load the official packs")
    official_source: str = _setting(
        "github:spinfinc/spinf-prompts@0.1.0", "where the official packs are", flag=False, env="SPINF_PACKS_OFFICIAL"
    )
    packs_allow_namespace: tuple[str, ...] = _setting((), "reserved namespaces that other sources may use", many=True)
    packs_refresh: bool = _setting(False, "fetch packs again instead of using the cache")


TABLES: dict[str, type[attrs.AttrsInstance]] = {
    "engine": EngineSettings,
    "server": ServerSettings,
    "features": FeatureSettings,
    "limits": Limits,
}


@attrs.frozen
class Option:
    """One setting, as flags, environment, file and documentation see it."""

    table: str
    name: str
    hint: Any
    default: Any
    metadata: Mapping[str, Any]
    secret: bool

    @property
    def key(self) -> str:
        """`table.name`."""
        return f"{self.table}.{self.name}"

    @property
    def help(self) -> str:
        """One line."""
        return str(self.metadata["help"])

    @property
    def flags(self) -> dict[str, bool | None]:
        """Its flags: each with the value that a switch's flag sets, or None where the flag takes a value."""
        flag = self.metadata.get("flag", "--" + self.name.replace("_", "-"))
        if flag is False:
            return {}
        if self.hint is not bool:
            return {flag: None}
        sides: dict[str, bool | None] = {flag: True, "--no-" + flag.removeprefix("--"): False}
        return sides if self.metadata.get("both") else {name: on for name, on in sides.items() if on != self.default}

    @property
    def env(self) -> str:
        """Its environment variable."""
        return str(self.metadata.get("env", "SPINF_" + self.name.upper()))


@functools.cache
def options(*tables: str) -> tuple[Option, ...]:
    """The settings of these tables, or of all, in the order of their classes."""
    found = []
    for table in tables or TABLES:
        types = hints(TABLES[table])
        for field in attrs.fields(TABLES[table]):
            found.append(Option(table, field.name, types[field.name], field.default, field.metadata, not field.repr))
    return tuple(found)
