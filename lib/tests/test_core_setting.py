"""Rows of settings: what a field says of its name, and which rows are refused."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from magnetar.core.errors import Misuse, SettingError
from magnetar.core.setting import check_ranges, named, part, rows_of, setting
from magnetar.core.setting_catalogue import Catalogue
from magnetar.core.settings_file import GivenSettings


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, kw_only=True)
class Tls:
    certificate: str = ""
    refresh_seconds: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Inner:
    wait_seconds: float = setting("waitTime", 1, unit="ms")
    colour: Colour = setting("colour", Colour.RED, older="color")


@dataclass(frozen=True, kw_only=True)
class Outer:
    folders: tuple[Path, ...] = field(metadata=named("folders"))
    port: int | None = setting("port", 1, port=True)
    on: bool = setting("state", False, words={"up": True, "down": False})
    plain: int = 0
    inner: Inner = field(default_factory=Inner)
    server: Tls = part(Tls, {"certificate": "serverCertificate", "refresh_seconds": "tlsRefreshSec"})
    client: Tls = part(Tls, {"certificate": "clientCertificate", "refresh_seconds": "tlsRefreshSec"})


NAMES = ["folders", "port", "state", "waitTime", "color", "colour", "serverCertificate", "clientCertificate"]
UPSTREAM = [*NAMES, "tlsRefreshSec", "neverRead"]


def listed(folder: Path, *names: str) -> Path:
    path = folder / "upstream.txt"
    path.write_text("\n".join(names or UPSTREAM))
    return path


def built(**texts: str) -> Outer:
    given = GivenSettings(UPSTREAM)
    for name, text in texts.items():
        given.add(name, text, "here")
    return given.build(Outer(folders=(Path("f"),)))


def test_a_catalogue_has_all_names(tmp_path: Path) -> None:
    catalogue = Catalogue(listed(tmp_path), Outer, read_apart=["controlPort"])
    assert catalogue.with_effect == {*NAMES, "tlsRefreshSec", "controlPort"}
    assert catalogue.names == {*UPSTREAM, "controlPort"}
    assert [row.path for row in rows_of(Outer)][:4] == ["folders", "port", "on", "inner.wait_seconds"]


def test_one_name_of_both_sides_sets_both() -> None:
    found = built(tlsRefreshSec="5", clientCertificate="c")
    assert (found.server, found.client) == (Tls(refresh_seconds=5), Tls(certificate="c", refresh_seconds=5))


def test_ports_words_and_older_names() -> None:
    assert (built(port="").port, built(port="7").port, built().port) == (None, 7, 1)
    assert built(state="up").on
    both = built(color="red", colour="green")
    assert (both.inner.colour, built(color="green").inner.colour) == (Colour.GREEN, Colour.GREEN)
    with pytest.raises(SettingError, match="port is '70000', and not a number from 0 to 65535"):
        built(port="70000")
    with pytest.raises(SettingError, match="state is 'on', and not one of up, down"):
        built(state="on")
    with pytest.raises(SettingError, match="color is 'blue'"):
        built(color="blue", colour="red")


@dataclass(frozen=True, kw_only=True)
class Bounded:
    hits: int = setting("hits", 3, low=1, high=9)
    share: float = setting("share", 0.5, high=1)
    tries: int = setting("tries", 1, low=1)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_ranges(self, accepted=self.share > 0)


def test_a_number_out_of_its_range_is_named() -> None:
    assert [Bounded(hits=1).hits, Bounded(hits=9).hits, Bounded(share=1).share] == [1, 9, 1]
    with pytest.raises(SettingError, match=r"^hits is out of bounds: 0; 1 to 9 are accepted$"):
        Bounded(hits=0)
    with pytest.raises(SettingError, match=r"^hits is out of bounds: 10$"):
        Bounded(hits=10, share=0)
    with pytest.raises(SettingError, match=r"^share is out of bounds: 1\.5; 1 or less is accepted$"):
        Bounded(share=1.5)
    with pytest.raises(SettingError, match=r"^tries is out of bounds: 0; 1 or more is accepted$"):
        Bounded(tries=0)


@dataclass(frozen=True)
class Twice:
    one: int = setting("port", 1)
    other: int = setting("state", 1, older="port")


@dataclass(frozen=True)
class HalfShared:
    server: Tls = part(Tls, {"certificate": "clientCertificate", "refresh_seconds": "tlsRefreshSec"})
    certificate: str = setting("clientCertificate", "")


@dataclass(frozen=True)
class WrongDefault:
    on: bool = setting("state", 0)  # type: ignore[assignment]


@dataclass(frozen=True)
class WrongType:
    on: complex = setting("state", 1j)


@dataclass(frozen=True)
class WrongMembers:
    folders: tuple[Path, ...] = setting("folders", ("f",))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Unknown:
    on: bool = setting("stat", False)


@dataclass(frozen=True)
class NotOurs:
    on: bool = setting("state", False, ours=True)


@dataclass(frozen=True)
class NoUnit:
    wait_seconds: float = setting("waitTime", 1.0)


@dataclass(frozen=True)
class NoField:
    tls: Tls = part(Tls, {"certificat": "serverCertificate"})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Twice, "Twice: one and other are both called port"),
        (HalfShared, "HalfShared: server.certificate and certificate are both called clientCertificate"),
        (WrongDefault, "the setting state (on): the default 0 is no <class 'bool'>"),
        (WrongType, "the setting state (on): no setting can be a <class 'complex'>"),
        (WrongMembers, "the setting folders (folders): the default ('f',) is no tuple"),
        (Unknown, "the setting stat (on): Apache knows no stat"),
        (NotOurs, "the setting state (on): Apache knows it, so it is not ours"),
        (NoUnit, "the setting waitTime (wait_seconds): the unit of waitTime is not known"),
        (NoField, "the setting serverCertificate (tls.certificat): there is no field tls.certificat"),
    ],
)
def test_a_bad_row_is_refused_and_named(kind: type[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=re.escape(said)):
        Catalogue(listed(tmp_path), kind)


def test_what_a_row_says_is_known() -> None:
    with pytest.raises(TypeError, match="dinamic"):
        setting("port", 1, dinamic="broker")
