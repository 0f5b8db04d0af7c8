"""The metadata store in Redis, single or cluster."""
