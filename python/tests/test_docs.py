"""The documentation: links resolve, lines are short, named files exist, decision records have one form."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE_MAX = 120
# Generated files.
GENERATED = {"hw/synth/report.md", "docs/accelerator-registers.md"}
ADR_HEADINGS = ["## Context", "## Decision", "## Alternatives rejected", "## Consequences"]
# Output files of commands, which are not in the repository.
NOT_TRACKED = ("out/", "target/", "site/")
# The API of crates, which `make docs` copies into the site.
RUSTDOC = "../../rust/"


def tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in set(found.stdout.split("\n")) - {""} if (ROOT / name).exists())


PAGES = [name for name in tracked("*.md") if name not in GENERATED]


def prose(page: str) -> str:
    """The page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(), flags=re.S | re.M)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#{1,6} +(.*?) *$", text, flags=re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "") for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def broken_links(page: str, text: str) -> list[str]:
    broken = []
    targets = re.findall(r"\]\(\s*<?([^()\s>]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\)", text)
    targets += re.findall(r"^\[[^]]+\]:\s*(\S+)", text, flags=re.M)
    for target in targets:
        if re.match(r"[a-z]+:", target) or target.startswith(RUSTDOC):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_links_inside_the_repository_resolve(page: str) -> None:
    assert broken_links(page, prose(page)) == []


def test_the_link_check_finds_broken_links() -> None:
    text = "[a](README.md) [b](gone.md) [c](README.md#no-such-heading) [d](#none)\n[e]: also-gone.md\n"
    assert broken_links("README.md", text) == ["gone.md", "README.md#no-such-heading", "#none", "also-gone.md"]


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short(page: str) -> None:
    lines = (ROOT / page).read_text().split("\n")
    # A link's target cannot be wrapped.
    long = [n for n, line in enumerate(lines, 1) if len(line) > LINE_MAX and not re.match(r"\[[^]]+\]:", line)]
    assert long == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_files_named_in_backticks_exist(page: str) -> None:
    """`crates/…`, `tests/…` and the like, with a placeholder in capitals or `*` left out."""
    folders = "crates|python|tests|hw|docs|scenarios|experiments|bench|vectors|examples|fuzz"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", prose(page)))
    missing = [n for n in named if not re.search(r"\b[A-Z]+\b", n.replace("README", "")) and not (ROOT / n).exists()]
    assert [n for n in missing if not n.startswith(NOT_TRACKED)] == []


RECORDS = [name for name in tracked("docs/adr/*.md") if not name.endswith("README.md")]


def test_decision_records_have_numbers_of_their_own_and_are_in_the_index() -> None:
    numbers = [int(Path(name).name[:4]) for name in RECORDS]
    assert len(set(numbers)) == len(numbers)
    index = (ROOT / "docs/adr/README.md").read_text()
    assert [name for name in RECORDS if f"({Path(name).name})" not in index] == []


@pytest.mark.parametrize("record", RECORDS)
def test_decision_records_have_one_form(record: str) -> None:
    text = (ROOT / record).read_text()
    assert re.match(rf"# ADR {Path(record).name[:4]}: \S", text)
    assert re.search(r"^Status: (accepted|superseded by \[?ADR \d{4})", text, flags=re.M)
    assert re.findall(r"^## .*$", text, flags=re.M) == ADR_HEADINGS
    assert "\nRequirement: " in text
    assert "Tests: " in text


def test_references_to_decision_records_name_one_that_exists() -> None:
    known = {Path(name).name[:4] for name in RECORDS}
    wrong = []
    for name in tracked("*.rs", "*.py", "*.md", "*.c", "*.h", "*.sv", "*.toml"):
        if name == "CHANGELOG.md" or name == "python/tests/test_docs.py":
            continue
        text = (ROOT / name).read_text(errors="replace")
        for number in re.findall(r"\bADRs? \[?(\d+)\b", text):
            if number not in known:
                wrong.append(f"{name}: ADR {number}")
        for path in re.findall(r"docs/adr/(\d[\w.-]+\.md)", text):
            if not (ROOT / "docs/adr" / path).exists():
                wrong.append(f"{name}: docs/adr/{path}")
    assert wrong == []


def test_the_site_check_finds_broken_links(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs/site/build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here"><a href="b.html#gone"><a href="c.html"><a href="https://x.y">'
    )
    assert build.broken_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.html"]


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert f'__version__ = "{version}+source"' in (ROOT / "python/netsum/__init__.py").read_text()
    assert f"## [{version}] - " in (ROOT / "CHANGELOG.md").read_text()
    chart = (ROOT / "kubernetes/netsum/Chart.yaml").read_text()
    assert f"\nversion: {version}\nappVersion: {version}\n" in chart
    for lock in ("Cargo.lock", "fuzz/Cargo.lock"):
        packages = tomllib.loads((ROOT / lock).read_text())["package"]
        ours = {p["version"] for p in packages if p["name"].startswith("netsum-") and p["name"] != "netsum-fuzz"}
        assert ours == {version}, lock


def test_crates_say_what_they_are() -> None:
    for manifest in tracked("crates/*/Cargo.toml"):
        package = tomllib.loads((ROOT / manifest).read_text())["package"]
        assert package.get("description"), manifest
        assert package.get("repository") == {"workspace": True}, manifest
        assert package.get("license") == {"workspace": True}, manifest


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.M))
    wrong = []
    for name in [*PAGES, *tracked(".github/workflows/*.yml"), ".pre-commit-config.yaml"]:
        text = (ROOT / name).read_text()
        for target in re.findall(r"(?:`|^|run: )make ([a-z][a-z-]+)", text, flags=re.M):
            if target not in targets:
                wrong.append(f"{name}: make {target}")
    assert wrong == []


def test_symbolic_links_stay_inside_the_repository() -> None:
    links = [name for name in tracked() if (ROOT / name).is_symlink()]
    assert links, "the check looks at files that are links"
    assert [name for name in links if not (ROOT / name).resolve().is_relative_to(ROOT.resolve())] == []
