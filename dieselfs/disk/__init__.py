"""The disk tier of a node: chunks on a local disk, which survive jobs and restarts."""
