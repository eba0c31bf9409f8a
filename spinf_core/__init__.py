"""spinf reads a content once and answers hundreds of fixed-choice questions about it in the same forward pass.

This package is the core: the request, its compilation to token tries, the engine that runs them, and the hooks by which
plugins bring model stacks, quantization schemes, media embedders, pack sources, front ends and commands.
"""

from spinf_core.errors import Rejected, SetupError
from spinf_core.hookspecs import hookimpl
from spinf_core.manifests import Manifest
from spinf_core.records import Command, Frontend, MediaEmbedder, ModelStack, PackSource, QuantScheme

__all__ = [
    "Command",
    "Frontend",
    "Manifest",
    "MediaEmbedder",
    "ModelStack",
    "PackSource",
    "QuantScheme",
    "Rejected",
    "SetupError",
    "hookimpl",
]
