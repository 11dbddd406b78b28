"""The article's numbers beside the paper's tables (arXiv:2503.09799), with the arithmetic, as Markdown.

    python studies/laws/article.py

`docs/article.md` holds what this prints. The article's Phi is params and its N replicas; it prints no alpha.
"""

from __future__ import annotations

from collections.abc import Iterable

from diloco.laws import fit_law, published_law
from diloco.laws import published as pub

BETA, GAMMA, L_INF = (pub.ARTICLE_LOSS[name] for name in ("beta", "gamma", "L_inf"))
REPLICAS = (1, 2, 4, 8, 16)
MOMENTUM = 0.9
"""Of the paper's outer optimizer."""

SIZES = {"35M": 35258368, "335M": 335872000, "2.4B": 2441216000, "10B": 9794748416, "100B": 1e11}


def measured(model: str, replicas: int) -> float:
    """Table 4 or 5."""
    found = [r for r in pub.table("losses") if (r["model"], r["replicas"]) == (model, str(replicas))]
    return float(found[0]["loss"])


def joint(quantity: str, params: float, replicas: float) -> float:
    return published_law(f"paper:table10:{quantity}:joint").predict(params, replicas)


def markdown(heads: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    heads = list(heads)
    rows = [heads, ["---"] + ["--:"] * (len(heads) - 1), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}%"


def what_size_and_replicas_do() -> str:
    size = [
        "10x the size",
        change(10**-BETA),
        change(_article_loss(10e9, 1) / _article_loss(1e9, 1)),
        change(joint("loss", 10, 1) / joint("loss", 1, 1)),
        _from_to(("35M", 1), ("335M", 1)),
        _from_to(("1.3B", 1), ("10B", 1)),
    ]
    replicas = [
        "4x the replicas",
        change(4**-GAMMA),
        change(_article_loss(1e9, 4) / _article_loss(1e9, 1)),
        change(joint("loss", 1, 4) / joint("loss", 1, 1)),
        _from_to(("35M", 1), ("35M", 4)),
        _from_to(("10B", 1), ("10B", 4)),
    ]
    heads = ["", "article, of the excess", "article, of the loss at 1B", "paper, Table 10"]
    return markdown([*heads, "measured, small", "measured, large"], [size, replicas])


def _article_loss(params: float, replicas: float) -> float:
    return pub.article_law().predict(params=params, replicas=replicas).value


def _from_to(before: tuple[str, int], after: tuple[str, int]) -> str:
    first, second = measured(*before), measured(*after)
    return f"{before[0]} M={before[1]} {first:.3f} -> {after[0]} M={after[1]} {second:.3f}, {change(second / first)}"


def what_the_tables_allow() -> str:
    """The article's form on the 28 DiLoCo losses of Table 4, with more and more of its numbers left free."""
    choices = {
        "beta, gamma and L_inf": pub.ARTICLE_LOSS,
        "L_inf": {"L_inf": L_INF},
        "beta": {"beta": BETA},
        "nothing": {},
    }
    unseen = pub.paper_rows(extrapolation=True)
    lines = []
    for what, fixed in choices.items():
        law = fit_law(pub.paper_rows(), "article", loss="mse", fixed=fixed, holdout=False)
        curve = law.curve({axis: unseen.column(axis) for axis in law.form.axes})
        errors = 100 * (curve.value / unseen.column("loss") - 1)
        found = [f"{law.parameters[name]:.{digits}f}" for name, digits in (("beta", 4), ("gamma", 4), ("L_inf", 3))]
        rms = f"{law.report()['rms_residual_pct']:.2f}%"
        lines.append(
            [what, f"{law.parameters['alpha']:.3g}", *found, rms, f"{errors.min():+.1f} to {errors.max():+.1f}%"]
        )
    heads = ["kept as printed", "alpha", "beta", "gamma", "L_inf", "rms on Table 4", "error on the 4B and 10B runs"]
    return markdown(heads, lines)


def inner_lr_and_batch() -> str:
    lines = []
    for name, params in SIZES.items():
        for replicas in (1, 4, 16):
            lr, batch = joint("inner_lr", params, replicas), joint("batch_tokens", params, replicas)
            rule = pub.article_batch_tokens(replicas)
            lr_ratio, batch_ratio = f"{pub.ARTICLE_INNER_LR / lr:.2g}x", f"{rule / batch:.2g}x"
            lines.append([name, replicas, f"{lr:.2e}", lr_ratio, f"{rule:,.0f}", f"{batch:,.0f}", batch_ratio])
    heads = ["size", "M", "paper's inner lr", "3e-4 is", "article's batch, tokens", "paper's", "article's is"]
    return markdown(heads, lines)


def where_they_agree() -> str:
    """The size at which Table 10's joint law A N^a M^b gives a rule's value: N = (value / (A M^b))^(1 / a)."""
    rules = {"inner_lr": lambda m: pub.ARTICLE_INNER_LR, "batch_tokens": pub.article_batch_tokens}
    lines = []
    for quantity, rule in rules.items():
        law = published_law(f"paper:table10:{quantity}:joint")
        sizes = [(rule(m) / law.predict(1, m)) ** (1 / law.params_exponent) / 1e6 for m in REPLICAS]
        lines.append([quantity, *(f"{size:,.2g}M" if size < 10 else f"{size:,.0f}M" for size in sizes)])
    return markdown(["equal at params of", *(f"M = {m}" for m in REPLICAS)], lines)


def outer_lr() -> str:
    lines = []
    for replicas in REPLICAS:
        rule, best = pub.article_outer_lr(replicas), pub.paper_outer_lr(replicas)
        rounds = [f"{(1 - momentum) / rule:,.0f}" for momentum in (0, MOMENTUM)]
        ratios = [f"{pub.ARTICLE_INNER_LR / rule:.2f}", f"{joint('inner_lr', SIZES['2.4B'], replicas) / best:.1e}"]
        lines.append([replicas, f"{rule:.2e}", f"{best:g}", f"{best / rule:,.0f}x", *rounds, *ratios])
    heads = ["M", "article's outer lr", "paper's, Figure 7", "paper's is", "rounds a drift takes", "with momentum 0.9"]
    return markdown([*heads, "article's inner / outer lr", "paper's at 2.4B"], lines)


def outer_lr_if_n_were_params() -> str:
    return ", ".join(f"{pub.article_outer_lr(size):.1e} at {name}" for name, size in {"1M": 1e6, **SIZES}.items())


def step_times() -> str:
    table = {"350M": (120, 105, "ms", 0.5), "7B": (680, 520, "ms", 5), "100B": (12.4, 8.7, "s", 0.05)}
    lines = []
    for size, (parallel, ours, unit, half) in table.items():
        least, most = ((parallel + sign * half) / (ours - sign * half) for sign in (-1, 1))
        within, time = f"{change(least)} to {change(most)}", change(ours / parallel)
        lines.append([size, f"{parallel} {unit}", f"{ours} {unit}", change(parallel / ours), within, time])
    return markdown(["size", "data parallel", "DiLoCo", "throughput", "within rounding", "step time"], lines)


def the_rest() -> str:
    floor = fit_law(pub.paper_rows(), "power-floor", holdout=False)
    low, high = floor.intervals["floor"]
    wanted = [joint("inner_lr", SIZES["35M"], 1), joint("batch_tokens", SIZES["2.4B"], 1)]
    return "\n".join(
        (
            f"- floor of A N^a M^b + floor on Table 4: {floor.coefficients['floor']:.2f} [{low:.2f}, {high:.2f}]",
            f"- 650B from 32 to 19 days: {32 / 19:.2f}x, {change(19 / 32)} of the time",
            f"- 100B is {100e9 / SIZES['2.4B']:.0f} times the largest size swept",
            f"- the paper's optimum at M = 1: inner lr {wanted[0]:.1e} at 35M, batch {wanted[1]:,.0f} tokens at 2.4B",
        )
    )


PARTS = (
    *(what_size_and_replicas_do, what_the_tables_allow, inner_lr_and_batch, where_they_agree),
    *(outer_lr, outer_lr_if_n_were_params, step_times, the_rest),
)

if __name__ == "__main__":
    for part in PARTS:
        print(f"{part.__name__.replace('_', ' ')}\n\n{part()}\n")
