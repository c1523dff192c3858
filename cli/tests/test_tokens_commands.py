"""`magnetar tokens …`, and tokens and keys of Apache's own tool in it."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest
from magnetar.auth.testing import EC_PUBLIC_KEY, EC_TOKEN, LATE_TOKEN, RSA_PUBLIC_KEY, RSA_TOKEN, SECRET, TOKEN
from magnetar.cli.command_line import application
from magnetar.cli.tools.tokens import duration_seconds
from typer.testing import CliRunner, Result

PLAIN = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1", "TERM": "dumb"}


def tokens(*arguments: str, given: str | None = None, **environment: str) -> Result:
    return CliRunner().invoke(application, ["tokens", *arguments], input=given, env={**PLAIN, **environment})


def said(*arguments: str, given: str | None = None, **environment: str) -> str:
    result = tokens(*arguments, given=given, **environment)
    assert result.exit_code == 0, result.output
    return result.output


def test_tokens_by_secret_keys(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    said("create-secret-key", "--output", str(key))
    assert len(key.read_bytes()) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    token = said("create", "-sk", f"file://{key}", "--subject", "a", "-e", "1h", "--headers", "kid=7").strip()
    header, claims = said("show", token).strip().split("\n---\n")
    assert json.loads(header) == {"alg": "HS256", "kid": "7"}
    assert 3_500 < json.loads(claims)["exp"] - time.time() <= 3_600
    for shown in (
        said("validate", "--secret-key", str(key), token),
        said("validate", "--secret-key", str(key), "-i", given=token),
        said("validate", "--secret-key", str(key), TOKEN=token),
    ):
        assert json.loads(shown) == json.loads(claims)
    file = tmp_path / "token"
    file.write_text(token + "\n")
    assert json.loads(said("validate", "-sk", str(key), "-f", str(file)))["sub"] == "a"


def test_a_word_that_is_not_in_utf_8_is_refused() -> None:
    result = tokens("show", "a\udcff")
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert "is not in UTF-8" in result.stderr


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing, no_folder = tmp_path / "missing" / "key", tmp_path / "file" / "key"
    no_folder.parent.touch()
    for wanted in (missing, no_folder):
        refused = tokens("create-secret-key", "--output", str(wanted))
        assert refused.exit_code == 1
        assert f"{wanted}: N" in refused.stderr.replace("\n", "")
        assert "Check the path" in refused.stderr
        assert "--log-level" not in refused.stderr, "there is no such option"


def test_a_key_that_is_there_is_not_lost_by_a_second_one(tmp_path: Path) -> None:
    key, empty, public = tmp_path / "secret.key", tmp_path / "empty", tmp_path / "public"
    empty.touch()
    said("create-secret-key", "-o", str(empty))
    said("create-secret-key", "-o", str(key))
    before = key.read_bytes()
    for arguments in (
        ("create-secret-key", "-o", str(key)),
        ("create-key-pair", "--output-private-key", str(key), "--output-public-key", str(public)),
        ("create-key-pair", "--output-private-key", str(public), "--output-public-key", str(key)),
    ):
        refused = tokens(*arguments)
        assert (refused.exit_code, "is there already" in refused.output) == (2, True), refused.output
    assert key.read_bytes() == before
    assert not public.exists()


def test_secret_keys_as_text() -> None:
    key = said("create-secret-key", "-b", "-a", "HS512").strip()
    token = said("create", "-sk", f"data:;base64,{key}", "-s", "a").strip()
    assert json.loads(said("show", token).partition("\n---\n")[0]) == {"alg": "HS512"}


def test_tokens_by_key_pairs(tmp_path: Path) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    pair = ("--output-private-key", str(private), "--output-public-key", str(public))
    said("create-key-pair", "-a", "ES256", *pair)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    token = said("create", "-a", "ES256", "-pk", str(private), "-s", "a").strip()
    assert said("validate", "-a", "ES256", "-pk", str(public), token) == '{"sub":"a"}\n'
    assert tokens("validate", "-a", "RS256", "-pk", str(public), token).exit_code == 2


def test_what_apaches_tool_made() -> None:
    assert said("create", "-sk", SECRET, "-s", "producer").strip() == TOKEN
    assert said("validate", "-sk", SECRET, TOKEN) == '{"sub":"producer"}\n'
    assert said("validate", "-pk", RSA_PUBLIC_KEY, RSA_TOKEN) == '{"sub":"producer"}\n'
    assert said("validate", "-a", "ES256", "-pk", EC_PUBLIC_KEY, EC_TOKEN) == '{"sub":"producer"}\n'
    assert said("show", LATE_TOKEN) == '{"kid":"a","alg":"HS256"}\n---\n{"sub":"late","exp":1795250576}\n'


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("validate", "-sk", SECRET, RSA_TOKEN), "not good"),
        (("validate", "-sk", SECRET), "no token"),
        (("validate", TOKEN), "either --secret-key or --public-key"),
        (("show", "x"), "no token"),
        (("create", "-s", "a"), "either --secret-key or --private-key"),
        (("create", "-s", "a", "-sk", SECRET, "-e", "soon"), "--expiry-time"),
        (("create", "-s", "a", "-sk", SECRET, "-hs", "x"), "NAME=VALUE"),
        (("create", "-s", "a", "-sk", "c2hvcnQ="), "too short"),
        (("create-secret-key", "-a", "RS256"), "no secret key"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    result = tokens(*arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())


def test_a_file_in_the_place_of_a_token(tmp_path: Path) -> None:
    file = tmp_path / "my token"
    file.write_text(TOKEN)
    result = tokens("show", str(file), COLUMNS="300", TERMINAL_WIDTH="300")
    assert result.exit_code == 2
    assert f"{file} is a file; to read a token from it: --token-file '{file}'" in " ".join(result.output.split())


def test_durations() -> None:
    assert [duration_seconds(text) for text in ("5s", "2m", "1h", "3d", "1w", "1Y")] == [
        5,
        120,
        3_600,
        259_200,
        604_800,
        31_536_000,
    ]
