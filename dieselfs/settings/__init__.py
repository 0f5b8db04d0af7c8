"""The settings of all programs: one table, from which options, files, messages and documents are derived."""

from dieselfs.settings.table import Settings

__all__ = ["Settings"]
