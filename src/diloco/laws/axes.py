"""The columns that laws know by name: canonical names (as in a run's row.csv), their aliases, and derived axes."""

from __future__ import annotations

import math
import numbers
import re
import unicodedata

TOKENS_PER_PARAM = "tokens_per_param"
"""Derived where the rows have tokens and params."""

SIZE_AXES = ("params", "params_body", "params_embedding", "flops", "tokens")
"""What "largest" means for a hold-out: the first of these that a form uses."""

SIZES = ("params", "params_body", "params_embedding")
"""Ways to count one model; the first is the whole, the others are parts of it."""

COUNTING_AXES = ("params", "params_body")
"""Ways to count one model's size; a law may use any, and answers differ between them."""

AXES = (
    *("params", "params_body", "params_embedding", "tokens", TOKENS_PER_PARAM, "flops", "replicas", "sync_every"),
    *("fragments", "overlap", "batch_tokens", "inner_lr", "outer_lr", "outer_momentum", "bytes_sent", "seconds"),
)
"""Numbers that a form may use without being asked for by a rows file of its own."""

INPUTS = ("params", "tokens", "replicas", "sync_every", "fragments", "overlap", "batch_tokens", "inner_lr", "outer_lr")
"""What a person sets before a run, as against what comes out of it."""

LOSS, LOSS_SE, WEIGHT, FRACTION_DONE = "loss", "loss_se", "weight", "fraction_done"
NUMBERS = (*AXES, LOSS, LOSS_SE, WEIGHT, FRACTION_DONE, "seed")

GROUPS = (
    *("group", "method", "codec", "merge", "tokenizer", "dataset", "eval_set", "schedule", "annealed"),
    *("optimizer", "architecture"),
)
"""Columns in which rows of one law must agree: losses are not comparable across them."""

STATUS = "status"
FINISHED = frozenset({"finished", "done", "complete", "completed", "ok", "success", "succeeded"})
UNFINISHED = frozenset(
    "unfinished running failed crashed diverged killed stopped preempted incomplete pending queued cancelled canceled "
    "aborted timeout error".split()
)
TEXTS = (*GROUPS, STATUS, "run", "model")

LIKE_A_LOSS = re.compile(r"(^|_)(loss|bp[bc]|bits|ppl|perplexity|nll|ce|cross_entropy|error|err)(_|$|es$)")
"""In the name of a column that nobody called the loss and that may be one."""

UNAMBIGUOUS = frozenset({*NUMBERS, *GROUPS, STATUS} - {"seed"})
"""What a table may hold one column of, under any of its names: runs may have several names and seeds."""

ALIASES = {
    "params": "n n_params num_params params_total parameters model_size n_total model_params",
    "params_body": "params_no_embed n_no_emb non_embedding_params params_non_embedding params_transformer",
    "params_embedding": "embedding_params params_embed",
    "tokens": "d n_tokens num_tokens tokens_trained training_tokens total_tokens train_tokens dataset_size",
    TOKENS_PER_PARAM: "token_multiple",
    "flops": "c compute training_flop training_flops flops_budget train_flops",
    "replicas": "m workers n_replicas num_replicas n_workers num_workers diloco_workers",
    "sync_every": "h inner_steps local_steps sync_interval",
    "batch_tokens": "b batch_size_in_tokens global_batch_tokens batch_size_tokens",
    "inner_lr": "lr peak_lr learning_rate learning_rate_peak",
    "outer_lr": "eta outer_learning_rate best_outer_lr",
    LOSS: "l eval_loss val_loss valid_loss validation_loss test_loss final_loss eval_loss_c4 val_bpb",
    LOSS_SE: "loss_stderr loss_std_error",
    WEIGHT: "weights",
    FRACTION_DONE: "portion_steps_elapsed progress fraction_complete",
    STATUS: "state run_status",
    "method": "algorithm",
    "dataset": "data corpus train_set",
    "run": "name run_id run_name training_run_id",
    "seed": "optimizer_seed",
}
_CANONICAL = {alias: name for name, aliases in ALIASES.items() for alias in aliases.split()}
_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)([kmbt]?)", re.IGNORECASE)


def canonical(header: str) -> str:
    """The name that laws use for a column: lower case, underscores, aliases replaced, and one of two look-alike signs.

    The last as Python's parser does it, which reads the expressions: a micro sign and a Greek mu are the same name.
    """
    name = re.sub(r"[\s/\-]+", "_", unicodedata.normalize("NFKC", header.strip()).lower())
    return _CANONICAL.get(name, name)


def number(text: object) -> float | None:
    """A number as people write it: 1e9, 24_000, 35M, 1.3b; NaN for "nan", None for what is no number."""
    if isinstance(text, numbers.Complex) and not isinstance(text, numbers.Real):
        return None
    if not isinstance(text, (str, bytes)) and hasattr(text, "__float__"):
        try:
            return float(text)  # type: ignore[arg-type]
        except OverflowError:
            return math.inf
    stripped = str(text).strip()
    if stripped.lower() in ("nan", "inf", "-inf", "infinity"):
        return float(stripped)
    match = _NUMBER.fullmatch(stripped)
    return float(match[1].replace("_", "")) * _SUFFIX[match[2].lower()] if match else None
