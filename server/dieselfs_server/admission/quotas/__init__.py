"""Quotas: what datasets and users may store."""
