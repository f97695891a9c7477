"""The files of a crate import each other in layers: no import circle has more than two files.

A file imports another if it names one of its items by a path that begins with `crate` or `super`. A module's use of its
own children is no import.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CRATES = Path(__file__).parents[2] / "crates"

USE = re.compile(r"^\s*(pub(?:\([^)]*\))? )?use ([^;]+);", re.M)
UP = ("crate::", "super::")
PATH = re.compile(r"(?<![\w:$])(?:\w+::)+\w+")
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|r#".*?"#|"(?:\\.|[^"\\])*"|#\[cfg\(test\)\]\nmod \w+ \{.*\Z', re.S)
MOD = re.compile(r"\bmod \w+;")
DEFINED = r"\b(?:fn|struct|enum|union|trait|type|const|static|mod) "


def leaves(tree: str) -> list[tuple[str, str]]:
    """Path and local name of everything that a `use` names: `a::{b, c as d}` is a::b as b and a::c as d."""
    while found := re.search(r"([\w:]*)\{([^{}]*)\}", tree):
        names = [name.strip() for name in found[2].split(",") if name.strip()]
        tree = tree.replace(found[0], ", ".join(found[1] + name for name in names))
    paths = [path.replace("::self", "").strip().partition(" as ") for path in tree.split(",")]
    return [(path, alias or path.rpartition("::")[2]) for path, _, alias in paths]


class Source:
    def __init__(self, file: Path, root: Path) -> None:
        self.name = str(file.relative_to(root))
        parts = tuple(self.name.removesuffix(".rs").split("/"))
        self.module = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
        text = NOISE.sub('""', file.read_text())
        self.body = MOD.sub("", USE.sub("", text))
        # Path, local name, and whether the name is exported again.
        self.uses = [(*leaf, bool(use[1])) for use in USE.finditer(text) for leaf in leaves(use[2])]


class Crate:
    def __init__(self, root: Path) -> None:
        self.sources = [Source(file, root) for file in sorted(root.rglob("*.rs")) if file.parent.name != "bin"]
        # The names of a crate are those of `lib.rs`, which precedes `main.rs`.
        self.modules = {source.module: source for source in reversed(self.sources)}

    def resolve(self, source: Source, path: str, seen: frozenset[tuple[str, str]] = frozenset()) -> Source | None:
        """The file that defines what `path` names in `source`; none if that is another crate's."""
        if (source.name, path) in seen:
            return None
        seen |= {(source.name, path)}
        module, names = source.module, path.split("::")
        if names[0] == "crate":
            module, names = (), names[1:]
        elif names[0] in ("super", "self"):
            while names and names[0] in ("super", "self"):
                module = module[:-1] if names[0] == "super" else module
                names = names[1:]
        elif (*module, names[0]) not in self.modules:
            return None
        while names and (*module, names[0]) in self.modules:
            module, names = (*module, names[0]), names[1:]
        target = self.modules.get(module)
        if target is None or not names or re.search(rf"{DEFINED}{names[0]}\b", target.body):
            return target
        for use, name, _ in target.uses:
            if name in (names[0], "*"):
                if found := self.resolve(target, use.replace("*", names[0]), seen):
                    return found
                if name != "*":
                    return None
        return target

    def imports(self, source: Source) -> set[Source]:
        """The files of which `source` imports a name; a re-export is no import."""
        paths = {path for path in PATH.findall(source.body) if path.startswith(UP)}
        for path, name, exported in source.uses:
            if path.startswith(UP) and (not exported or re.search(rf"\b{re.escape(name)}\b", source.body)):
                paths.add(path)
        return {found for path in paths if (found := self.resolve(source, path)) and found is not source}

    def graph(self) -> dict[Source, set[Source]]:
        return {source: self.imports(source) for source in self.sources}


def circles(graph: dict[Source, set[Source]]) -> list[list[str]]:
    """The strongly connected components of more than two files, as lines `file -> import`."""
    closure: dict[Source, set[Source]] = {}
    for start in graph:
        stack, closure[start] = [start], set()
        while stack:
            new = graph[stack.pop()] - closure[start]
            closure[start] |= new
            stack.extend(new)
    parts = {frozenset(b for b in closure[a] if a in closure[b]) for a in graph}
    large = [part for part in parts if len(part) > 2]
    return [sorted(f"{a.name} -> {b.name}" for a in part for b in graph[a] if b in part) for part in large]


@pytest.mark.parametrize("root", sorted(CRATES.glob("*/src")), ids=lambda root: root.parent.name)
def test_no_import_circle_has_more_than_two_files(root: Path) -> None:
    found = circles(Crate(root).graph())
    assert not found, "\n\n".join(["import circles:", *("\n".join(lines) for lines in found)])


def test_a_circle_of_three_files_is_found(tmp_path: Path) -> None:
    texts = {
        "lib.rs": "mod a;\nmod b;\nmod c;\npub use a::A;\npub use b::B;\n",
        "a.rs": "use crate::B;\npub struct A;\n",
        "b.rs": "use crate::c::{self, C};\npub struct B;\n",
        "c.rs": "pub struct C;\nfn f(_: &super::A) {}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert circles(Crate(tmp_path).graph()) == [["a.rs -> b.rs", "b.rs -> c.rs", "c.rs -> a.rs"]]
