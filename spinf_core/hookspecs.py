"""One hook per extension point. Hooks take no arguments and return an iterable of records.

A plugin is a module (or object) with some of these functions, marked with `hookimpl`, that an entry point of the group
`spinf` names:

    from spinf_core import hookimpl, ModelStack

    @hookimpl
    def spinf_model_stacks():
        yield ModelStack(name="mine", summary="…", family="mine", model_types=("mine",), factory="my_plugin.stack:load")
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pluggy

from spinf_core.manifests import Manifest
from spinf_core.records import Command, Frontend, MediaEmbedder, ModelStack, PackSource, QuantScheme

PROJECT = "spinf"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class SpinfSpecs:
    """The extension points of spinf."""

    @hookspec
    def spinf_model_stacks(self) -> Iterable[ModelStack]:
        """Model stacks, one per architecture family.

        Example:
            yield ModelStack(name="mine", summary="My family", family="mine", model_types=("mine",), factory="my.stack:load")
        """
        return ()

    @hookspec
    def spinf_manifests(self) -> Iterable[Manifest | Path]:
        """Served models: `Manifest` records, or paths of TOML files that hold one each.

        Example:
            yield from sorted((Path(__file__).parent / "manifests").glob("*.toml"))
        """
        return ()

    @hookspec
    def spinf_quant_schemes(self) -> Iterable[QuantScheme]:
        """Quantization schemes.

        Example:
            yield QuantScheme(name="mine", summary="4-bit weights", factory="my.scheme:build", requires=("cuda",))
        """
        return ()

    @hookspec
    def spinf_media_embedders(self) -> Iterable[MediaEmbedder]:
        """Embedders of images, audio or video for stack families.

        Example:
            yield MediaEmbedder(name="mine-image", summary="…", kind="image", families=("mine",), factory="my.vision:build")
        """
        return ()

    @hookspec
    def spinf_pack_sources(self) -> Iterable[PackSource]:
        """Sources of prompt packs.

        Example:
            yield PackSource(name="bucket", summary="Packs from a bucket", scheme="bucket", factory="my.packs:build")
        """
        return ()

    @hookspec
    def spinf_frontends(self) -> Iterable[Frontend]:
        """Server front ends.

        Example:
            yield Frontend(name="grpc", summary="gRPC on its own port", factory="my.grpc:build")
        """
        return ()

    @hookspec
    def spinf_commands(self) -> Iterable[Command]:
        """Subcommands of `spinf`.

        Example:
            yield Command(name="report", summary="Write a report", factory="my.report:COMMAND")
        """
        return ()
