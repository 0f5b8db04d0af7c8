"""Real servers for tests: those of the laboratory."""

from lab.ports import free_port
from lab.server import RunningServer, running_server, running_servers, start_server

__all__ = ["RunningServer", "free_port", "running_server", "running_servers", "start_server"]
