"""The chart and the plain manifests: valid, alike, and with the least rights."""

from __future__ import annotations

import subprocess

import pytest

from chart import CHART, VERSION, definitions, render
from control_plane import REPOSITORY, TOOLS

REASON = "needs kubernetes-validate (make setup-kubernetes)"
validate = pytest.importorskip("kubernetes_validate", reason=REASON)
yaml = pytest.importorskip("yaml", reason=REASON)
needs_helm = pytest.mark.skipif(not (TOOLS / "helm").exists(), reason="needs helm (make setup-kubernetes)")
PLAIN = REPOSITORY / "kubernetes" / "netsum.yaml"
DEFINITIONS = REPOSITORY / "kubernetes" / "definitions.yaml"

CHOICES = {
    "usual": {},
    "closed network": {"credentials": {"enabled": False}, "fabric": {"trusted": True}},
    "own etcd": {"etcd": {"endpoints": "10.0.0.1:2379,10.0.0.2:2379", "credentialsSecret": "etcd-client"}},
    "all options": {
        "etcd": {"storage": "", "nodeSelector": {"disk": "ssd"}},
        "image": {"pullSecrets": ["registry"]},
        "controllers": {"options": ["--idle-yield=5"], "nodeSelector": {"control": "yes"}},
        "switches": {"options": ["--slots=128"], "metricsPort": 0, "priorityClassName": ""},
        "operator": {"options": ["--fabric=netsum"], "nodeSelector": {"control": "yes"}},
        "fabric": {
            "tenants": [{"name": "research", "rate": "8Gbit/s", "hosts": ["h0"]}],
            "file": 'name = "x"\n',
            "spineRate": "",
        },
        "networkPolicy": {"enabled": False},
    },
}


@needs_helm
def test_helm_finds_no_fault():
    linted = subprocess.run([TOOLS / "helm", "lint", "--strict", CHART], capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@needs_helm
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("version", ["1.30", VERSION.rpartition(".")[0]])
def test_every_object_is_valid(choice, version):
    for thing in render(CHOICES[choice]):
        if "netsum.dev" not in thing["apiVersion"]:
            validate.validate(thing, version, strict=True)


@needs_helm
def test_a_wrong_object_is_found():
    wrong = next(thing for thing in render({}) if thing["kind"] == "DaemonSet")
    wrong["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, VERSION.rpartition(".")[0], strict=True)


@needs_helm
def test_the_plain_manifests_are_the_charts():
    rendered = [*definitions(), *render({})]
    plain = [thing for file in (DEFINITIONS, PLAIN) for thing in yaml.safe_load_all(file.read_text()) if thing]
    names = {"Namespace"}
    assert [thing for thing in plain if thing["kind"] not in names] == rendered, "make manifests writes them anew"


def objects(kind):
    return [thing for thing in yaml.safe_load_all(PLAIN.read_text()) if thing and thing["kind"] == kind]


def templates():
    kinds = ("StatefulSet", "DaemonSet", "Deployment")
    return {thing["metadata"]["name"]: thing["spec"]["template"] for kind in kinds for thing in objects(kind)}


def test_pods_have_no_rights_that_they_do_not_need():
    assert set(templates()) == {"netsum-controller", "netsum-etcd", "netsum-operator", "netsum-switch"}
    for name, template in templates().items():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # The network of the node is the switches' alone, and so are its files.
        assert spec.get("hostNetwork", False) == (name == "netsum-switch")
        assert any("hostPath" in volume for volume in spec.get("volumes", [])) == (name == "netsum-switch")
        assert spec.get("automountServiceAccountToken", True) == (name == "netsum-operator")
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert "memory" in container["resources"]["limits"]
            assert all(mount.get("readOnly") or mount["name"] == "data" for mount in container["volumeMounts"])


def test_the_operator_may_do_what_it_does_and_no_more():
    bound = [
        thing for thing in objects("ClusterRole") + objects("Role") if thing["metadata"]["name"] == "netsum-operator"
    ]
    rules = [rule for thing in bound for rule in thing["rules"]]
    assert all("*" not in rule[part] for rule in rules for part in ("apiGroups", "resources", "verbs"))
    writes = {"create", "update", "patch", "delete", "deletecollection"}
    named = [rule for rule in rules if writes & set(rule["verbs"]) and "resourceNames" not in rule]
    free = {
        (resource, verb) for rule in named for resource in rule["resources"] for verb in rule["verbs"] if verb in writes
    }
    assert free == {
        ("aggregationjobs", "create"),
        ("aggregationjobs", "patch"),
        ("aggregationjobs/status", "patch"),
        ("configmaps", "create"),
        ("fabrics/status", "patch"),
    }
    secrets = [rule for rule in rules if "secrets" in rule["resources"]]
    assert [rule["resourceNames"] for rule in secrets] == [["netsum-admission"]]


def test_budgets_and_policies_select_the_pods_that_they_mean():
    labels = {name: template["metadata"]["labels"] for name, template in templates().items()}

    def selected(selector):
        wanted = selector.get("matchLabels", {})
        return {name for name, own in labels.items() if wanted.items() <= own.items()}

    for budget in objects("PodDisruptionBudget"):
        assert selected(budget["spec"]["selector"]) == {budget["metadata"]["name"]}
        assert budget["spec"]["maxUnavailable"] == 1
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in objects("NetworkPolicy")}
    everything = policies.pop("netsum-nothing-else")
    assert selected(everything["podSelector"]) == set(labels) and "ingress" not in everything
    assert selected(policies.pop("netsum-names")["podSelector"]) == set(labels)
    for name, policy in policies.items():
        assert selected(policy["podSelector"]) == {name}
        ports = {port["name"] for c in templates()[name]["spec"]["containers"] for port in c["ports"]}
        used = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
        assert set(used) == ports
        peers = [
            peer
            for way in ("ingress", "egress")
            for rule in policy[way]
            for peer in rule.get("from", rule.get("to", []))
        ]
        assert all(len(selected(peer["podSelector"])) == 1 for peer in peers if "podSelector" in peer)
