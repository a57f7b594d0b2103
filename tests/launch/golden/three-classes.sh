#!/bin/bash -l
# three-classes on site three-classes: GPU-hours at most 16 (h800 4, h20 4, l40s 8), cost at most 20.2; time limit 02:00:00
# Written by rollart-hpc submit. The supervisor below starts and watches every process of the run.
#SBATCH --job-name=rollart-three-classes-d8cc1dab
#SBATCH --partition=fat.cpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=2G
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH --signal=B:USR1@120
#SBATCH --chdir='/shared/runs/quick start 100%'
#SBATCH --output='/shared/runs/quick start 100%%/slurm/%x-%j.log'
#SBATCH --open-mode=append
#SBATCH hetjob
#SBATCH --job-name=rollart-three-classes-d8cc1dab
#SBATCH --partition=h800
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=3
#SBATCH --mem=5G
#SBATCH --gres=gpu:h800:2
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH hetjob
#SBATCH --job-name=rollart-three-classes-d8cc1dab
#SBATCH --partition=h20
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=3
#SBATCH --mem=5G
#SBATCH --gres=gpu:h20:2
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH hetjob
#SBATCH --job-name=rollart-three-classes-d8cc1dab
#SBATCH --partition=l40s
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=31G
#SBATCH --gres=gpu:l40s:4
#SBATCH --exclusive
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH hetjob
#SBATCH --job-name=rollart-three-classes-d8cc1dab
#SBATCH --partition=io-cpu_2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=3
#SBATCH --mem=3G
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE

unset CUDA_VISIBLE_DEVICES  # this script's own GPUs, if any, must not leak into steps without GPUs

exec /opt/rollart/bin/python -P -m rollart_hpc.launch.slurm.job --run-dir '/shared/runs/quick start 100%'
