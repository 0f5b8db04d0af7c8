"""What the nodes of a job do for each other: `service` answers, `client` asks, `source` has it all for the node."""
