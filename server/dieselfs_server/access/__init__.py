"""Who a caller is, and what that user may do: accounts, rights, certificates."""
