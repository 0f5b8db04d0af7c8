#!/bin/sh
# Prolog of Slurm: makes the folder in which the job mounts on this node, and which nobody else can enter.
# In slurm.conf: Prolog=/etc/slurm/dieselfs/prolog.sh and PrologFlags=Alloc, so that it runs before the first step.
set -eu
folders=/run/dieselfs-jobs
mkdir -p -m 755 "$folders"
install -d -o "$SLURM_JOB_UID" -m 700 "$folders/$SLURM_JOB_ID"
