"""The nodes of a job as one cache: its members, the owners of chunks, and the requests between nodes."""
