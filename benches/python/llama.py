"""The state that the benchmarks of all programs save: layers like Llama's, each tensor with the two moments of Adam."""

import math

D, F = 2048, 5504
LAYER = [("q", (D, D)), ("k", (D, D)), ("v", (D, D)), ("o", (D, D)), ("gate", (F, D)), ("up", (F, D)),
         ("down", (D, F)), ("n1", (D,)), ("n2", (D,))]
KINDS = [("w", "bfloat16"), ("exp_avg", "float32"), ("exp_avg_sq", "float32")]


def tensors(gb):
    """Keys, shapes and names of element types of about so many gigabytes."""
    per = sum(math.prod(shape) for _, shape in LAYER) * 10
    for layer in range(max(1, int(gb * 1e9 / per))):
        for name, shape in LAYER:
            for kind, dtype in KINDS:
                yield f"layers.{layer}.{name}.{kind}", shape, dtype
