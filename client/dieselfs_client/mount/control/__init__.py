"""The folder `.dieselfs/` in the root of a mount."""
