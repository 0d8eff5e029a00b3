#!/usr/bin/env bash
# Train Qwen3-8B on dapo-math-17k with slime on one node of 8 GPUs:  bash examples/slime_math/run.sh
# README.md lists the requirements. Paths come from the environment; the defaults fit slime's image.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SLIME=${SLIME:-/root/slime}
MEGATRON=${MEGATRON:-/root/Megatron-LM}
MODELS=${MODELS:-/root/models}
export DATA=${DATA:-/root/data}
GPUS=${GPUS:-8}
ROLLOUTS=${ROLLOUTS:-500}

# Fail now if there is no sandbox, not after the model is loaded.
PYTHONPATH="$HERE" python3 -c "import math_agent; math_agent.python_tool()"

# Sets MODEL_ARGS: the shape of the model, which Megatron does not read from a checkpoint.
source "$SLIME/scripts/models/qwen3-8B.sh"

AGENT=(
    # The agent. The function includes the reward, so there is no --rm-type and no --custom-rm-path; the agent
    # renders its own prompts, so there is no --apply-chat-template.
    --custom-generate-function-path math_agent.generate
    --eval-config "$HERE/aime.yaml"
    --eval-interval 20
)
CHECKPOINTS=(
    --hf-checkpoint "$MODELS/Qwen3-8B"
    --ref-load "$MODELS/Qwen3-8B_torch_dist"
    --load "$MODELS/Qwen3-8B_math" # continues from here if there is a checkpoint
    --save "$MODELS/Qwen3-8B_math"
    --save-interval 20
)
ROLLOUT=(
    --prompt-data "$DATA/dapo-math-17k/dapo-math-17k.jsonl"
    --input-key prompt
    --label-key label
    --rollout-shuffle
    --num-rollout "$ROLLOUTS"
    --rollout-batch-size 32
    --n-samples-per-prompt 8
    --global-batch-size 256
    --rollout-max-response-len 16384 # all turns and tool results of an episode together
    --rollout-temperature 1
    --balance-data
)
ALGORITHM=(
    --advantage-estimator grpo
    --eps-clip 0.2
    --eps-clip-high 0.28
    --entropy-coef 0.0
    --use-kl-loss
    --kl-loss-coef 0.0
    --kl-loss-type low_var_kl
    # Every sample has the engine's logprobs: correct for the difference between engine and trainer.
    --use-tis
)
OPTIMIZER=(
    --optimizer adam
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)
PARALLEL=(
    --tensor-model-parallel-size 2
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 18432 # with TP 2 an episode of 16384 tokens and its prompt fits
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --accumulate-allreduce-grads-in-fp32
    --attention-softmax-in-fp32
    --attention-backend flash
)
ENGINE=(
    --actor-num-nodes 1
    --actor-num-gpus-per-node "$GPUS"
    --colocate # engine and trainer take turns on the same GPUs
    --rollout-num-gpus-per-engine 2
    --sglang-mem-fraction-static 0.6
)
TRACKING=()
if [ -n "${WANDB_KEY:-}" ]; then
    TRACKING=(--use-wandb --wandb-project strands-sglang --wandb-group qwen3-8b-math --wandb-key "$WANDB_KEY")
fi

nvlink=$(nvidia-smi topo -m 2>/dev/null | grep -q 'NV[0-9]' && echo 1 || echo 0)
environment=$(
    printf '{"env_vars": {"PYTHONPATH": "%s:%s:%s", "DATA": "%s", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "%s"}}' \
        "$MEGATRON" "$SLIME" "$HERE" "$DATA" "$nvlink"
)

ray status >/dev/null 2>&1 || ray start --head --num-gpus "$GPUS" --disable-usage-stats
cd "$SLIME"
ray job submit --runtime-env-json "$environment" -- python3 train.py \
    "${MODEL_ARGS[@]}" "${AGENT[@]}" "${CHECKPOINTS[@]}" "${ROLLOUT[@]}" "${ALGORITHM[@]}" "${OPTIMIZER[@]}" \
    "${PARALLEL[@]}" "${ENGINE[@]}" "${TRACKING[@]}"
