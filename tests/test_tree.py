"""What holds for the whole tree: links lead somewhere, and nothing names the machine that it was written on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATHS = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
TEXTS = {path: (ROOT / path).read_text(encoding="utf-8") for path in PATHS if (ROOT / path).is_file()}
PAGES = [path for path in TEXTS if path.endswith(".md")]

# Spelled in pieces, so that this file passes its own test.
FOREIGN = {
    "a folder of somebody's machine": r"(?<![\w.~])/(?:ro" + r"ot|wo" + r"rk|o" + r"pt|Us" + r"ers)/\w",
    "a package index or mirror": r"py" + r"pi\.org|python" + r"hosted|download\.py" + r"torch|fi" + r"le:///",
    "a token": r"\bh" + r"f_[A-Za-z0-9]{20,}|\bgh" + r"p_[A-Za-z0-9]{20,}",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_holds(what):
    pattern = re.compile(FOREIGN[what])
    assert [f"{path}: {found[0]}" for path, text in TEXTS.items() for found in pattern.finditer(text)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme():
    pages = [page for page in PAGES if page.startswith("docs/")]
    assert [page for page in pages if f"]({page})" not in TEXTS["README.md"]] == []


def test_the_structures_page_names_every_package():
    packages = {path.split("/")[1] for path in PATHS if re.fullmatch(r"spinf_core/\w+/__init__\.py", path)}
    assert [name for name in packages if f"`spinf_core.{name}`" not in TEXTS["docs/structures.md"]] == []


@pytest.mark.parametrize(
    "page", [f"docs/{name}.md" for name in ("structures", "architecture", "batch-invariance", "performance")]
)
def test_pages_about_the_code_name_only_what_exists(page):
    modules = {path.removesuffix(".py").replace("/", ".") for path in PATHS if path.startswith("spinf_core/")}
    for dotted in re.findall(r"`((?:cli|engine|compiler|nn|settings|plugins|checkpoints|protocol)\.[\w.]+)`", TEXTS[page]):
        if {f"spinf_core.{dotted}", f"spinf_core.{dotted}.__init__"} & modules:
            continue
        module, _, attribute = f"spinf_core.{dotted}".rpartition(".")
        while module not in modules and f"{module}.__init__" not in modules:
            module, _, attribute = module.rpartition(".")
        source = TEXTS.get(module.replace(".", "/") + ".py") or TEXTS[module.replace(".", "/") + "/__init__.py"]
        assert re.search(rf"\b{attribute}\b", source), dotted
