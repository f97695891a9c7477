"""Builds the documentation site: stages pages, runs mkdocs in strict mode, checks every link of the result.

    python docs/site/build.py --out out/site [--rust target/doc]

Pages keep their repository paths, so that their links work on GitHub and on the site. A link to a file that is not a
page is replaced by one to the repository on GitHub. Needs no network.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "out" / "site-pages"
REPOSITORY = "https://github.com/netsum/netsum"
LINK = re.compile(r"(\]\()([^()\s]+)(\))")
# The API of crates is checked by rustdoc itself.
UNCHECKED = "rust"


def stage(rust: Path | None) -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = {name for name in listing.stdout.split("\n") if name and (ROOT / name).exists()}
    pages = {name for name in names if not name.startswith(".github/")}
    for name in pages:
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_links(name, (ROOT / name).read_text(), pages))
    if rust is not None:
        shutil.copytree(rust, PAGES / UNCHECKED)


def with_links(page: str, text: str, pages: set[str]) -> str:
    """The page with links to folders replaced by their README, and links to other files by GitHub's."""
    # Split at code blocks, which are left unchanged.
    parts = re.split(r"(^ *```.*?^ *```)", text, flags=re.S | re.M)
    return "".join(part if i % 2 else LINK.sub(lambda m: link(page, m, pages), part) for i, part in enumerate(parts))


def link(page: str, found: re.Match[str], pages: set[str]) -> str:
    target, _, anchor = found[2].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return found[0]
    path = (ROOT / page).parent.joinpath(target).resolve()
    if not path.is_relative_to(ROOT):
        return found[0]
    name = str(path.relative_to(ROOT))
    if name in pages:
        return found[0]
    if f"{name}/README.md" in pages:
        return f"{found[1]}{target.rstrip('/')}/README.md{'#' + anchor if anchor else ''}{found[3]}"
    if name.split("/")[0] == UNCHECKED:
        return found[0]
    kind = "tree" if path.is_dir() else "blob"
    return f"{found[1]}{REPOSITORY}/{kind}/main/{name}{found[3]}"


class Links(HTMLParser):
    """The link targets of a page, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.places.add(value)
            if key in ("href", "src") and value:
                self.targets.append(value)


def broken_links(site: Path) -> list[str]:
    """Links inside the site without a target, as `page: target`."""
    read: dict[Path, Links] = {}
    for page in site.rglob("*.html"):
        if page.relative_to(site).parts[0] != UNCHECKED:
            read[page] = Links()
            read[page].feed(page.read_text())
    broken = []
    for page, links in read.items():
        for target in links.targets:
            if re.match(r"[a-z]+:|//", target) or page.name == "404.html":
                continue
            name, _, place = target.partition("#")
            path = (page.parent / unquote(name.partition("?")[0])).resolve() if name else page
            if path.is_dir():
                path = path / "index.html"
            there = not place or path not in read or unquote(place) in read[path].places or place.startswith("__")
            if not path.exists() or not there:
                broken.append(f"{page.relative_to(site)}: {target}")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "site")
    parser.add_argument("--rust", type=Path, help="what cargo doc wrote; without it the Rust API is left out")
    options = parser.parse_args()
    if options.rust is not None and not options.rust.is_dir():
        sys.exit(f"{options.rust}: no such folder; run `cargo doc --workspace --no-deps` first")
    stage(options.rust)
    out = options.out.resolve()
    config = Path(__file__).parent / "mkdocs.yml"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", str(config), "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        sys.exit("mkdocs found errors; see above")
    redirect = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
    (out / "index.html").write_text(redirect)
    if broken := broken_links(out):
        sys.exit("links that lead nowhere:\n  " + "\n  ".join(broken))


if __name__ == "__main__":
    main()
