"""A program of a job that is attached to the master of its node: reads all chunks, and runs until its input ends.

    python -m tests.support.attached_reader SERVER DATASET JOB NODE SECRET-FILE RUNTIME-FOLDER

After the last read it prints its figures as one line of JSON.
"""

import json
import os
import sys
from pathlib import Path

from dieselfs.cluster.attachment import Attachment
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.job import Job
from dieselfs.cluster.node_client import NodeClient, job_socket_path
from dieselfs.cluster.secret import read_secret_file
from dieselfs.dataset import connect
from dieselfs.sources.interface import Slices
from dieselfs.sources.server import is_intact


def main() -> None:
    server, dataset, name, node, secret_file, folder = sys.argv[1:]
    secret = read_secret_file(secret_file)
    with connect(dataset, server=server) as data:
        snapshot = data.snapshot
        path = job_socket_path(
            Path(folder), dataset, snapshot.digest, Job(name, 0, 1, node), secret.fingerprint()
        )
        daemon = NodeClient(path, snapshot.digest)
        attachment = Attachment(snapshot, data.chunks, daemon, node, JobCredential(secret))
        for chunk in range(snapshot.chunk_count):
            assert is_intact(data.snapshot, chunk, Slices.of_payload(attachment.source.fetch_chunk(chunk)))
        members = [[member.node, member.address.port] for member in attachment.members]
        counted = attachment.source.metrics.as_dict()
        print(json.dumps({"process": os.getpid(), "members": members, **counted}), flush=True)
        sys.stdin.read()
        attachment.close()


if __name__ == "__main__":
    main()
