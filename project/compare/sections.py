"""Logged metrics in the order in which they are shown: by section, what tells of the result first."""

X_AXES = frozenset({"epoch", "step", "examples"})  # what others are drawn over
FIRST = ("val", "test", "train", "learning rate", "gradient_norm", "speed")  # others follow by name


def section(metric: str) -> str:
    """``val`` of ``val/loss``; that of all learning rates is one."""
    return "learning rate" if metric.startswith("lr-") else metric.partition("/")[0]


def rank(metric: str) -> tuple[int, str, str]:
    """What to sort metrics by."""
    name = section(metric)
    return FIRST.index(name) if name in FIRST else len(FIRST), name, metric
