"""Upload and download of trees, and the single writes of the library."""
