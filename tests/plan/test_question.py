"""What a question may say, what is filled in where it says nothing, and what is refused.

pytest tests/plan/test_question.py
"""

from __future__ import annotations

import json
import math

import pytest

from diloco.errors import BadInput
from diloco.laws import fit_law, recommend
from diloco.plan.asked import Asked, read_question
from diloco.plan.clock import clock, inner_step
from diloco.plan.measured import KIND, measured_speed
from diloco.plan.model import get_model
from diloco.plan.question import DATA_PARALLEL, DILOCO, ONE_SITE, STREAMING, divides, methods, settle, streaming
from diloco.plan.run import Island


def question(**words):
    given = {"params": "1b", "tokens": "20b", "sites": "2x8xh100", "between": "8gbit"} | words
    return read_question(Asked(**given))


def test_a_question_is_read_with_its_units():
    asked = question(params="7b", tokens="140b", sites="2x64xh100", between="10gbit,20ms", price="$2.5", deadline="30d",
                     budget_usd="50k", target_loss=2.1, mfu="50%")  # fmt: skip
    assert asked.model.params == 7e9 and asked.tokens == 140e9 and asked.cluster.chips == 128
    assert asked.cluster.between.gbit_per_s == 10 and asked.cluster.between.latency_s == 0.02
    assert asked.cluster.usd_per_h == 128 * 2.5 and asked.speed(asked.cluster).flop_per_s == pytest.approx(
        0.5 * 989.5e12
    )
    assert (asked.deadline_s, asked.budget_usd, asked.target_loss) == (30 * 86400, 50e3, 2.1)


@pytest.mark.parametrize(
    ("sites", "chips"),
    [("2x64xh100", (64, 64)), ("64xH100", (64,)), ("8xh100 + 2x16xa100", (8, 16, 16)), ("3 x 4 x tpu-v5e", (4, 4, 4))],
)
def test_sites_are_counts_of_chips(sites, chips):
    asked = question(sites=sites, batch_tokens="1m")
    assert tuple(site.chips for site in asked.cluster.sites) == chips


def test_what_is_left_out_is_filled_in_and_said():
    asked = question(tokens="")
    assert asked.tokens == 20e9 and asked.replicas == 2 and asked.sync_every == 30 and asked.codec == "e3m0"
    assert asked.overlap_steps == 5 and asked.fragments == math.ceil(asked.model.layers / 3)
    said = "\n".join(asked.assumed)
    for word in (
        "not measured: 40%",
        "20 per parameter, as in the paper's runs: 20B",
        "M = 2",
        "H = 30",
        "tokens a step",
        "$3 an hour",
    ):
        assert word in said, word
    assert not asked.given - {"params", "sites", "between"}


def test_tokens_left_out_go_with_replicas_where_the_laws_runs_had_a_shard_each(tmp_path):
    rows = [
        {"params": n, "replicas": m, "tokens": 40 * n * m, "loss": (1.5 + 20 * n**-0.2) * m**0.01}
        for n in (1e8, 2e8, 4e8, 8e8)
        for m in (1, 2, 4)
    ]
    fit_law(rows, "A*params^a*replicas^b + floor", holdout=False).save(tmp_path / "law.json")
    assert question(tokens="", law=str(tmp_path / "law.json")).tokens == pytest.approx(2 * 40e9)


@pytest.mark.parametrize("runs, tokens, said", [(40, 40e9, "40 per parameter"), (None, 20e9, "20 per parameter")])
def test_tokens_left_out_are_as_many_as_the_laws_runs_had(tmp_path, runs, tokens, said):
    params = [1e8, 2e8, 4e8, 8e8, 1.6e9]
    rows = [{"params": n, "loss": 1.5 + 20 * n**-0.2} | ({"tokens": runs * n} if runs else {}) for n in params]
    fit_law(rows, "A*params^a + floor", holdout=False).save(tmp_path / "law.json")
    asked = question(tokens="", law=str(tmp_path / "law.json"))
    assert asked.tokens == pytest.approx(tokens) and any(said in sentence for sentence in asked.assumed)


