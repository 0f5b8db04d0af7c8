"""Imports, exports and attachments of datasets in other formats."""
