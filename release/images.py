"""Container images from scratch: one static program, for several processors, as an archive in the OCI layout.

The format: https://github.com/opencontainers/image-spec (image layout, index, manifest, configuration).
"""

import gzip
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from archives import tar
from build import Built, Processor

USER = 65532
"""Nobody's number, as in other images without users."""
STATE = "var/lib/netsum"
PORTS = {
    "netsum-controller": {"7700/tcp": {}},
    "netsum-switch": {"7701/udp": {}, "9100/tcp": {}},
    "netsum-operator": {"9443/tcp": {}},
}
TITLES = {
    "netsum-controller": "controller of a netsum fabric",
    "netsum-switch": "switch or server of a netsum fabric",
    "netsum-operator": "operator of netsum on Kubernetes",
}
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def make(name: str, built: dict[Processor, Built], version: str, epoch: int, out: Path) -> Path:
    """Write the image `name` for all processors of `built` into `out`."""
    blobs: dict[str, bytes] = {}
    manifests = [_manifest(name, each, files.static[name], version, epoch, blobs) for each, files in built.items()]
    index = _add(blobs, _INDEX, _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}))
    tagged = {**index, "annotations": {"org.opencontainers.image.ref.name": version}}
    files = {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    files["index.json"] = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [tagged]})
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    archive = out / f"{name}-{version}.oci.tar"
    archive.write_bytes(tar([(path, files[path], 0o644, 0) for path in sorted(files)], epoch))
    return archive


def _manifest(
    name: str, processor: Processor, program: Path, version: str, epoch: int, blobs: dict[str, bytes]
) -> dict[str, Any]:
    """Add an image to `blobs`; returns its descriptor."""
    layer = tar(
        [
            ("etc/netsum", None, 0o755, 0),
            ("usr/bin", None, 0o755, 0),
            (f"usr/bin/{name}", program.read_bytes(), 0o755, 0),
            (STATE, None, 0o700, USER),
        ],
        epoch,
    )
    configuration = {
        "created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "architecture": processor.oci,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "ExposedPorts": PORTS[name],
            "Env": [f"STATE_DIRECTORY=/{STATE}"],
            "Entrypoint": [f"/usr/bin/{name}"],
            "Volumes": {f"/{STATE}": {}} if name == "netsum-controller" else {},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": name,
                "org.opencontainers.image.description": TITLES[name],
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.source": "https://github.com/netsum/netsum",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    content = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _add(blobs, _CONFIG, _json(configuration)),
        "layers": [_add(blobs, _LAYER, gzip.compress(layer, mtime=0))],
    }
    platform = {"architecture": processor.oci, "os": "linux"}
    return {**_add(blobs, _MANIFEST, _json(content)), "platform": platform}


def _add(blobs: dict[str, bytes], media: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