def test_the_batch_is_the_laws_in_whole_sequences_for_each_replica():
    for replicas in (2, 4):
        asked = question(replicas=replicas)
        best = recommend("paper", 1e9, replicas).batch_tokens
        assert asked.batch_tokens % (2048 * replicas) == 0
        assert abs(asked.batch_tokens - best) <= 1024 * replicas


def test_a_slow_link_gets_a_longer_interval_and_says_so():
    fast, slow = question(between="10gbit"), question(between="100mbit")
    assert fast.sync_every == 30 < slow.sync_every
    assert f"H = {slow.sync_every}" in "\n".join(slow.assumed) and "100 Mbit/s" in "\n".join(slow.assumed)
    given = question(between="100mbit", sync_every=40)
    assert given.sync_every == 40 and "sync_every" in given.given


def test_every_method_is_a_run_of_the_same_tokens_and_batch():
    found = methods(question())
    assert list(found) == [ONE_SITE, DATA_PARALLEL, DILOCO, STREAMING]
    runs = {name: settled.run for name, settled in found.items()}
    assert {run.tokens for run in runs.values()} == {20e9} and len({run.batch_tokens for run in runs.values()}) == 1
    assert runs[ONE_SITE].cluster.chips == 8 and runs[DATA_PARALLEL].data_parallel
    assert (runs[DILOCO].codec, runs[DILOCO].overlap_steps, runs[DILOCO].fragments) == ("fp32", 0, 1)
    assert runs[STREAMING].codec == "e3m0" and runs[STREAMING].overlap_steps == 5
    assert list(methods(question(sites="8xh100", between=""))) == [ONE_SITE]
    assert list(methods(question(sites="8xh100", between="", replicas=4))) == [ONE_SITE, DILOCO, STREAMING]


def test_the_fastest_site_is_the_one_to_stay_on():
    asked = question(sites="8xh100+16xh100")
    assert methods(asked)[ONE_SITE].run.cluster.chips == 16


def test_chips_are_split_the_fastest_way_that_fits():
    """Over a link of 10 Gbit/s between servers, sharded weights of 7B would hold the chips up."""
    run = streaming(question(params="7b", tokens="140b", sites="2x64xh100", inside="10gbit"))
    settled = settle(run)
    assert settled.fits and settled.run.island.tensor > 1
    assert inner_step(settled.run).total_s < inner_step(run).total_s
    assert settle(run, run.island).run.island == run.island


def test_divides_holds_for_what_a_run_accepts():
    cluster = question().cluster
    assert divides(cluster, 2) and divides(cluster, 16) and not divides(cluster, 3) and not divides(cluster, 32)
    assert divides(cluster, 4, Island(tensor=4)) and not divides(cluster, 4, Island(tensor=8))


def test_a_measured_speed_goes_before_the_assumed_one(tmp_path):
    file = tmp_path / "device.json"
    file.write_text(json.dumps({"kind": KIND, "flop_per_s": 3e14}))
    asked = question(measured=str(file))
    assert (
        asked.speed(asked.cluster).flop_per_s == 3e14
        and "measured" in asked.assumed[0]
        and "assumed" not in asked.assumed[0]
    )
    slower = question(measured=str(file)), question(mfu="60%")
    assert clock(streaming(slower[0])).compute_s > clock(streaming(slower[1])).compute_s


def test_a_run_folder_tells_the_speed_while_computing(tmp_path):
    """6 x 1000 parameters x 50 tokens in 2 s on 4 devices of the replica."""
    receipt = {"compute_s": 2.0, "tokens_per_replica": [40, 50], "replica": 1}
    (tmp_path / "receipt.json").write_text(json.dumps(receipt))
    (tmp_path / "config.json").write_text(json.dumps({"params": 1000, "mesh": "replica=2,fsdp=2,tp=2"}))
    speed = measured_speed(str(tmp_path))
    assert speed.flop_per_s == pytest.approx(6 * 1000 * 50 / 2 / 4) and "with 1k parameters" in speed.how


