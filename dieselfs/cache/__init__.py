"""The memory of a job as one cache: chunks in memory, the members of the job, and who has which chunk."""
