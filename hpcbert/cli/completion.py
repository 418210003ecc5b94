"""hpcbert completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hpcbert.cli.main import root
from hpcbert.cli.output import Result, returns_result
from hpcbert.errors import UsageError


@click.command(epilog='\b\nExample:\n  eval "$(hpcbert completion bash)"')
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@returns_result
def completion(*, shell: str) -> Result:
    """Print a completion script for a shell."""
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise UsageError(f"hpcbert has no completion for {shell}.")
    source = completion_class(root, {}, "hpcbert", "_HPCBERT_COMPLETE").source_vars()
    text = completion_class.source_template % source
    return Result({"shell": shell, "script": text}, text, exact=True)
