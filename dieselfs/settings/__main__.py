"""`python -m dieselfs.settings` prints the table of settings for docs/reference/settings.md. No I/O but the output."""

from dieselfs.settings.reference import reference

print(reference(), end="")
