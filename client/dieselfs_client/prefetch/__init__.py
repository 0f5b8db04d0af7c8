"""Fetches files into the page cache ahead of the readers of a plan, and drops them behind the readers."""
