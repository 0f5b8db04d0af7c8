#!/bin/bash
# Epilog of Slurm: removes what a job has left on this node, however it ended: mounts, daemons, sockets, the folder.
# In slurm.conf: Epilog=/etc/slurm/dieselfs/epilog.sh. If it fails, Slurm drains the node.
set -u
folder=/run/dieselfs-jobs/$SLURM_JOB_ID
[ -d "$folder" ] || exit 0
KILL_AFTER_S=5

mounts() { awk -v folder="$folder/" 'index($5, folder) == 1 { print $5 }' /proc/self/mountinfo | sort -r; }

# Processes of the job's user with the number of this job in their environment, which daemons inherit.
processes() {
    [ "$SLURM_JOB_UID" != 0 ] || return 0
    for process in $(pgrep -U "$SLURM_JOB_UID"); do
        grep -qzx "SLURM_JOB_ID=$SLURM_JOB_ID" "/proc/$process/environ" 2> /dev/null && echo "$process"
    done
}

# A user can change the folders above a mount point, so root unmounts root's mounts alone.
unmount() {
    if [ "$SLURM_JOB_UID" = 0 ]; then umount --lazy -- "$1"; return; fi
    setpriv --reuid "$SLURM_JOB_UID" --regid "$(id -g "$SLURM_JOB_UID")" --init-groups fusermount3 -u -z -- "$1"
}

mounts | while read -r mountpoint; do
    printf -v path '%b' "$mountpoint"
    unmount "$path"
done
end=$((SECONDS + KILL_AFTER_S))
signal=TERM
while left=$(processes) && [ -n "$left" ]; do
    kill -s "$signal" $left 2> /dev/null
    sleep 0.2
    [ "$SECONDS" -lt "$end" ] || signal=KILL
    [ "$SECONDS" -lt "$((end + KILL_AFTER_S))" ] || { echo "dieselfs: job $SLURM_JOB_ID left processes: $left" >&2; exit 1; }
done
[ -z "$(mounts)" ] && rm -rf --one-file-system "$folder"
