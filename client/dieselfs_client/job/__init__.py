"""A daemon's part in the pooled memory of its job."""
