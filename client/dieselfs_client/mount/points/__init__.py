"""Mount points: making, finding, replacing and removing mounts."""
