#!/bin/bash
# Two sites of one Slurm federation as a heterogeneous job: 2 nodes x 8 GPUs in each, one replica a site.
# Change: partitions, the interface, the runs folder (all nodes must see it, or give --checkpoint-to s3://...).
#SBATCH --job-name=diloco
#SBATCH --partition=site-a --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --time=24:00:00
#SBATCH hetjob
#SBATCH --partition=site-b --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --time=24:00:00
set -euo pipefail

export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
# Site A's hosts first, then site B's: a site's ranks must be neighbours, so that its island never spans the slow line.
hosts=($(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0") $(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1"))
export HOSTS="${hosts[*]}" MASTER_ADDR="${hosts[0]}" NODES="${#hosts[@]}"

srun --het-group=0,1 bash -c '
    read -ra hosts <<<"$HOSTS"
    for rank in "${!hosts[@]}"; do [ "${hosts[$rank]}" = "$(hostname -s)" ] && break; done
    exec torchrun --nnodes "$NODES" --node-rank "$rank" --nproc-per-node 8 --master-addr "$MASTER_ADDR" --master-port 29500 \
        -m diloco train --size 1.3b --mesh replica=2,fsdp=16 --precision bf16 --sync-every 100 --fragments strided:3 \
        --overlap 5 --codec e3m0 --data.sources /data/corpus --runs /shared/runs --name two-sites
'
