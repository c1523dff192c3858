"""`magnetar tokens …`: the same commands and options as Apache's `pulsar tokens`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from magnetar.cli.commands.lazy import command_group

application = command_group("tokens", "Make and look at the tokens by which clients say who they are.")

SecretKeyOption = Annotated[
    str | None, typer.Option("--secret-key", "-sk", metavar="KEY", help="file:…, data:…, a path, or base64.")
]
AlgorithmOption = Annotated[str, typer.Option("--signature-algorithm", "-a", help="HS256, RS256, ES256 …")]
TokenArgument = Annotated[str | None, typer.Argument(help="The token; without, from TOKEN.", envvar="TOKEN")]
StdinOption = Annotated[bool, typer.Option("--stdin", "-i", help="Read the token from standard input.")]
FileOption = Annotated[Path | None, typer.Option("--token-file", "-f", help="Read the token from a file.")]


@application.command("create-secret-key")
def create_secret_key(
    algorithm: AlgorithmOption = "HS256",
    base64: Annotated[bool, typer.Option("--base64", "-b", help="As text.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="To a file, which only you may read.")] = None,
) -> None:
    """Make a secret key: who has it can make tokens, and check them. A file that is there is left alone."""
    from magnetar.auth.token_making import new_secret_key
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.tokens import as_base64, require_no_key, write_key, write_out

    with guarded():
        if output is not None:
            require_no_key(output)
        key = new_secret_key(algorithm)
        content = as_base64(key) if base64 else key
        if output is None:
            write_out(content)
        else:
            write_key(output, content, secret=True)


@application.command("create-key-pair")
def create_key_pair(
    private_key: Annotated[Path, typer.Option("--output-private-key", help="File for the private key.")],
    public_key: Annotated[Path, typer.Option("--output-public-key", help="File for the public key.")],
    algorithm: AlgorithmOption = "RS256",
) -> None:
    """Make a private key, which makes tokens, and a public one, which checks them. Both as DER.

    Files that are there are left alone."""
    from magnetar.auth.token_making import new_key_pair
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.tokens import require_no_key, write_key

    with guarded():
        require_no_key(private_key, public_key)
        pair = new_key_pair(algorithm)
        write_key(private_key, pair.private, secret=True)
        write_key(public_key, pair.public, secret=False)


@application.command("create")
def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="The role.")],
    secret_key: SecretKeyOption = None,
    private_key: Annotated[
        str | None, typer.Option("--private-key", "-pk", metavar="KEY", help="file:…, data:…, a path, or base64.")
    ] = None,
    algorithm: AlgorithmOption = "RS256",
    expiry_time: Annotated[
        str | None, typer.Option("--expiry-time", "-e", help="How long it is good: 30m, 1h, 3d, 10y.")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--headers", "-hs", metavar="NAME=VALUE", help="Further headers.")
    ] = None,
) -> None:
    """Make a token. It is good for ever unless told otherwise.

    [dim]Example:[/]
      magnetar tokens create --secret-key file:///path/secret.key \\
        --subject orders --expiry-time 30d
    """
    from magnetar.auth.token_making import sign_with_private, sign_with_secret
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.tokens import claims_of, headers_of, one_key

    with guarded():
        one_key(secret_key, private_key, "--private-key")
        claims, named = claims_of(subject, expiry_time), headers_of(headers or [])
        if secret_key:
            token = sign_with_secret("--secret-key", secret_key, claims, named)
        else:
            token = sign_with_private("--private-key", private_key or "", claims, named, algorithm)
        typer.echo(token)


@application.command("show")
def show(token: TokenArgument = None, stdin: StdinOption = False, token_file: FileOption = None) -> None:
    """Print what a token says: its header, three dashes, its claims. Nothing is checked."""
    from magnetar.auth.token_making import shown
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.tokens import given_token

    with guarded():
        header, claims = shown(given_token(token, token_file, stdin=stdin))
        typer.echo(f"{header}\n---\n{claims}")


@application.command("validate")
def validate(
    token: TokenArgument = None,
    secret_key: SecretKeyOption = None,
    public_key: Annotated[
        str | None, typer.Option("--public-key", "-pk", metavar="KEY", help="file:…, data:…, a path, or base64.")
    ] = None,
    algorithm: AlgorithmOption = "RS256",
    stdin: StdinOption = False,
    token_file: FileOption = None,
) -> None:
    """Check a token's signature and its times; print its claims. Exit code 2 when it is not good."""
    from magnetar.auth.token_making import validated
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.tokens import check_algorithm, given_token, one_key

    with guarded():
        one_key(secret_key, public_key, "--public-key")
        check_algorithm(algorithm, public_key)
        text = given_token(token, token_file, stdin=stdin)
        typer.echo(validated(text, secret_key=secret_key or "", public_key=public_key or ""))
