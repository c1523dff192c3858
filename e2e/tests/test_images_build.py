"""How images are built, and what the builder's stages do to files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.kubernetes.buildkit import builder
from e2e.kubernetes.node import Node
from e2e.kubernetes.places import Places
from images.build import (
    COMPONENTS,
    ROOT,
    Builder,
    NoBuilder,
    Wanted,
    build_command,
    find_builder,
    parse,
    push_command,
)
from images.layer import install_compiled, keep, restore, subtract

DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text()


def test_each_component_is_a_stage_with_labels_that_runs_as_nobody_special() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    named = {match[1]: stage for stage in stages if (match := re.search(r" AS (\S+)\n", stage))}
    for component in COMPONENTS:
        assert f'image.title="magnetar-{component}"' in named[component]
    assert DOCKERFILE.count("USER 10000:10000") == 3
    assert DOCKERFILE.count("STOPSIGNAL SIGTERM") == 3


def test_a_local_base_image_is_not_looked_for_in_a_registry() -> None:
    builder = Builder("buildkit", "buildctl", "localhost/base:1")
    command = build_command(builder, Wanted(version="7"), "broker", "abc")
    assert "build-arg:BASE_IMAGE=localhost/base:1" in command
    assert "image-resolve-mode=local" in command
    assert "type=image,name=localhost/magnetar/broker:7,unpack=true" in command


def test_docker_builds_the_same_stages() -> None:
    command = build_command(Builder("docker", "docker"), Wanted(repository="r", version="7"), "proxy", "abc")
    assert command[:3] == ["docker", "buildx", "build"]
    assert command[command.index("--target") + 1] == "proxy"
    assert command[command.index("--tag") + 1] == "r/proxy:7"
    assert not any("BASE_IMAGE" in word for word in command)


def test_only_the_nodes_own_builder_is_asked_for_the_machines_network() -> None:
    """Others refuse it, unless they were started to allow it."""
    of_others = build_command(Builder("buildkit", "buildctl"), Wanted(), "proxy", "abc")
    assert not any("network" in word for word in of_others)
    own = builder(Node(Places(Path("/nowhere"))))
    asked = build_command(own, Wanted(), "proxy", "abc")
    assert asked[asked.index("--allow") + 1] == "network.host"
    assert "force-network-mode=host" in asked


def test_images_are_pushed_where_that_is_asked_for() -> None:
    wanted = Wanted(repository="r", push=True)
    assert build_command(Builder("docker", "docker"), wanted, "proxy", "abc")[-2:] == ["--push", str(ROOT)]
    assert build_command(Builder("buildkit", "buildctl"), wanted, "proxy", "abc")[-1].endswith(",push=true")
    assert push_command(Builder("docker", "docker"), wanted, "proxy") is None
    assert push_command(Builder("nerdctl", "nerdctl"), wanted, "proxy") == ["nerdctl", "push", "r/proxy:dev"]
    assert push_command(Builder("nerdctl", "nerdctl"), Wanted(), "proxy") is None


def test_any_base_image_of_debian_will_do() -> None:
    """Without venv, certificates or Java 17 as well."""
    assert "echo python3-venv" in DOCKERFILE
    assert "echo ca-certificates" in DOCKERFILE
    assert "openjdk" not in DOCKERFILE


def test_the_command_line_refuses_what_cannot_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["brocker"])
    with pytest.raises(SystemExit):
        parse(["--version", "latest"])
    assert "latest" in capsys.readouterr().err
    assert parse(["proxy"])[0].components == ("proxy",)
    assert parse(["--repository", "r/", "--push"])[0] == Wanted(repository="r", push=True)


def test_without_any_builder_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_ROOT", str(tmp_path))
    monkeypatch.delenv("BUILDKIT_HOST", raising=False)
    with pytest.raises(NoBuilder, match="kube-up"):
        find_builder()


def write(path: Path, content: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_a_layer_holds_only_what_is_not_below(tmp_path: Path) -> None:
    below, above = tmp_path / "below", tmp_path / "above"
    for folder in (below, above):
        write(folder / "lib/same.py")
        write(folder / "lib/changed.py", folder.name)
        (folder / "python").symlink_to("/usr/bin/python3")
    write(above / "lib/new.py")
    subtract(above, below)
    assert sorted(path.name for path in above.rglob("*")) == ["changed.py", "lib", "new.py"]


def test_compiled_modules_come_back_and_go_where_their_sources_are(tmp_path: Path) -> None:
    tree, cache, venv = tmp_path / "tree", tmp_path / "cache", tmp_path / "venv"
    write(tree / "lib/src/magnetar/core/ids.cpython-311.so")
    write(tree / "lib/src/group__mypyc.cpython-311.so")
    write(tree / "build/hot_modules.sha256", "of these sources")
    keep(tree, cache)
    again = tmp_path / "again"
    restore(again, cache)
    assert (again / "build/hot_modules.sha256").read_text() == "of these sources"
    packages = venv / "lib/python3.11/site-packages"
    write(packages / "magnetar/core/ids.py")
    install_compiled(again, venv)
    assert (packages / "magnetar/core/ids.cpython-311.so").exists()
    assert (packages / "group__mypyc.cpython-311.so").exists()


def test_nothing_kept_is_nothing_restored(tmp_path: Path) -> None:
    restore(tmp_path / "tree", tmp_path / "cache")
    assert not (tmp_path / "tree").exists()
