"""What runs on a training node: the mount and the chunks that it holds in memory."""
