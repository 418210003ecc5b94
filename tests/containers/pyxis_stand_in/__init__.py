"""A stand-in for pyxis 0.24; ../README.md says what it does and what it leaves out."""
