"""How much a user may store, read and write: quotas, rates, and what was used."""
