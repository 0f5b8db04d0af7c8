"""Large jobs and caches: the real code under a simulated clock, and models."""
