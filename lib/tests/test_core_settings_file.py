"""Settings from files, environment and options."""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import Misuse, SettingError
from magnetar.core.setting import Row, rows_of, setting
from magnetar.core.settings_file import GivenSettings, kind_of, parse_value, unit_factor


class Mode(enum.Enum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True)
class Inner:
    size_bytes_max: int = setting("cacheSizeMB", 5)
    interval_seconds: float = setting("checkInterval", 10.0, unit="ms")

    def __post_init__(self) -> None:
        if self.size_bytes_max < 1:
            raise SettingError(f"cacheSizeMB is out of bounds: {self.size_bytes_max}; 1 or more is accepted")


@dataclass(frozen=True)
class Outer:
    name: str = setting("name", "none")
    port: int = setting("port", 1)
    wait_ms: int = setting("waitSeconds", 3)
    on: bool = setting("enabled", False)
    directories: tuple[Path, ...] = setting("dirs", ())
    limit: int | None = setting("limit", None)
    mode: Mode = setting("mode", Mode.SAFE)
    inner: Inner = field(default_factory=Inner)


KNOWN = frozenset({*(row.name for row in rows_of(Outer)), "journalWriteBufferSizeKB", "useNothing"})


def settings(**values: str) -> GivenSettings:
    given_settings = GivenSettings(KNOWN)
    for name, value in values.items():
        given_settings.add(name, value, f"--{name}")
    return given_settings


def test_names_units_and_types() -> None:
    built = settings(
        cacheSizeMB="2",
        checkInterval="1500",
        dirs="/a, /b,",
        enabled="TRUE",
        limit="7",
        mode="fast",
        name="x",
        port="80",
        waitSeconds="4",
    ).build(Outer())
    inner = Inner(size_bytes_max=2 * 1024 * 1024, interval_seconds=1.5)
    assert built == Outer("x", 80, 4000, True, (Path("/a"), Path("/b")), 7, Mode.FAST, inner)


