"""The chunk server: keeps chunks in an object store and their metadata in a metadata store, and serves both."""
