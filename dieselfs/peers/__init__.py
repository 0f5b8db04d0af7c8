"""How the nodes of a job ask each other for chunks: whose a chunk is, whom to trust, and what came."""
