"""The CSI driver: Kubernetes mounts datasets as volumes of pods. It needs grpcio and protobuf (the extra `csi`)."""
