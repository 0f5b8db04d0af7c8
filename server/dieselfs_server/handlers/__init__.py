"""What the server does for each call of `dieselfs.thrift`, one module for each kind of call.

Importing this package makes all of them known to the service.
"""

from dieselfs_server.handlers import administration, datasets, jobs, maintenance, reading, writing

__all__ = ["administration", "datasets", "jobs", "maintenance", "reading", "writing"]
