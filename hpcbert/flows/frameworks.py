"""What is known of a framework, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbert.logs import grammar

if TYPE_CHECKING:
    from hpcbert.config.recipe import Recipe


def described(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a document: what runs, from where, how it is read.

    Raises:
        ConfigError: The recipe's `[log]` table is wrong.
    """
    rules = grammar.parse(recipe.log, where=f"{recipe.folder}/recipe.toml").rules
    return {
        "name": recipe.name,
        "title": recipe.title,
        "launch": recipe.launch,
        "models": list(recipe.models),
        "precisions": list(recipe.precisions),
        "batch_sizes": [
            {"precision": precision, "per_device": size}
            for precision, size in recipe.batch_sizes.items()
        ],
        "protocols": [
            {"name": one.name, "iters": one.iters, "skip": one.skip, "help": one.help}
            for one in recipe.protocols.values()
            if one.name
        ],
        "image": recipe.image.reference or None,
        "base_image": recipe.image.base or None,
        "install": list(recipe.image.install),
        "repository": recipe.source.repository or None,
        "commit": recipe.source.commit or None,
        "path": recipe.source.path or None,
        "data": recipe.data or None,
        "needs": list(recipe.needs),
        "options": [
            {"name": one.name, "default": one.default, "help": one.help}
            for one in recipe.options.values()
        ],
        "rules": [{"name": rule.name, "kind": rule.kind, "scope": rule.scope} for rule in rules],
        "problems": list(recipe.problems),
        "folder": recipe.folder,
        "digest": recipe.digest,
    }
