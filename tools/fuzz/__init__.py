"""A mutation fuzzer over every parser of stored and received bytes (`make fuzz`)."""
