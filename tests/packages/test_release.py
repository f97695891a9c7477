"""What `make release` made: complete, portable, small, and it runs on clean roots."""

import contextlib
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
DAEMONS = ("netsum-controller", "netsum-switch")
IMAGES = (*DAEMONS, "netsum-operator")
PROGRAMS = {*DAEMONS, "netsum-job", "netsum-sim"}
LIBRARIES = {"libnetsum_nccl.so", "libnccl-net-netsum.so"}
IMAGE_MAX_BYTES = 20_000_000
GLIBC_MAX = (2, 17)
SETTLE_S = 60.0
FABRIC = """
name = "packages"
controller = "127.93.0.1:7700"
[[host]]
name = "h0"
address = "127.93.1.1"
[[host]]
name = "h1"
address = "127.93.1.2"
[[switch]]
name = "rack0"
address = "127.93.2.1:7701"
memory = "16MiB"
[[link]]
ends = ["h0", "rack0"]
rate = "10Gbit/s"
[[link]]
ends = ["h1", "rack0"]
rate = "10Gbit/s"
"""


def wheel(release: Path, processor: str) -> Path:
    (found,) = release.glob(f"netsum-{VERSION}-cp*-abi3-manylinux*_{processor}.whl")
    return found


def own_processor() -> str:
    return platform.machine()


# ---- what is there


