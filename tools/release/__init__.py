"""Builds, compares, tries and signs what a release consists of, without publishing it: `make release`.

docs/internals/releases.md says what the files are, and how to verify them.
"""
