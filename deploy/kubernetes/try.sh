#!/bin/sh
# Runs deploy/kubernetes in the cluster of `kubectl`: a server, an upload, the mounts of the nodes, and a pod that reads
# all the time. Then a daemon of the mount is killed, then the server is replaced, then the container of the mount is
# killed. The same dataset is read from volumes of the CSI driver, while its plugin is killed.
#
#   deploy/kubernetes/try.sh [IMAGE]         # dieselfs:VERSION by default; the nodes must have it, or can pull it
#
# Needs a cluster that allows privileged pods, makes volumes for claims, and lets pods reach the issuer of its tokens.
# Everything is in the namespace dieselfs, which must not exist before. It is removed at
# the end; KEEP=1 leaves it.
set -eu
cd "$(dirname "$0")"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' ../../dieselfs/__init__.py)
image=${1:-dieselfs:$version}
files=300

on() { kubectl --namespace dieselfs "$@"; }
clean() {
    if [ -z "${KEEP:-}" ]; then
        # Volumes end before their driver: without it, their pod would stay.
        on delete pod volumes --ignore-not-found --timeout 60s >/dev/null || true
        kubectl delete namespace dieselfs --ignore-not-found --timeout 120s >/dev/null || true
        kubectl delete clusterrolebinding,csidriver,persistentvolume -l dieselfs-try >/dev/null || true
    fi
    rm -rf "$scratch"
}
step() { printf '%s\n' "== $1"; }
fail() { printf '%s\n' "try.sh: $1" >&2; exit 1; }
# wait_for SECONDS COMMAND...
wait_for() {
    seconds=$1; shift
    until "$@" 2>/dev/null; do
        seconds=$((seconds - 1)); [ "$seconds" -gt 0 ] || fail "still fails: $*"
        sleep 1
    done
}
objects() { sed -e "s|image: dieselfs:.*|image: $image|" -e 's/memory=16GiB/memory=12MiB/' "$1"; }
server() {
    on exec dieselfs-server-0 -c server -- env DIESELFS_SERVER=unix:/var/lib/dieselfs/server.sock \
        DIESELFS_KEY_FILE=/var/lib/dieselfs/keys/admin.key "$@"
}
# The pod of the mounts on the node where the reader runs; a field of it.
mounts() {
    on get pods -l app.kubernetes.io/component=nodes -o "jsonpath={.items[0]$1}" \
        --field-selector "spec.nodeName=$(on get pod training -o 'jsonpath={.spec.nodeName}')"
}
node() { on exec "$(mounts .metadata.name)" -- "$@"; }
restarts() { mounts '.status.containerStatuses[0].restartCount'; }
# A number of the reader, which is the pod training at first.
reader=training
count() { on exec "$reader" -- python3 -c "import json; print(json.load(open('/tmp/counts'))['$1'])"; }
has_read() { [ "$(count epochs)" -ge "$1" ]; }
# read_on EPOCHS: the reader starts and ends that many.
read_on() { wait_for 120 has_read $(($(count epochs) + $1 + 1)); }
has_failed_no_more_than() {
    [ "$(count wrong)" = 0 ] || fail "$(count wrong) files had wrong bytes"
    [ "$(count failed)" -le "$1" ] || fail "$(count failed) reads failed, not $1"
}
# `rollout status` refuses a DaemonSet that is updated when its pods are deleted.
nodes_are_ready() {
    [ "$(on get daemonset/dieselfs-nodes -o 'jsonpath={.status.numberReady}/{.status.desiredNumberScheduled}')" != 0/0 ] &&
        [ "$(on get daemonset/dieselfs-nodes -o 'jsonpath={.status.numberUnavailable}')" = "" ]
}
has_restarted() { [ "$(restarts)" -gt "$before" ]; }

if kubectl get namespace dieselfs >/dev/null 2>&1; then fail "the namespace dieselfs exists"; fi
scratch=$(mktemp -d)
trap clean EXIT
trap 'exit 130' INT TERM

step "a new store and its server, without rights"
kubectl create namespace dieselfs >/dev/null
objects first-start.yaml | on apply -f - >/dev/null
on rollout status statefulset/dieselfs-server --timeout 300s
objects server.yaml | on apply -f - >/dev/null
on rollout status statefulset/dieselfs-server --timeout 300s

