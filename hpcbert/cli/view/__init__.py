"""The full-screen view of `hpcbert monitor`."""
