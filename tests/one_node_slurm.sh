#!/usr/bin/env bash
# Slurm on this machine alone, for tests/test_cluster.py: Debian's packages, one node, root.
#     sudo bash tests/one_node_slurm.sh && python -m pytest -m slurm
set -euo pipefail
apt-get install --yes --quiet slurm-wlm > /dev/null
host=$(hostname -s)
memory=$(awk '/MemTotal/ {print int($2 / 1100)}' /proc/meminfo)  # megabytes, with some to spare
mkdir -p /etc/slurm /var/spool/slurmctld /var/spool/slurmd /var/log/slurm /run/munge
cat > /etc/slurm/slurm.conf <<CONF
ClusterName=one
SlurmctldHost=$host
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ReturnToService=2
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$host CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
chown -R munge: /etc/munge /var/lib/munge /var/log/munge /run/munge
pgrep munged > /dev/null || runuser -u munge -- /usr/sbin/munged --force
pkill slurmctld || true
pkill slurmd || true
sleep 2
slurmctld
slurmd
sleep 3
sinfo