def test_what_is_not_given_or_empty_keeps_its_value() -> None:
    base = Outer(name="kept", port=9)
    assert settings(name="", port="  ").build(base) == base


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("port", "http", "--port: port is 'http', and not a whole number"),
        ("port", "1.5", "a whole number"),
        ("port", "1e3", "a whole number"),
        ("port", "1_000", "a whole number"),
        ("waitSeconds", "ten", "waitSeconds is 'ten', and not a whole number of SECONDS"),
        ("checkInterval", "1/2", "a number of MS"),
        ("enabled", "maybe", "true or false"),
        ("mode", "slow", "one of fast, safe"),
        ("cacheSizeMB", "0", r"1 or more is accepted \(--cacheSizeMB: cacheSizeMB=0\)"),
    ],
)
def test_bad_values_are_named_with_what_would_be_right(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        settings(**{name: value}).build(Outer())


def test_a_number_that_is_no_whole_one_in_our_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 1000"):
        parse_value("1500", int, Fraction(1, 1000))
    assert parse_value("2000", int, Fraction(1, 1000)) == 2


@dataclass(frozen=True)
class Bounds:
    size: int = setting("size", 1)
    size_max: int = setting("sizeLimit", 1)

    def __post_init__(self) -> None:
        if self.size > self.size_max:
            raise SettingError(f"sizeLimit is below what it bounds: {self.size_max}")


def test_an_error_is_explained_by_the_setting_that_it_names() -> None:
    """Not by another one whose name is the beginning of that."""
    given_settings = GivenSettings(["size", "sizeLimit"])
    given_settings.add("size", "9", "--size")
    given_settings.add("sizeLimit", "5", "--limit")
    with pytest.raises(SettingError, match=r"\(--limit: sizeLimit=5\)$"):
        given_settings.build(Bounds())


def test_an_unknown_name_is_an_error_that_names_the_closest() -> None:
    with pytest.raises(SettingError, match=r"--prot: there is no setting 'prot'; did you mean 'port'\?"):
        settings(prot="1")
    with pytest.raises(SettingError, match=r"there is no setting 'zzzzzz'$"):
        settings(zzzzzz="1")
    with pytest.raises(SettingError, match="did you mean 'cacheSizeMB'"):
        settings(cachesizemb="1")


def test_known_names_without_effect_are_listed() -> None:
    given_settings = settings(useNothing="1", journalWriteBufferSizeKB="", port="1")
    given_settings.build(Outer())
    assert given_settings.without_effect() == ["useNothing"]


def test_files_environment_and_options_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("# ours\nname=file\nport=1\nwaitSeconds=1\nuseNothing=1\n")
    given_settings = GivenSettings(KNOWN)
    given_settings.add_file(file)
    given_settings.add_environment({"port": "2", "PULSAR_PREFIX_waitSeconds": "2", "HOME": "/", "PORT": "9"})
    given_settings.add("waitSeconds", "3", "--wait")
    built = given_settings.build(Outer())
    assert (built.name, built.port, built.wait_ms) == ("file", 2, 3000)


def test_mistakes_say_where_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("name=x\n\nport=x\n")
    given_settings = GivenSettings(KNOWN)
    given_settings.add_file(file)
    with pytest.raises(SettingError, match=rf"{file}:3: port is 'x'"):
        given_settings.build(Outer())
    with pytest.raises(SettingError, match="environment variable PULSAR_PREFIX_nme: there is no setting 'nme'"):
        given_settings.add_environment({"PULSAR_PREFIX_nme": "x"})
    file.write_text("nme=x\n")
    with pytest.raises(SettingError, match=rf"{file}:1: there is no setting 'nme'; did you mean 'name'"):
        given_settings.add_file(file)
    file.write_text("name=\\uzzzz")
    with pytest.raises(SettingError, match="is damaged: line 1"):
        given_settings.add_file(file)
    file.write_bytes(b"port=1\nname=\xff\n")
    with pytest.raises(SettingError, match="is not in UTF-8: look at line 2"):
        given_settings.add_file(file)
    with pytest.raises(SettingError, match="cannot be read: No such file"):
        given_settings.add_file(tmp_path / "none.conf")


def test_a_mark_of_the_encoding_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_bytes(b"\xef\xbb\xbfname=x\r\n")
    given_settings = GivenSettings(KNOWN)
    given_settings.add_file(file)
    assert given_settings.text("name") == "x"


def test_a_repeated_name_counts_last_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("name=x\nport=1\nport=1\nname=y\n")
    given_settings = GivenSettings(KNOWN)
    given_settings.add_file(file)
    assert given_settings.repeated == [f"name ({file}:4)"]
    assert given_settings.text("name") == "y"


def test_single_values() -> None:
    given_settings = settings(name="", port="5", enabled="no")
    assert given_settings.text("name", "port") == "5"
    assert given_settings.text("limit") is None
    assert given_settings.flag("enabled", True) is False
    assert given_settings.number("port", 1, 0, 9) == 5
    assert given_settings.number("limit", 8, 0, 9) == 8
    assert given_settings.without_effect() == []
    with pytest.raises(SettingError, match="port is '5', and not a number from 6 to 9"):
        given_settings.number("port", 6, 6, 9)


def row(name: str, path: str) -> Row:
    return Row(name=name, path=path, owner=Inner)


def test_rows_that_do_not_fit_are_our_own_mistake() -> None:
    with pytest.raises(Misuse, match="the unit of checkInterval is not known"):
        unit_factor(row("checkInterval", "inner.interval_seconds"), "checkInterval")
    with pytest.raises(Misuse, match="the unit of sizeMB is not known"):
        unit_factor(row("sizeMB", "wait_ms"), "sizeMB")
    with pytest.raises(Misuse, match=r"there is no field inner\.nothing"):
        kind_of(row("port", "inner.nothing"))


@given(st.integers(0, 10**12), st.sampled_from(["Seconds", "Minutes", "Millis"]))
def test_times_are_scaled_exactly(value: int, unit: str) -> None:
    factor = {"Seconds": 1_000, "Minutes": 60_000, "Millis": 1}[unit]
    assert parse_value(str(value), int, unit_factor(row(f"wait{unit}", "wait_ms"), f"wait{unit}")) == value * factor


@given(st.text(max_size=40), st.sampled_from([int, float, bool, Mode, int | None]))
def test_any_text_is_a_value_or_a_value_error(text: str, kind: object) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_value(text, kind), (int, float, Mode))


@dataclass(frozen=True)
class WithSecrets:
    token_secret_key: str = setting("tokenSecretKey", "")
    token_audience: str = setting("tokenAudience", "")

    def __post_init__(self) -> None:
        for name, value in (("tokenSecretKey", self.token_secret_key), ("tokenAudience", self.token_audience)):
            if value:
                raise SettingError(f"{name} is not good")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tokenSecretKey", "data:;base64,aHVudGVyMg==", False),
        ("tokenSecretKey", "file:///etc/key", True),
        ("tokenAudience", "here", True),
    ],
)
def test_mistakes_do_not_show_secrets(name: str, value: str, *, shown: bool) -> None:
    settings = GivenSettings(["tokenSecretKey", "tokenAudience"])
    settings.add(name, value, "test")
    with pytest.raises(SettingError, match=name) as caught:
        settings.build(WithSecrets())
    assert (value in str(caught.value)) is shown
