"""Images out of a root file system and single files, without a builder: archives as `ctr images import` reads them."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image consists of."""

    name: str
    root: Path | None = None
    """An uncompressed tar, which becomes the first layer."""
    files: Mapping[str, Path] | None = None
    """By their paths in the image, over the first layer. All may be executed."""
    entrypoint: Sequence[str] = ()


def write_archive(image: Image, path: Path) -> None:
    """Write an image as Docker saves them. The archive is complete when it is there."""
    layers = [image.root.read_bytes()] if image.root is not None else []
    if image.files:
        layers.append(_layer(image.files))
    configuration = json.dumps(_configuration(image, layers)).encode()
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    names = [f"layer{number}.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": name, "RepoTags": [image.name], "Layers": names}]).encode()
    unfinished = path.with_suffix(".part")
    with tarfile.open(unfinished, "w") as archive:
        for each, content in [*zip(names, layers, strict=True), (name, configuration), ("manifest.json", manifest)]:
            _add(archive, each, content)
    unfinished.rename(path)


def _configuration(image: Image, layers: Sequence[bytes]) -> dict[str, Any]:
    runs: dict[str, Any] = {"Env": [PATH], "WorkingDir": "/"}
    if image.entrypoint:
        runs["Entrypoint"] = list(image.entrypoint)
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": runs,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
    }


def _layer(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, source in files.items():
            _add(archive, path.lstrip("/"), source.read_bytes())
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    archive.addfile(entry, io.BytesIO(content))
