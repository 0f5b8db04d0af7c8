"""Where the bytes of chunks come from: the interface, a server, and wrappers around a source."""
