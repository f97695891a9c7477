"""The makers of packages and images alone, with programs of this machine in place of netsum's: the same bytes twice."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import chart
import debian
import images
import wheels
from build import IMAGES, PROCESSORS, PROGRAMS, ROOT, Built

EPOCH = 1_760_000_000
VERSION = "9.8.7"


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """Files that look as compiled ones do, but for their times and rights, which must not matter."""
    folder = tmp_path / "compiled"
    folder.mkdir()
    for program in {**PROGRAMS, **IMAGES}:
        shutil.copyfile("/bin/sh", folder / program)
        (folder / program).chmod(0o700)
    programs = {program: folder / program for program in PROGRAMS}
    return Built(programs, {}, folder / "netsum-switch", {program: folder / program for program in IMAGES})


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
@pytest.mark.parametrize("name", debian.PACKAGES)
def test_a_package_is_the_same_twice(name: str, built: Built, tmp_path: Path) -> None:
    bill = tmp_path / "netsum.cdx.json"
    bill.write_text("{}")
    made = []
    for mask, folder in ((0o022, "one"), (0o077, "another-folder")):
        (tmp_path / folder).mkdir()
        before = os.umask(mask)
        try:
            package = debian.make(name, PROCESSORS["x86_64"], built, bill, VERSION, EPOCH, tmp_path / folder)
        finally:
            os.umask(before)
        made.append(package)
    assert digest(made[0]) == digest(made[1])
    listed = subprocess.run(["dpkg-deb", "--contents", made[0]], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    rights = {line.split()[-1]: line.split()[0] for line in listed.splitlines()}
    assert rights[f"./usr/bin/{debian.PACKAGES[name].program}"] == "-rwxr-xr-x"
    version = ["dpkg-deb", "--field", made[0], "Package", "Version", "Architecture"]
    fields = subprocess.run(version, capture_output=True, text=True, check=True).stdout
    assert fields == f"Package: {name}\nVersion: {VERSION}\nArchitecture: amd64\n"


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_the_same_twice_and_others_read_it(name: str, built: Built, tmp_path: Path) -> None:
    both = {PROCESSORS["x86_64"]: built, PROCESSORS["aarch64"]: built}
    made = []
    for folder in ("one", "another-folder"):
        (tmp_path / folder).mkdir()
        made.append(images.make(name, both, VERSION, EPOCH, tmp_path / folder))
    assert digest(made[0]) == digest(made[1])
    if shutil.which("skopeo") is None:
        pytest.skip("needs skopeo (make setup-packages)")
    for processor in PROCESSORS.values():
        inspect = ["skopeo", f"--override-arch={processor.oci}", "inspect", "--config", f"oci-archive:{made[0]}"]
        found = json.loads(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)
        assert found["architecture"] == processor.oci
        assert found["config"]["Entrypoint"] == [f"/usr/bin/{name}"]
        assert found["config"]["User"] == "65532:65532"


@pytest.mark.skipif(find_spec("maturin") is None or find_spec("wheel") is None, reason="needs make setup-release")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_wheel_is_the_same_twice_and_has_its_parts_alone(processor: str, built: Built, tmp_path: Path) -> None:
    bill = tmp_path / "netsum.cdx.json"
    bill.write_text("{}")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    made = []
    for mask, folder in ((0o022, "one"), (0o077, "another-folder")):
        (tmp_path / folder).mkdir()
        before = os.umask(mask)
        try:
            made.append(wheels.make(PROCESSORS[processor], built, bill, version, EPOCH, tmp_path / folder))
        finally:
            os.umask(before)
    assert digest(made[0]) == digest(made[1])
    assert made[0].name == f"netsum-{version}-cp310-abi3-manylinux2014_{processor}.whl"
    with zipfile.ZipFile(made[0]) as archive:
        names = archive.namelist()
        (record,) = (archive.read(name).decode() for name in names if name.endswith("RECORD"))
        (tags,) = (archive.read(name).decode() for name in names if name.endswith("dist-info/WHEEL"))
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "python/netsum"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sources = {name.removeprefix("python/") for name in tracked if (ROOT / name).is_file()}
    assert {name for name in names if name.startswith("netsum/")} == sources | {"netsum/_core.abi3.so"}
    assert len(record.splitlines()) == len(names)
    assert re.findall("^Tag: (.*)$", tags, flags=re.M) == [f"cp310-abi3-manylinux2014_{processor}"]


def test_a_chart_is_the_same_twice_and_helm_takes_it(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "another-folder"):
        (tmp_path / folder).mkdir()
        made.append(chart.make(VERSION, EPOCH, tmp_path / folder))
    assert digest(made[0]) == digest(made[1])
    assert (tmp_path / "one" / f"netsum-{VERSION}.yaml").read_text().count("kind: StatefulSet") == 2
    definitions = (tmp_path / "one" / f"netsum-definitions-{VERSION}.yaml").read_text()
    assert definitions.count("\nkind: CustomResourceDefinition\n") == 2
    helm = shutil.which("helm") or chart.ROOT / "out" / "kubernetes" / "helm"
    if not Path(helm).exists():
        pytest.skip("needs helm (make setup-kubernetes)")
    rendered = []
    for place in (made[0], chart.CHART):
        command = [helm, "template", "netsum", place, "--namespace", "netsum", "--kube-version", "1.36.3"]
        rendered.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert rendered[0] == rendered[1] and "kind: DaemonSet" in rendered[0]
