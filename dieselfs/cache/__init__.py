"""The chunk cache of a process that reads with the library."""
