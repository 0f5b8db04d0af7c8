"""The prefetcher: stores files in the page cache ahead of the readers of a plan, and drops them behind the readers."""
