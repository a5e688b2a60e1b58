"""`python -m reluformer`, which is what `accelerate launch -m reluformer` needs."""

from reluformer.cli import main

main()
