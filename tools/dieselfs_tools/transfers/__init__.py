"""Uploads, downloads, copies and comparisons of folders."""