step "an upload, and a key for the nodes"
server sh -euc "
    mkdir /tmp/files
    for number in \$(seq $files); do head -c 200000 /dev/urandom > /tmp/files/\$number; done
    dlcmd put -r /tmp/files/ dl://imagenet/
    cd /tmp/files && sha256sum * > /tmp/sums
    dlcmd user add nodes --out /tmp/nodes.key
    dlcmd user grant nodes imagenet read
    dlcmd user add anna --out /tmp/anna.key
    dlcmd user grant anna imagenet read"
server cat /tmp/nodes.key > "$scratch/key"
server cat /tmp/sums > "$scratch/sums"
on create secret generic dieselfs-node-key --from-file=key="$scratch/key" >/dev/null
server cat /tmp/anna.key > "$scratch/key"
on create secret generic dieselfs-key --from-file=key="$scratch/key" >/dev/null
cat > "$scratch/reader.py" <<'PYTHON'
"""Reads and verifies all files of the folders in random order again and again, past the page cache: /tmp/counts."""

import hashlib
import json
import os
import random
import sys
import time

sums = dict(reversed(line.split()) for line in open("/reader/sums"))
counts = {"epochs": 0, "failed": 0, "wrong": 0, "seconds_of_failures": 0.0}
while True:
    paths = [os.path.join(folder, name) for folder in sys.argv[1:] for name in sums]
    for path in random.sample(paths, len(paths)):
        start_s = time.monotonic()
        try:
            with open(path, "rb") as file:
                content = file.read()
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            counts["wrong"] += hashlib.sha256(content).hexdigest() != sums[os.path.basename(path)]
        except OSError:
            counts["failed"] += 1
            time.sleep(0.01)
            counts["seconds_of_failures"] += time.monotonic() - start_s
    counts["epochs"] += 1
    with open("/tmp/next", "w") as file:
        json.dump(counts, file)
    os.replace("/tmp/next", "/tmp/counts")
PYTHON
on create configmap reader --from-file="$scratch/sums" --from-file="$scratch/reader.py" >/dev/null

step "the mounts of the nodes"
objects nodes.yaml | on apply -f - >/dev/null
wait_for 120 nodes_are_ready

step "a pod that reads and verifies the dataset again and again"
on apply -f - >/dev/null <<POD
apiVersion: v1
kind: Pod
metadata: {name: training}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: training
      image: $image
      imagePullPolicy: IfNotPresent
      command: [python3, /reader/reader.py, /data/imagenet]
      resources: {limits: {memory: 40Mi}}   # the page cache counts: less than the dataset, so the daemon is needed
      volumeMounts:
        - {name: data, mountPath: /data, readOnly: true, mountPropagation: HostToContainer}
        - {name: reader, mountPath: /reader}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: data, hostPath: {path: /var/lib/dieselfs-mounts, type: Directory}}
    - {name: reader, configMap: {name: reader}}
    - {name: tmp, emptyDir: {}}
POD
on wait pod/training --for condition=Ready --timeout 120s >/dev/null
wait_for 120 on exec training -- test -e /tmp/counts
read_on 1

step "the daemon of the mount is killed: another one takes over, and no read fails"
# shellcheck disable=SC2016
node sh -c 'kill -9 $(grep -l "^dieselfs-daemon\$" /proc/[0-9]*/comm | cut -d / -f 3)'
read_on 2
has_failed_no_more_than 0

step "the server is replaced, and accepts the service accounts of the cluster: no read fails"
issuer=$(kubectl get --raw /.well-known/openid-configuration | sed 's/.*"issuer":"\([^"]*\)".*/\1/')
# Pods and servers read the cluster's keys without a login: docs/guide/identity-provider.md.
kubectl delete clusterrolebinding dieselfs-try --ignore-not-found >/dev/null   # of a run that was killed
kubectl create clusterrolebinding dieselfs-try --clusterrole=system:service-account-issuer-discovery \
    --group=system:unauthenticated >/dev/null
kubectl label clusterrolebinding dieselfs-try dieselfs-try= >/dev/null
on get configmap dieselfs-server -o 'jsonpath={.data.server\.toml}' > "$scratch/server.toml"
cat >> "$scratch/server.toml" <<TOML

oidc_issuer = "$issuer"
oidc_ca = "/etc/dieselfs/cluster/ca.crt"
oidc_user_claim = "sub"
TOML
on create configmap dieselfs-server --from-file="$scratch/server.toml" --dry-run=client -o yaml |
    on apply -f - >/dev/null