def test_a_run_on_long_sequences_did_their_attention_too(tmp_path):
    """6 L d for each token beyond 2,048; shorter ones count 6 N alone."""
    (tmp_path / "receipt.json").write_text(json.dumps({"compute_s": 2.0, "tokens_per_replica": [50]}))
    found = {}
    for seq_len in (64, 2048, 4096):
        settings = {"params": 1e6, "config": {"data": {"seq_len": seq_len}}}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        found[seq_len] = measured_speed(str(tmp_path)).flop_per_s
    model = get_model("1m")
    assert found[64] == found[2048] == pytest.approx(6e6 * 50 / 2)
    assert found[4096] == pytest.approx((6e6 + 6 * model.layers * model.width * 2048) * 50 / 2)
    bench = {"kind": KIND, "flop_per_s": 1e9, "params": 1e6, "seq_len": 4096}
    (tmp_path / "device.json").write_text(json.dumps(bench))
    assert measured_speed(str(tmp_path / "device.json")).flop_per_s == pytest.approx(1e9 * found[4096] / found[64])


WITHOUT_SPEED = [f'{{"kind": "{KIND}"}}', f'{{"kind": "{KIND}", "flop_per_s": 0}}', "{}", "[1]", "no"]


@pytest.mark.parametrize("text", [*WITHOUT_SPEED, f'{{"kind": "{KIND}", "flop_per_s": "fast"}}'])
def test_a_file_without_a_speed_is_refused(tmp_path, text):
    file = tmp_path / "device.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=r"--measured .*device\.json"):
        measured_speed(str(file))


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "law.json").write_text(json.dumps({"format": "diloco-law 1", "flop_per_s": 3e14}))
    with pytest.raises(BadInput, match="is no file of `diloco bench device`"):
        question(measured=str(tmp_path / "law.json"))


def test_more_than_the_chips_peak_was_not_measured_on_it(tmp_path):
    file = tmp_path / "device.json"
    file.write_text(json.dumps({"kind": KIND, "flop_per_s": 1.2e15, "device": "NVIDIA B200"}))
    with pytest.raises(BadInput, match="more than the peak of NVIDIA H100 80GB SXM, 990 TFLOP/s"):
        question(measured=str(file))
    assert "not on" not in question(measured=str(file), sites="2x8xb200").assumed[0]


@pytest.mark.parametrize(
    ("device", "chip", "same"),
    [("NVIDIA H100 80GB HBM3", "h100", True), ("cpu", "h100", False), ("cpu", "laptop-cpu", True),
     ("NVIDIA H200", "h100", False), ("NVIDIA GeForce RTX 4090", "rtx4090", True)],
)  # fmt: skip
def test_another_device_than_the_sites_chip_is_said(tmp_path, device, chip, same):
    file = tmp_path / "device.json"
    file.write_text(json.dumps({"kind": KIND, "flop_per_s": 5e11, "device": device}))
    said = question(params="100m", tokens="1b", measured=str(file), sites=f"2x1x{chip}").assumed[0]
    assert ("not on" in said) is not same and (repr(device) in said) is not same


def test_a_model_that_does_not_fit_is_refused_with_what_would():
    said = r"--params is 405B, which does not fit: .* TB a chip, .* give a replica [0-9]+ chips or more"
    with pytest.raises(BadInput, match=said):
        question(params="llama3-405b", tokens="1t")


def test_a_site_alone_runs_at_its_own_chips_speed():
    """Together they go at the slower kind's pace; the H100 alone at its own."""
    found = methods(question(sites="8xh100+8xa100"))
    assert found[ONE_SITE].run.speed.flop_per_s == pytest.approx(0.4 * 989.5e12)
    assert found[STREAMING].run.speed.flop_per_s == pytest.approx(0.4 * 312e12)
