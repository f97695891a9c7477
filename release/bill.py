"""The bill of materials (CycloneDX): every crate in a program or library, with its licence and checksum."""

import json
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from build import IMAGES, LIBRARIES, MODULE, PROGRAMS, ROOT, Processor

ROOTS = {*PROGRAMS.values(), *IMAGES.values(), *LIBRARIES, MODULE[0]}
_VERSION = SchemaVersion.V1_6


def make(processors: list[Processor], version: str, epoch: int, out: Path) -> Path:
    """Write the bill into `out`. Raises ValueError if it is not valid by the standard's own schema."""
    crates, edges = _linked(processors)
    checksums = _checksums()
    components = {key: _component(crate, checksums.get(_key(crate))) for key, crate in crates.items()}
    for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        name = requirement.split(">")[0]
        components[name] = Component(
            name=name, type=ComponentType.LIBRARY, purl=PackageURL("pypi", name=name), bom_ref=BomRef(f"pypi:{name}")
        )
    product = Component(name="netsum", version=version, type=ComponentType.APPLICATION, bom_ref=BomRef("netsum"))
    bom = Bom(components=components.values(), serial_number=uuid5(NAMESPACE_URL, f"netsum {version} {epoch}"))
    bom.metadata.component = product
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    direct = [key for key, crate in crates.items() if crate["name"] in ROOTS]
    direct += [name for name in components if name not in crates]
    bom.register_dependency(product, [components[key] for key in direct])
    for key, needed in edges.items():
        bom.register_dependency(components[key], [components[each] for each in sorted(needed)])
    text = make_outputter(bom, OutputFormat.JSON, _VERSION).output_as_string(indent=1)
    problem = JsonStrictValidator(_VERSION).validate_str(text)
    if problem is not None:
        raise ValueError(f"the bill of materials is not valid: {problem}")
    file = out / "netsum.cdx.json"
    file.write_text(text + "\n")
    return file


def _linked(processors: list[Processor]) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """Packages by cargo's ids, and which each of them links, for all processors. Build tools are not linked."""
    crates: dict[str, Any] = {}
    edges: dict[str, set[str]] = {}
    for processor in processors:
        for libc in ("gnu", "musl"):
            triple = f"{processor.rust}-unknown-linux-{libc}"
            command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", triple]
            found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
            packages = {package["id"]: package for package in found["packages"]}
            nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
            waiting = [key for key, package in packages.items() if package["name"] in ROOTS]
            seen = set()
            while waiting:
                key = waiting.pop()
                if key in seen:
                    continue
                seen.add(key)
                crates[key] = packages[key]
                needed = {
                    each["pkg"]
                    for each in nodes[key]["deps"]
                    if any(kind["kind"] is None for kind in each["dep_kinds"])
                    and not _runs_at_compile_time(packages[each["pkg"]])
                }
                edges.setdefault(key, set()).update(needed)
                waiting += needed
    return crates, edges


def _runs_at_compile_time(package: dict[str, Any]) -> bool:
    return any("proc-macro" in target["kind"] for target in package["targets"])


def _component(crate: dict[str, Any], checksum: str | None) -> Component:
    own = crate["source"] is None
    licence = crate["license"]
    return Component(
        name=crate["name"],
        version=crate["version"],
        type=ComponentType.LIBRARY,
        bom_ref=BomRef(f"cargo:{crate['name']}@{crate['version']}"),
        licenses=[LicenseFactory().make_from_string(licence.replace("/", " OR "))] if licence else [],
        purl=None if own else PackageURL("cargo", name=crate["name"], version=crate["version"]),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
    )


def _key(crate: dict[str, Any]) -> tuple[str, str]:
    return crate["name"], crate["version"]


def _checksums() -> dict[tuple[str, str], str]:
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {_key(package): package["checksum"] for package in locked if "checksum" in package}
