"""Places in this checkout."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TEMPLATES = REPOSITORY / "templates"
SITE = REPOSITORY / "site.toml"
REFERENCE = REPOSITORY / "docs" / "reference"
