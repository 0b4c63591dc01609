"""``specjax corpus``: build and inspect files of responses for suffix decoding to start from."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import typer

from specjax.cli.errors import plainly

corpus = typer.Typer(help="Responses for suffix decoding to start from.", no_args_is_help=True)


@corpus.command()
@plainly
def build(
    files: Annotated[
        list[Path],
        typer.Argument(help="Responses: a text file is one; a .jsonl file has one per line."),
    ],
    out: Annotated[Path, typer.Option(help="The corpus, an .npz file.")],
    model: Annotated[
        str, typer.Option(help="Whose tokenizer: a folder, or 'bundled'.")
    ] = "bundled",
) -> None:
    """Turn texts into a corpus.

    A line of a .jsonl file is a string, or an object with "text" or "token_ids", as
    specjax generate --json prints them.
    """
    from specjax.bundled import resolve
    from specjax.engine.corpus_file import save
    from specjax.engine.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve(model))
    found = [one for file in files for one in read(file)]
    responses = [tokenizer.encode(one) if isinstance(one, str) else one for one in found]
    save(out, responses, tokenizer)
    typer.echo(f"wrote {out}: {len(responses)} responses, {sum(map(len, responses))} tokens")


@corpus.command()
@plainly
def info(
    file: Annotated[Path, typer.Argument(help="A corpus.")],
    max_tree_depth: Annotated[int, typer.Option(min=1, help="The longest string counted.")] = 24,
) -> None:
    """Say what is in a corpus, and how much memory its index takes."""
    from specjax.drafters.suffix_index import NUM_FIELDS
    from specjax.engine.corpus_file import load

    lengths = list(map(len, load(file)))
    typer.echo(
        f"{len(lengths)} responses, {sum(lengths)} tokens, {max(lengths, default=0)} at most"
    )
    each = 4 * NUM_FIELDS * max_tree_depth
    megabytes = each * sum(lengths) / 1e6
    typer.echo(f"index: {each} bytes per token at depth {max_tree_depth}, {megabytes:.1f} MB")


def read(file: Path) -> list[str | list[int]]:
    """Return the texts or token ids in a file. Raises ValueError with the line that is wrong."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error}") from None
    if file.suffix != ".jsonl":
        return [text]
    found: list[str | list[int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file} line {number} is not JSON: {error}") from None
        if isinstance(value, dict):
            value = value.get("token_ids", value.get("text"))
        if isinstance(value, str) or is_ids(value):
            found.append(value)
        else:
            raise ValueError(f'{file} line {number} needs "text" or "token_ids", got {line:.80}.')
    return found


def is_ids(value: Any) -> TypeGuard[list[int]]:
    """Return whether a JSON value is a list of token ids."""
    return isinstance(value, list) and all(type(one) is int for one in value)
