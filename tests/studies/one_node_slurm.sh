#!/bin/bash
# A SLURM cluster of one node, this machine, without accounting and cgroups: enough for the launcher's tests.
#
#   apt-get install slurm-wlm munge              # Debian 12; run the rest as root
#   tests/studies/one_node_slurm.sh start DIR    # DIR: an empty directory for its configuration, state and logs
#   export SLURM_CONF=DIR/slurm.conf
#   tests/studies/one_node_slurm.sh stop DIR
set -euo pipefail
[ $# = 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$2"
directory=$(realpath "$2")
export SLURM_CONF=$directory/slurm.conf

if [ "$1" = stop ]; then
  for daemon in slurmd slurmctld munged; do
    [ ! -f "$directory/$daemon.pid" ] || kill "$(cat "$directory/$daemon.pid")" || true
  done
  exit
fi

host=$(hostname -s)
memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
mkdir -p "$directory/state" "$directory/spool"
chmod 755 "$directory"
cat > "$SLURM_CONF" <<END
ClusterName=one_node
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$directory/munge.socket
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/slurmd.pid
SlurmctldLogFile=$directory/slurmctld.log
SlurmdLogFile=$directory/slurmd.log
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
END

# munge refuses a socket or a key in directories that others may write to; --force turns that into a warning.
head -c 128 /dev/urandom > "$directory/munge.key"
chmod 600 "$directory/munge.key"
munged --force --key-file="$directory/munge.key" --socket="$directory/munge.socket" --pid-file="$directory/munged.pid" \
  --log-file="$directory/munged.log" --seed-file="$directory/munged.seed"
slurmctld
slurmd
for _ in $(seq 60); do
  if sinfo --noheader --format=%t 2> /dev/null | grep -q idle; then
    sinfo
    exit
  fi
  sleep 0.5
done
echo "the node did not become idle; see $directory/slurmctld.log and $directory/slurmd.log" >&2
exit 1
