"""How large an image is, asked of a real registry without an account."""

from __future__ import annotations

import json

import pytest

from hpcbert.container import reference
from hpcbert.container.registry import compressed_bytes
from tests.kit.registry import Registry, serving_tiny


def size_by(registry: Registry, tag: str = "1.0") -> int | None:
    image = reference.parse(registry.uri(f"bert/tiny:{tag}"))
    return compressed_bytes(image, http=True)


@pytest.mark.parametrize("oci", [False, True])
def test_the_size_is_that_of_the_layers(oci: bool) -> None:
    with Registry() as registry:
        layers = [{"a": b"one" * 999}, {"b": bytes(range(256)) * 99}]
        digest = registry.push("bert/tiny:1.0", [*layers], oci=oci)
        manifest = json.loads(registry.manifest("bert/tiny", "1.0"))
        assert size_by(registry) == sum(layer["size"] for layer in manifest["layers"]) > 0
        image = reference.parse(registry.uri(f"bert/tiny@{digest}"))
        assert compressed_bytes(image, http=True) == size_by(registry)


def test_a_token_for_anybody_is_asked_for() -> None:
    with serving_tiny(auth="bearer", anonymous=True) as registry:
        assert size_by(registry)
        assert any(one.path.startswith("/token?service=registry") for one in registry.requests)


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_what_wants_an_account_stays_unknown(auth: str) -> None:
    with serving_tiny(auth=auth, user="bob", password="word") as registry:
        assert size_by(registry) is None


def test_what_is_not_there_stays_unknown() -> None:
    with Registry() as registry:
        assert size_by(registry) is None
    assert size_by(registry) is None  # nobody listens any more
