"""The version of the distribution, written once: pyproject.toml reads it here."""

VERSION = "0.1.0"
