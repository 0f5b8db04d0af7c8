"""The nodes of a job as one cache: who belongs to it, which node owns which chunk, and how nodes ask each other."""