on patch statefulset dieselfs-server --type json --patch '[
    {"op": "add", "path": "/spec/template/spec/volumes/-",
     "value": {"name": "cluster", "configMap": {"name": "kube-root-ca.crt"}}},
    {"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-",
     "value": {"name": "cluster", "mountPath": "/etc/dieselfs/cluster", "readOnly": true}}]' >/dev/null
on rollout status statefulset/dieselfs-server --timeout 300s
read_on 2
has_failed_no_more_than 0

step "the container of the mount is killed: Kubernetes starts it again, and the running pod reads on"
before=$(restarts)
node sh -c 'kill -9 -1' >/dev/null 2>&1 || true   # ends this shell too
wait_for 120 has_restarted
wait_for 120 nodes_are_ready
read_on 1
failed=$(count failed)
read_on 2
has_failed_no_more_than "$failed"
result="$(count epochs) epochs of $files files, none wrong; reads failed for $(count seconds_of_failures) s"

step "the mounts are removed: nothing stays on the node"
on delete daemonset/dieselfs-nodes >/dev/null
on wait pod -l app.kubernetes.io/component=nodes --for delete --timeout 120s >/dev/null
on exec training -- sh -c '! grep -q " /data/" /proc/self/mounts' || fail "the dataset is still mounted"
on delete pod training >/dev/null

step "volumes of the CSI driver: by the key of the nodes, by a secret, and by the service account of the pod"
objects csi.yaml | on apply -f - >/dev/null
kubectl label csidriver csi.dieselfs dieselfs-try= >/dev/null
on rollout status daemonset/dieselfs-csi --timeout 120s 2>/dev/null ||
    wait_for 120 on wait pod -l app.kubernetes.io/component=csi --for condition=Ready --timeout 5s >/dev/null
kubectl apply -f - >/dev/null <<VOLUMES
apiVersion: v1
kind: PersistentVolume
metadata: {name: dieselfs-try-imagenet, labels: {dieselfs-try: ""}}
spec:
  capacity: {storage: 1Ti}
  accessModes: [ReadOnlyMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {namespace: dieselfs, name: imagenet}
  csi:
    driver: csi.dieselfs
    volumeHandle: imagenet
    readOnly: true
    volumeAttributes: {dataset: "dl://imagenet", memory: 12MiB}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: imagenet, namespace: dieselfs}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: dieselfs-try-imagenet
  resources: {requests: {storage: 1Ti}}
---
apiVersion: v1
kind: Pod
metadata: {name: volumes, namespace: dieselfs}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: reader
      image: $image
      imagePullPolicy: IfNotPresent
      command: [python3, /reader/reader.py, /node, /secret, /account]
      resources: {limits: {memory: 40Mi}}
      volumeMounts:
        - {name: node, mountPath: /node, readOnly: true}
        - {name: secret, mountPath: /secret, readOnly: true}
        - {name: account, mountPath: /account, readOnly: true}
        - {name: reader, mountPath: /reader}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: node, persistentVolumeClaim: {claimName: imagenet, readOnly: true}}
    - name: secret
      csi:
        driver: csi.dieselfs
        readOnly: true
        volumeAttributes: {dataset: "dl://imagenet", memory: 12MiB}
        nodePublishSecretRef: {name: dieselfs-key}
    - name: account
      csi: {driver: csi.dieselfs, readOnly: true, volumeAttributes: {dataset: "dl://imagenet", memory: 12MiB}}
    - {name: reader, configMap: {name: reader}}
    - {name: tmp, emptyDir: {}}
VOLUMES
# The first login of the service account is refused until its user has a right: the volume waits for it.
server_knows() { server dlcmd user grant oidc:default@dieselfs imagenet read >/dev/null 2>&1; }
wait_for 120 server_knows
on wait pod/volumes --for condition=Ready --timeout 180s >/dev/null
reader=volumes
wait_for 120 on exec volumes -- test -e /tmp/counts
read_on 1
step "the plugin is killed: it starts again, and no read fails"
plugin() { on exec daemonset/dieselfs-csi -- "$@"; }
# shellcheck disable=SC2016
plugin sh -c 'kill -9 $(grep -l "dieselfs-csi" /proc/[0-9]*/comm | cut -d / -f 3)'
read_on 1
has_failed_no_more_than 0
volumes="$(count epochs) epochs of 3 volumes"
on delete pod volumes --timeout 120s >/dev/null
plugin sh -c '! grep -q "/volumes/kubernetes.io~csi/.* fuse\|erofs" /proc/self/mounts' ||
    fail "a volume is still mounted"
echo "all of it works with $image: $result, while the mount had no container; $volumes"
