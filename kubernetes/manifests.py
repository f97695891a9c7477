"""Writes the definitions of custom resources, which the operator has, and the plain manifests, which the chart has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "kubernetes" / "netsum"
CLUSTER_VERSION = "1.36.3"
"""What helm is told; the manifests are the same for all versions that the chart allows."""
HEAD = "# The chart of kubernetes/netsum with its usual values, by `make manifests`. definitions.yaml comes first.\n"
DEFINITIONS_HEAD = "# The custom resources of kubernetes/netsum.yaml, by `make manifests`.\n"
NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    # Switches are in the network of their nodes.
    "metadata": {"name": "netsum", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
}


def main() -> None:
    printed = subprocess.run([ROOT / "target/release/netsum-operator", "crds"], capture_output=True, check=True)
    definitions = sorted(json.loads(printed.stdout)["items"], key=lambda one: str(one["metadata"]["name"]))
    for definition in definitions:
        file = CHART / "crds" / f"{definition['spec']['names']['plural']}.yaml"
        file.write_text(f"# By `make manifests`, from crates/operator/src/resources.rs.\n{dump(definition)}")
    command = [ROOT / "out/kubernetes/helm", "template", "netsum", CHART, "--namespace", "netsum"]
    command += ["--kube-version", CLUSTER_VERSION]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # A file of its own: kubectl takes no object whose definition comes in the same call.
    (ROOT / "kubernetes" / "definitions.yaml").write_text(DEFINITIONS_HEAD + "---\n".join(map(dump, definitions)))
    (ROOT / "kubernetes" / "netsum.yaml").write_text(HEAD + dump(NAMESPACE) + rendered)


def dump(thing: dict[str, Any]) -> str:
    return str(yaml.safe_dump(thing, sort_keys=True, width=119))


if __name__ == "__main__":
    main()
