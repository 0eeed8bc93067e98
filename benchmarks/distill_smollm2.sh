#!/bin/sh
# An hour on one CPU core: a draft of four layers for SmolLM2-135M, and its speed as one.
# RESULTS.md holds the figures; a run that was interrupted goes on where it stopped.
set -eu
python tools/smollm2.py --out build/smollm2
OMP_NUM_THREADS=1 smcprog distill --target build/smollm2/target --layers 0,1,2,29 \
    --out build/smollm2/distilled --minutes 60 "$@"
python benchmarks/speed.py --target build/smollm2/target --draft build/smollm2/distilled \
    --dtype float32
