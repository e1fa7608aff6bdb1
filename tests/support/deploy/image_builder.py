"""Build the images of the Dockerfile with Buildah, without a registry.

The base image is a stand-in: a Debian with the same version of Python, which debootstrap makes from
the mirror of this machine.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.rendering import ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
_PACKAGES = ("python3", "python3-pip", "python3-venv", "python-is-python3", "ca-certificates")
_OF_THE_MACHINE = ("/etc/ssl/certs", "/etc/pip.conf")
"""The files by which this machine reads the package index. A build has them while it installs."""
_UNREACHABLE = re.compile(r"Failed getting release file|Couldn't download|Invalid Release")


class ImageBuilder:
    """Keeps images and containers in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base_digest = ""

    def make_base(self) -> None:
        """Make the base image. Skips the test where the packages of Debian cannot be read."""
        root = self._folder / "base"
        mirror = [uri] if (uri := _mirror()) else []
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", "bookworm", root]
        done = subprocess.run([*command, *mirror], capture_output=True, text=True)
        if done.returncode and _UNREACHABLE.search(done.stdout + done.stderr):
            pytest.skip("the packages of Debian cannot be read from here")
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        for file in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            file.unlink()  # The image of Python lets pip install.
        (name,) = set(re.findall(r"^FROM (\S+)@", DOCKERFILE.read_text(), re.MULTILINE))
        container = self._run("from", "scratch").strip()
        self._run("add", "--quiet", container, root, "/")
        self._run("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
        self._run("commit", "--quiet", container, f"docker.io/library/{name}")
        self._run("rm", container)
        shutil.rmtree(root)
        (self._base_digest,) = self._run("images", "--format", "{{.Digest}}", name).split()

    def build(self, service: str) -> str:
        """Build the image of a service as step 1 of the installation does. Return its name."""
        image = f"localhost/spawnmesh/{service}:test"
        volumes = [f"--volume={path}:{path}:ro" for path in _OF_THE_MACHINE if Path(path).exists()]
        self._run(
            *("bud", "--isolation=chroot", "--network=host", "--pull-never", *volumes),
            *("--build-arg", f"SERVICE={service}", "--build-arg", f"BASE_DIGEST={self._base_digest}"),
            *("--ignorefile", f"{DOCKERFILE}.dockerignore", "-f", DOCKERFILE, "-t", image, ROOT),
        )
        return image

    def configuration(self, image: str) -> dict[str, Any]:
        """Return what a container of the image is started with."""
        found: dict[str, Any] = json.loads(self._run("inspect", "--type", "image", image))["OCIv1"]["config"]
        return found

    def size_bytes(self, image: str) -> tuple[int, int]:
        """Return the size of the image, and that of its layers above the base image."""
        layers = json.loads(self._run("inspect", "--type", "image", image))
        manifest = json.loads(layers["Manifest"])
        sizes = [layer["size"] for layer in manifest["layers"]]
        return sum(sizes), sum(sizes[1:])

    def run(self, image: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run the command in a new container, as the account of the image."""
        container = self._run("from", "--pull-never", image).strip()
        user = self.configuration(image)["User"]
        try:
            return subprocess.run(
                [*self._buildah(), "run", "--isolation=chroot", f"--user={user}", container, "--", *command],
                capture_output=True,
                text=True,
            )
        finally:
            self._run("rm", container)

    def _run(self, *arguments: str | Path) -> str:
        done = subprocess.run([*self._buildah(), *arguments], capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return done.stdout

    def _buildah(self) -> list[str | Path]:
        kept = [f"--root={self._folder / 'images'}", f"--runroot={self._folder / 'run'}"]
        return ["buildah", *kept, "--storage-driver=vfs"]


def why_not() -> str:
    """Return why no image can be built on this machine, or an empty text."""
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}: install Debian's packages buildah and debootstrap"
    return "" if os.geteuid() == 0 else "debootstrap needs root"


def _mirror() -> str:
    """Return the address from which this machine gets the packages of Debian 12, if it does."""
    command = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"]
    if shutil.which("apt-get") is None:
        return ""
    lines = subprocess.run([*command, "Created-By: Packages"], capture_output=True, text=True).stdout
    found = [line.split()[2] for line in lines.splitlines() if line.startswith("bookworm main ")]
    return found[0] if found else ""
