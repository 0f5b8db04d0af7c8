"""The registry of servers in etcd: client, keys, and a helper process for forked children."""
