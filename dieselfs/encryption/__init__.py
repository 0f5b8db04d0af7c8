"""Encryption at rest by the client: docs/reference/encryption.md is the format."""