def test_checksums_name_every_file(release: Path) -> None:
    named = dict(reversed(line.split()) for line in (release / "SHA256SUMS").read_text().splitlines())
    there = {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    assert set(named) == there
    assert all(hashlib.sha256((release / name).read_bytes()).hexdigest() == digest for name, digest in named.items())


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_wheel_has_programs_and_libraries_and_demands_no_torch(release: Path, processor: str) -> None:
    with zipfile.ZipFile(wheel(release, processor)) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("dist-info/METADATA"))
        modes = {name: archive.getinfo(name).external_attr >> 16 for name in names}
    scripts = f"netsum-{VERSION}.data/scripts"
    assert {Path(name).name for name in names if name.startswith(scripts)} == PROGRAMS
    assert all(modes[f"{scripts}/{program}"] & 0o111 for program in PROGRAMS)
    assert {Path(name).name for name in names if name.startswith("netsum/lib/")} == LIBRARIES
    assert f"netsum-{VERSION}.dist-info/sboms/netsum.cdx.json" in names
    demanded = re.findall(r"^Requires-Dist: (.*)$", metadata, flags=re.M)
    assert sorted(re.split(r"[><=]", each)[0] for each in demanded if "extra ==" not in each) == ["rich", "typer"]


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_wheel_needs_no_newer_libraries_than_it_says(release: Path, processor: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(release, processor)) as archive:
        archive.extractall(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    assert {path.name for path in files} >= PROGRAMS | LIBRARIES
    for path in files:
        machine, libraries, newest = needs(path)
        assert machine == {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[processor]
        assert newest <= GLIBC_MAX, path.name
        system = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libgcc_s.so", "ld-linux")
        assert [name for name in libraries if not name.startswith(system)] == [], path.name


def needs(file: Path) -> tuple[str, list[str], tuple[int, ...]]:
    """The machine of a program, the libraries that it needs, and the newest version of glibc among its symbols."""
    with file.open("rb") as stream:
        elf = ELFFile(stream)
        dynamic = elf.get_section_by_name(".dynamic")
        libraries = [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"] if dynamic else []
        versions = [
            tuple(map(int, auxiliary.name.removeprefix("GLIBC_").split(".")))
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, auxiliaries in section.iter_versions()
            for auxiliary in auxiliaries
            if auxiliary.name.startswith("GLIBC_2")
        ]
        return elf["e_machine"], libraries, max(versions, default=(0,))


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_small_and_its_program_static(release: Path, name: str, tmp_path: Path) -> None:
    for processor, short in PROCESSORS.items():
        layers = unpack(release / f"{name}-{VERSION}.oci.tar", short, tmp_path / short)
        assert layers <= IMAGE_MAX_BYTES
        machine, libraries, _ = needs(tmp_path / short / "usr/bin" / name)
        assert machine == {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[processor]
        assert libraries == []


def unpack(image: Path, processor: str, folder: Path) -> int:
    """Unpack an image's layers; returns their size in the archive. All digests are compared."""
    with tarfile.open(image) as archive:

        def blob(descriptor: dict) -> bytes:
            kind, _, digest = descriptor["digest"].partition(":")
            content = archive.extractfile(f"blobs/{kind}/{digest}").read()
            assert hashlib.sha256(content).hexdigest() == digest
            assert len(content) == descriptor["size"]
            return content

        (index,) = json.load(archive.extractfile("index.json"))["manifests"]
        manifests = json.loads(blob(index))["manifests"]
        (chosen,) = (each for each in manifests if each["platform"]["architecture"] == processor)
        manifest = json.loads(blob(chosen))
        configuration = json.loads(blob(manifest["config"]))
        assert configuration["config"]["User"] not in ("", "0", "root")
        for layer in manifest["layers"]:
            blob(layer)
            with archive.extractfile(f"blobs/sha256/{layer['digest'][7:]}") as stream:
                tarfile.open(fileobj=stream).extractall(folder, filter="tar" if os.geteuid() == 0 else "data")
        return sum(layer["size"] for layer in manifest["layers"])


def test_the_bill_of_materials_names_licences_and_checksums(release: Path) -> None:
    listed = json.loads((release / "netsum.cdx.json").read_text())["components"]
    foreign = [each for each in listed if each.get("purl", "").startswith("pkg:cargo/")]
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(each["name"], each["version"]): each.get("checksum") for each in locked}
    assert {"tonic", "rustls", "pyo3", "libsqlite3-sys"} <= {each["name"] for each in foreign}
    for each in foreign:
        assert each["hashes"] == [{"alg": "SHA-256", "content": checksums[each["name"], each["version"]]}]
        assert each["licenses"], each["name"]


# ---- it runs


@pytest.fixture(scope="session")
def installed(release: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A fresh environment with the wheel alone, and how long its installation took, in words."""
    folder = tmp_path_factory.mktemp("installed")
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    subprocess.run([python, "-m", "venv", folder], check=True)
    began, processor = time.monotonic(), processor_seconds()
    install = [folder / "bin/pip", "install", "--quiet", wheel(release, own_processor())]
    subprocess.run(install, check=True, env=bare(folder))
    return folder, f"{time.monotonic() - began:.1f} s, {processor_seconds() - processor:.1f} s of a processor"


def processor_seconds() -> float:
    """Of the programs that this one has waited for: what they took without others on the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare(folder: Path) -> dict[str, str]:
    """The environment of a new user: nothing of this checkout is on any path."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
    # Wide, so that tables keep a sentence in one line.
    plain = {"LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "200"}
    return {**kept, **plain, "PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder)}


def test_a_wheel_works_alone(installed: tuple[Path, str], tmp_path: Path) -> None:
    folder, taken = installed
    print(f"installed in {taken}")
    file = tmp_path / "fabric.toml"
    file.write_text(FABRIC)

    def netsum(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command, environment = [folder / "bin/netsum", *words], {**bare(folder), **more}
        return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)

    here = [folder / "bin/python", "-c", "import netsum, sys; print(netsum.__file__, 'torch' in sys.modules)"]
    where = subprocess.run(here, env=bare(folder), cwd=folder, capture_output=True, text=True, check=True).stdout
    assert where.startswith(str(folder)) and where.endswith("False\n")
    assert subprocess.run([folder / "bin/pip", "show", "torch"], env=bare(folder), capture_output=True).returncode == 1
    up = netsum("fabric", "up", str(file))
    try:
        assert up.returncode == 0, up.stderr
        variables = dict(re.findall(r"export (\w+)=(\S+)", up.stdout))
        checked = netsum("doctor", **variables)
        assert "added in the network by 1 trees" in checked.stdout, checked.stdout + checked.stderr
    finally:
        assert netsum("fabric", "down", str(file)).returncode == 0


def test_a_package_installs_removes_and_has_its_units(release: Path, clean_root: Path) -> None:
    short = PROCESSORS[own_processor()]
    for name in DAEMONS:
        package = release / f"{name}_{VERSION}_{short}.deb"
        shutil.copy(package, clean_root / "tmp")
        inside(clean_root, "dpkg", "-i", f"/tmp/{package.name}")
        assert VERSION in inside(clean_root, f"/usr/bin/{name}", "--version")
        assert inside(clean_root, "dpkg", "-V", name) == ""
        listed = inside(clean_root, "dpkg", "-L", name).split()
        assert f"/etc/default/{name}" in listed
        assert [path for path in listed if path.endswith(".service")]
        inside(clean_root, "dpkg", "--purge", name)
        assert not (clean_root / "usr/bin" / name).exists()
        assert not (clean_root / "etc/default" / name).exists()


def inside(root: Path, *command: str) -> str:
    done = subprocess.run(["chroot", root, *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def daemon(command: list[object]) -> Iterator[subprocess.Popen[str]]:
    """A daemon that has said that it serves; ended in order."""
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        if not line.startswith("ready"):
            process.kill()
            raise AssertionError(f"{command}: {line}{process.communicate(timeout=20)[1]}")
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_a_packages_controller_an_images_switch_and_a_wheels_workers_sum_together(
    release: Path, clean_root: Path, installed: tuple[Path, str], tmp_path: Path
) -> None:
    folder, short = installed[0], PROCESSORS[own_processor()]
    package = release / f"netsum-controller_{VERSION}_{short}.deb"
    shutil.copy(package, clean_root / "tmp")
    inside(clean_root, "dpkg", "-i", f"/tmp/{package.name}")
    image = tmp_path / "image"
    unpack(release / f"netsum-switch-{VERSION}.oci.tar", short, image)
    for root in (clean_root, image):
        (root / "etc/netsum").mkdir(exist_ok=True)
        (root / "etc/netsum/fabric.toml").write_text(FABRIC)
    fabric = ["--fabric", "/etc/netsum/fabric.toml"]
    controller = ["chroot", clean_root, "/usr/bin/netsum-controller", *fabric, "--store", "none"]
    switch = ["chroot", "--userspec=65532:65532", image, "/usr/bin/netsum-switch", *fabric, "--name", "rack0"]
    with daemon(controller), daemon(switch):
        workers_sum(folder)


def test_daemons_of_the_other_processor_sum_under_emulation(
    release: Path, installed: tuple[Path, str], tmp_path: Path
) -> None:
    """The static programs of the images, with workers of this processor.

    Without their sandbox, which refuses a process with several threads: QEMU has one of its own.
    """
    (processor,) = set(PROCESSORS) - {own_processor()}
    emulator = shutil.which(f"qemu-{processor}-static") or shutil.which(f"qemu-{processor}")
    if emulator is None:
        pytest.skip(f"needs qemu-{processor} (make setup-packages)")
    for name in DAEMONS:
        unpack(release / f"{name}-{VERSION}.oci.tar", PROCESSORS[processor], tmp_path)
    file = tmp_path / "fabric.toml"
    file.write_text(FABRIC)
    options = ["--fabric", file, "--no-sandbox"]
    controller, switch = ([emulator, tmp_path / "usr/bin" / name, *options] for name in DAEMONS)
    with daemon([*controller, "--store", "none"]), daemon([*switch, "--name", "rack0"]):
        workers_sum(installed[0])


def workers_sum(folder: Path) -> None:
    """Workers of the installed wheel sum in the network, soon."""
    variables = {**bare(folder), "NETSUM_CONTROLLER": "127.93.0.1:7700"}
    deadline = time.monotonic() + SETTLE_S
    while True:
        done = subprocess.run(
            [folder / "bin/netsum", "doctor"],
            env=variables,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if "added in the network by 1 trees" in done.stdout:
            return
        assert time.monotonic() < deadline, done.stdout + done.stderr


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_under_podman(release: Path, name: str) -> None:
    if shutil.which("podman") is None:
        pytest.skip("needs podman (make setup-packages)")
    image = f"oci-archive:{release / f'{name}-{VERSION}.oci.tar'}"
    # Some containers may not raise limits, nor give up control groups.
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    closed = ["--network", "host", "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    command = ["podman", *runtime, "run", "--rm", *limits, *closed, image, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "cgroup" in done.stderr or "setrlimit" in done.stderr:
        pytest.skip(f"podman cannot run containers here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{name} {VERSION}"
