#!/usr/bin/env bash
# sbatch configs/trainer/slurm.sh --config configs/classify.yaml: two nodes of four GPUs; going on where it was when queued again.
#SBATCH --job-name=classify
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=SIGUSR1@120
# Two minutes before the end the run saves last.ckpt and queues its job again; a job of the same id goes on from it.
exec srun .venv/bin/python -m project fit "$@" \
    --run "runs/$SLURM_JOB_NAME/job-$SLURM_JOB_ID" --ckpt_path auto \
    --trainer.strategy ddp --trainer.num_nodes "$SLURM_NNODES" --trainer.devices "$SLURM_NTASKS_PER_NODE"
