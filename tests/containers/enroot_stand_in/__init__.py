"""A stand-in for enroot 4.1; ../README.md says what it does and what it leaves out."""
