"""One read over many processes: each holds all queries and a piece of the slots.

For an additive rule the read is a sum over slots, so the processes read their pieces alone and
add up what they got:

    out = sum over processes of (sum over own slots j of u_ij v_j)      (one all_reduce)

A rule that is divided by its row sum sends that sum along as one more column. n_i counts the
visible slots of all processes, so that the weights are those of a single process. A rule of
centred scores needs mean and variance of a row first, two all_reduces of a number a row.

The result is the same on every process, and so must be the loss that is made from it. Then the
gradients of k and v are the process's own, and that of q is summed over the processes: all are
what one process with all slots would get. Shapes: B batch, H heads, Tq queries, T slots in all.
"""

from __future__ import annotations

from reluformer.context_parallel.reads import sharded_read
from reluformer.context_parallel.shards import Shards, agree, gather_rows, own_rows

__all__ = ["Shards", "agree", "gather_rows", "own_rows", "sharded_read"]
