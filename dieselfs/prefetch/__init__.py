"""What of a plan is needed next, for the mount and for the library."""
