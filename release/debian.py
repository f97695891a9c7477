"""Debian packages of the daemons, with their units."""

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from build import ROOT, Built, Processor

UNITS = ROOT / "release" / "systemd"
MAINTAINER = "netsum developers <netsum@users.noreply.github.com>"


@dataclass(frozen=True)
class Package:
    """What differs between packages. defaults: the file that the units read."""

    program: str
    title: str
    text: str
    units: tuple[str, ...] = ()
    defaults: str = ""
    depends: str = "libc6 (>= 2.17), libgcc-s1"


PACKAGES = {
    "netsum-controller": Package(
        "netsum-controller",
        "controller of a netsum fabric",
        "Plans aggregation trees for training jobs, and grants them memory at switches. One fabric has one controller, "
        "or several of which one leads.",
        ("netsum-controller.service",),
        "# Options of netsum-controller: see netsum-controller --help.\nNETSUM_CONTROLLER_OPTIONS=\n",
    ),
    "netsum-switch": Package(
        "netsum-switch",
        "switch and server of a netsum fabric",
        "Adds the gradients of training jobs on their way through the network, in the memory that the fabric's "
        "controller grants to each job.",
        ("netsum-switch@.service", "netsum-server@.service"),
        "# Options of netsum-switch, as a switch and as a server: see netsum-switch --help.\n"
        "NETSUM_SWITCH_OPTIONS=\nNETSUM_SERVER_OPTIONS=\n",
    ),
    "netsum-slurm": Package(
        "netsum-job",
        "jobs of Slurm on a netsum fabric",
        "A plug-in that gives steps of Slurm sums in the network, in source, because it must be compiled for the "
        "version of Slurm that loads it; and the program that ends jobs whose steps are over.",
    ),
}
RELOAD = "#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi\n"
STOP = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop {patterns} || true; fi
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: netsum
Source: https://github.com/netsum/netsum
Comment: The libraries that are linked into the program, with their licences: netsum.cdx.json in this folder.

Files: *
Copyright: the netsum developers
License: Apache-2.0
 On Debian systems the text of this licence is in /usr/share/common-licenses/Apache-2.0.
"""


def make(name: str, processor: Processor, built: Built, bill: Path, version: str, epoch: int, out: Path) -> Path:
    """Write the package `name` of a processor into `out`. Raises CalledProcessError."""
    package = PACKAGES[name]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        documents = root / "usr/share/doc" / name
        _copy(built.programs[package.program], root / "usr/bin" / package.program, 0o755)
        if package.units:
            _add_units(name, package, root, documents)
        else:
            for file in ("netsum_spank.c", "Makefile"):
                _copy(ROOT / "slurm" / file, root / "usr/share/netsum/slurm" / file)
            _copy(ROOT / "docs/slurm.md", documents / "slurm.md")
        _copy(ROOT / "docs/install.md", documents / "install.md")
        _copy(bill, documents / "netsum.cdx.json")
        _write(documents / "copyright", COPYRIGHT)
        _write_compressed(documents / "changelog.gz", _changelog(name, version, epoch))
        _write(root / "DEBIAN/md5sums", _sums(root))
        _write(root / "DEBIAN/control", _control(name, package, processor, version, root))
        for place in [root, *root.rglob("*")]:
            if place.is_dir():
                place.chmod(0o755)
        made = out / f"{name}_{version}_{processor.debian}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(made)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "XZ_DEFAULTS": "", "XZ_OPT": ""}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return made


def _add_units(name: str, package: Package, root: Path, documents: Path) -> None:
    for unit in package.units:
        _copy(UNITS / unit, root / "lib/systemd/system" / unit)
    _copy(UNITS / "credentials.conf", documents / "examples/credentials.conf")
    _write(root / "etc/default" / name, package.defaults)
    _write(root / "DEBIAN/conffiles", f"/etc/default/{name}\n")
    _write(root / "DEBIAN/postinst", RELOAD, 0o755)
    _write(root / "DEBIAN/postrm", RELOAD, 0o755)
    patterns = " ".join(f"'{unit.replace('@', '@*')}'" for unit in package.units)
    _write(root / "DEBIAN/prerm", STOP.format(patterns=patterns), 0o755)


def _control(name: str, package: Package, processor: Processor, version: str, root: Path) -> str:
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    fields = {
        "Package": name,
        "Version": version,
        "Architecture": processor.debian,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(size // 1024 + 1),
        "Depends": package.depends,
        "Section": "net",
        "Priority": "optional",
        "Homepage": "https://github.com/netsum/netsum",
        "Description": f"{package.title}\n {package.text}",
    }
    return "".join(f"{field}: {value}\n" for field, value in fields.items())


def _changelog(name: str, version: str, epoch: int) -> str:
    entry = "See https://github.com/netsum/netsum/blob/main/CHANGELOG.md."
    signed = f" -- {MAINTAINER}  {formatdate(epoch)}"
    return f"{name} ({version}) unstable; urgency=medium\n\n  * {entry}\n\n{signed}\n"


def _sums(root: Path) -> str:
    files = sorted(path for path in root.rglob("*") if path.is_file() and "DEBIAN" not in path.parts)
    return "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _write(target: Path, text: str, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


def _write_compressed(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    target.chmod(0o644)
