"""Ask the registries for every image that a recipe names: `make check-images`.

The protocol is the distribution project's: a manifest by name and tag, with an anonymous token from
the realm that the registry names (distribution/distribution, docs/spec/auth/token.md).
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from hpcbert.config import recipe
from hpcbert.container.reference import Image, parse_reference

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
_MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
)
_FIELD = re.compile(r'(\w+)="([^"]*)"')
_SECONDS = 30.0


def list_images() -> Iterator[tuple[str, Image]]:
    """Yield the recipes' names with the images that they name, bases included."""
    for path in sorted(TEMPLATES.glob("*/recipe.toml")):
        image = recipe.load(path.parent).image
        for text in filter(None, (image.reference, image.base)):
            yield path.parent.name, parse_reference(text)


def ask_registry(image: Image, scheme: str = "https") -> str:
    """Return a registry's answer about an image: `there`, or why not."""
    url = f"{scheme}://{image.registry}/v2/{image.name}/manifests/{image.digest or image.tag}"
    headers = {"Accept": ",".join(_MANIFESTS)}
    try:
        try:
            _open(url, headers)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge.startswith("Bearer "):
                raise
            _open(url, {**headers, "Authorization": f"Bearer {_fetch_token(challenge)}"})
    except urllib.error.HTTPError as error:
        return f"refused: {error.code} {error.reason}"
    except OSError as error:
        return f"no answer: {error}"
    return "there"


def _fetch_token(challenge: str) -> str:
    fields = dict(_FIELD.findall(challenge))
    realm = fields.pop("realm")
    answer = json.loads(_open(f"{realm}?{urllib.parse.urlencode(fields)}", {}))
    return str(answer.get("token") or answer.get("access_token"))


def _open(url: str, headers: dict[str, str]) -> bytes:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_SECONDS) as response:
        return bytes(response.read())


def main() -> int:
    """Print a line for each image; 1 if one is not there."""
    answers = [(name, image, ask_registry(image)) for name, image in list_images()]
    for name, image, answer in answers:
        sys.stdout.write(f"{name:<18}  {image.uri}  {answer}\n")
    return int(any(answer != "there" for _, _, answer in answers))


if __name__ == "__main__":
    sys.exit(main())
