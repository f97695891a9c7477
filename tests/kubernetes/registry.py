"""Images of a release in a real registry, and what a container runtime takes from there: the image's program."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tarfile

from control_plane import until
from kubelet import Image

NEEDS = ("docker-registry", "skopeo")


class Registry:
    """Debian's docker-registry at an address, without TLS, as skopeo finds in the home folder; a context manager."""

    def __init__(self, address: str, folder: pathlib.Path, home: pathlib.Path) -> None:
        self.address, self.folder = address, folder
        self.images: dict[str, Image] = {}
        folder.mkdir()
        (folder / "registry.yml").write_text(
            f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}\n"
            f"http: {{addr: {address}}}\n"
        )
        settings = home / ".config" / "containers" / "registries.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
        self.environment = {"HOME": str(home)}

    def __enter__(self) -> Registry:
        command = ["docker-registry", "serve", str(self.folder / "registry.yml")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        host, _, port = self.address.partition(":")
        until(lambda: socket.create_connection((host, int(port)), 1.0).close() or True, "the registry")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def pull(self, reference: str) -> Image:
        """The program of an image and the first words of its command. Raises CalledProcessError."""
        if reference not in self.images:
            place = self.folder / reference.replace("/", "_").replace(":", "_")
            copied, root = place.with_suffix(".dir"), place.with_suffix(".root")
            command = ["skopeo", "copy", "--quiet", f"docker://{reference}", f"dir:{copied}"]
            subprocess.run(command, env={**os.environ, **self.environment}, check=True)
            manifest = json.loads((copied / "manifest.json").read_text())
            for layer in manifest["layers"]:
                with tarfile.open(copied / layer["digest"].partition(":")[2]) as archive:
                    archive.extractall(root, filter="tar")
            configuration = json.loads((copied / manifest["config"]["digest"].partition(":")[2]).read_text())
            program, *words = configuration["config"]["Entrypoint"]
            self.images[reference] = Image(f"{root}{program}", tuple(words))
        return self.images[reference]


def why_not() -> str | None:
    """Why there can be no registry here, or None."""
    missing = [name for name in NEEDS if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (make setup-packages)" if missing else None
