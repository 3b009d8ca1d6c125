"""The benchmark of kda_forward: counts, statistics and tables as by hand, errors seen, and a dry run of every line."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from math import inf, log
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from kda.formats import BF16
from kda.references import ref_A

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import kernel
from speed import accuracy, contenders, floor, inputs, machine, measure, profiles, results, shapes, show, warm
from speed.results import Accuracy, Measured, Report, Spread
from speed.shapes import Shape

CEILINGS = floor.Ceilings(bandwidth=4.3e12, matrix_rate=790e12)


# Shapes


@pytest.mark.parametrize("shape", [*shapes.SHAPES, *shapes.DRY, Shape(3, 5, 7), Shape(3, 5, 7, state=True)], ids=str)
def test_a_shape_is_read_back_from_what_it_prints(shape):
    assert Shape.parse(str(shape)) == shape


def test_shapes_cover_what_they_are_to_cover():
    names = {str(shape) for shape in shapes.SHAPES}
    assert len(names) == len(shapes.SHAPES)
    assert {"1,8192,16", "1,8192,32", "1,8192,64", "2,8192,64", "8,1024,64", "1,32768,16", "64,256,32"} <= names
    assert {shape.kind for shape in shapes.SHAPES} == {"dense", "packed", "decode"}
    assert {shape.N for shape in shapes.SHAPES if shape.kind == "decode"} == {1, 16}
    assert {shape.kind for shape in shapes.DRY} == {"dense", "packed", "decode"}


@pytest.mark.parametrize("text", ["", "1,2", "1,2,x", "1,0,3", "1,2,3,stat", "1,2,3,state,4", "packed3,4,5", "1,-2,3"])
def test_what_is_not_a_shape_is_refused(text):
    with pytest.raises(ValueError, match="is not B,N,H"):
        Shape.parse(text)


def test_starts_add_up():
    shape = Shape.packed((3, 0, 5), 2)
    assert (shape.starts, shape.tokens, shape.sequences) == ((0, 3, 3, 8), 8, (3, 0, 5))
    assert Shape(2, 3, 1).starts == (0, 3, 6)


# The floor


def test_bytes_of_one_chunk_are_those_counted_by_hand():
    found = floor.floor(Shape(1, 64, 1), "computed")
    values = 64 * 128 * 2
    given = 64 * (2 * 128 * 2 + 128 * 4 + 4)
    written = 64 * 128 * 2 + 128 * 128 * 4
    handed = 3 * 64 * 128 * 2 + 2 * 64 * 64 * 2 + 64 * 2 + (128 + 64) * 4
    assert (found.ideal.read, found.ideal.written) == (given + values, written)
    assert (found.prepare.read, found.prepare.written) == (given, handed)
    assert (found.walk.read, found.walk.written) == (handed + values, written)
    assert found.design == given + values + 2 * handed + written


def test_operations_are_those_counted_by_hand():
    done = floor.operations()
    # Below the diagonal of 8 x 8 blocks there are 64 * 64 / 2 - 8 * 32 pairs of tokens, for queries and for keys.
    assert done["M, A_qk"] == 2 * 128 * 2 * (64 * 64 // 2 - 8 * 32)
    assert done["A"] == 2 * (2 * 32**3)
    assert done["W S"] == done["Q S"] == done["K^T V~"] == 2 * 64 * 128 * 128
    assert done["W = A K"] == done["A V"] == done["A_qk V~"] == 2 * 64 * 64 * 128
    found = floor.floor(Shape(1, 64, 3), "raw")
    assert found.prepare.matrix + found.walk.matrix == found.ideal.matrix == 3 * sum(done.values())


def test_a_raw_gate_is_half_the_bytes():
    computed, raw = (floor.floor(Shape(1, 64, 1), mode).ideal.read for mode in shapes.MODES)
    assert computed - raw == 64 * (128 * 2 + 2) - 4 * (1 + 128)


def test_a_state_is_read_by_the_second_launch():
    without, having = (floor.floor(Shape(5, 1, 2, state=state), "computed") for state in (False, True))
    assert having.prepare == without.prepare
    assert having.walk.read - without.walk.read == 5 * 2 * 128 * 128 * 4
    assert having.walk.written == without.walk.written


def test_every_sequence_has_chunks_of_its_own():
    one, two = floor.floor(Shape(1, 66, 1), "computed"), floor.floor(Shape.packed((65, 1), 1), "computed")
    assert one.prepare.written == 2 * floor.intermediate_bytes()
    assert two.prepare.written == 3 * floor.intermediate_bytes()


@pytest.mark.parametrize(
    ("shape", "ideal", "design"), [((1, 8192, 16), 47, 110), ((1, 8192, 64), 189, 442), ((2, 8192, 64), 377, 884)]
)
def test_floors_at_the_bandwidth_of_an_h200(shape, ideal, design):
    found = floor.floor(Shape(*shape), "computed")
    assert round(1e6 * found.ideal_seconds(CEILINGS)) == ideal
    assert round(1e6 * found.design_seconds(CEILINGS)) == design


def test_the_larger_of_two_times_is_the_floor():
    launch = floor.Launch(read=3, written=4, matrix=100)
    assert launch.seconds(floor.Ceilings(7.0, 1e9)) == pytest.approx(1.0)
    assert launch.seconds(floor.Ceilings(7e9, 10.0)) == pytest.approx(10.0)


# Statistics


def test_medians_and_means():
    assert results.median([3.0, 1.0, 2.0]) == 2.0
    assert results.median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert results.geometric_mean([1.0, 2.0, 4.0]) == pytest.approx(2.0)
    for statistic in (results.median, results.geometric_mean):
        with pytest.raises(ValueError, match="no values"):
            statistic([])


def test_a_spread_is_median_and_quartiles():
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


@pytest.mark.parametrize("l2", [0, 60 * 2**20])
@pytest.mark.parametrize("one", [1, 2**20, 168 * 2**20])
def test_sets_hold_more_than_twice_the_cache(one, l2):
    number = inputs.sets_needed(one, l2)
    assert 2 <= number <= inputs.MOST_SETS
    assert number == inputs.MOST_SETS or number * one > 2 * l2


def test_rounds_are_interleaved_and_sets_rotate():
    order, ticks = [], iter(range(1000))

    def clock(work):
        work()
        return float(next(ticks))

    works = [lambda at, name=name: order.append((name, at)) for name in "abc"]
    times = measure.interleaved(works, 4, clock, measure.Rounds(2, 2))
    assert "".join(name for name, _ in order) == "abc" * 3
    assert [at for _, at in order] == [0, 1, 2, 3] * 2 + [0]
    assert times == [[3.0, 6.0], [4.0, 7.0], [5.0, 8.0]]  # the first round does not count


def test_rounds_fit_into_half_a_second():
    rounds = measure.Rounds(15, 101)
    assert [rounds.fitting(ms) for ms in (0.0, 1.0, 10.0, 1000.0)] == [101, 101, 50, 15]


# Reports


#: In the order of the fields of `Accuracy`.
USUAL = Accuracy(0.1, 0.2, 0.01, 0.02, 4e-3, 3e-3, 4, 60)


def _measured(contender, shape="1,8192,16", mode="computed", call=1.0, graph=1.0, found=USUAL, **more):
    spreads = [None if time is None else Spread(time, time, time, 9) for time in (call, graph)]
    return Measured(shape, mode, contender, *spreads, 2**20, ("a_kernel",), found, **more)


@pytest.fixture
def report():
    rates = {"copy": 4.3e12, "triad": 4.0e12, "matrix": 790e12}
    return Report(
        "a GPU",
        {"torch": "2.11"},
        rates,
        [
            _measured("kda_forward", call=0.25, graph=0.22),
            _measured("fla chunk_kda", call=1.2, graph=1.1),
            _measured("fla chunk_kda, safe_gate", call=0.8, graph=1.3),
            _measured("kda_forward", "1,8192,64", call=1.0, graph=1.0),
            _measured("fla chunk_kda", "1,8192,64", call=2.0, graph=None, notes="no graph (RuntimeError: x)"),
            _measured("fla chunk_kda, safe_gate", "1,8192,64", call=0.1, trouble="launched another's kernel"),
            _measured("kda_forward", "32,1,32,state", call=0.5),
            _measured("fla fused_recurrent_kda", "32,1,32,state", call=0.25),
            _measured("kda_forward", mode="raw", call=0.2, graph=0.2),
        ],
        [results.FirstCall("1,8192,16", "computed", "kda_forward", 30.0)],
        ["FlashKDA is not installed: it is left out"],
        12.0,
    )


def test_a_report_is_read_back_as_it_was_written(report, tmp_path):
    report.write(tmp_path / "result.json")
    assert Report.read(tmp_path / "result.json") == report


def test_ours_is_held_against_the_fastest_rival_that_counts(report):
    by_call = {pair.ours.shape: pair for pair in results.pairs(report, "computed", "call")}
    assert by_call["1,8192,16"].rival.contender == "fla chunk_kda, safe_gate"
    assert by_call["1,8192,16"].speedup == pytest.approx(0.8 / 0.25)
    assert by_call["1,8192,64"].rival.contender == "fla chunk_kda"  # the faster one ran something else
    by_graph = {pair.ours.shape: pair for pair in results.pairs(report, "computed", "graph")}
    assert by_graph["1,8192,16"].speedup == pytest.approx(1.1 / 0.22)
    assert by_graph["1,8192,64"].rival is None
    (alone,) = results.pairs(report, "raw", "call")
    assert (alone.rival, alone.speedup) == (None, None)


def test_verdicts_are_means_over_shapes_with_both_times(report):
    found = {(v.mode, v.clock, v.kind): v for v in results.verdicts(report)}
    kinds = {(clock, kind) for clock in ("call", "graph") for kind in ("all", "prefill", "decode")}
    assert set(found) == {("computed", *kind) for kind in kinds}
    call = found["computed", "call", "all"]  # the one that goes token by token is no rival here
    assert (call.shapes, call.least, call.least_at, call.bar, call.least_bar) == (2, 2.0, "1,8192,64", 3.0, 2.0)
    assert call.mean == pytest.approx((3.2 * 2.0) ** 0.5)
    assert call.met is False
    assert "bar 3, least 2: MISSED" in str(call)
    assert replace(call, mean=3.0).met is True
    assert replace(call, mean=3.0, least=1.9).met is False
    assert "bar 3, least 2: met" in str(replace(call, mean=3.1))
    decode = found["computed", "call", "decode"]
    assert (decode.mean, decode.bar, decode.met) == (0.5, None, None)


def test_errors_are_held_against_the_closest_rival_of_each_shape():
    report = Report(
        measured=[
            _measured("kda_forward", found=replace(USUAL, o_ratio=0.09, state_rms=0.03)),
            _measured("fla chunk_kda", found=replace(USUAL, o_ratio=0.2)),
            _measured("fla chunk_kda, safe_gate", found=replace(USUAL, o_ratio=0.15)),
            _measured("kda_forward", "1,8192,64", found=replace(USUAL, o_ratio=0.3)),
            _measured("fla chunk_kda", "1,8192,64", found=replace(USUAL, o_ratio=0.1)),
            _measured("fla chunk_kda, safe_gate", "1,8192,64", found=replace(USUAL, o_ratio=0.4)),
            _measured("kda_forward", "32,1,32,state"),
            _measured("fla fused_recurrent_kda", "32,1,32,state", found=replace(USUAL, o_ratio=0.001)),
            _measured("kda_forward", mode="raw", found=replace(USUAL, o_rms=0.0)),
            _measured("flash_kda", mode="raw", found=replace(USUAL, o_rms=0.0, state_rms=0.0)),
        ]
    )
    found = {(one.mode, one.field): one for one in results.closeness(report)}
    assert {mode for mode, _ in found} == {"computed", "raw"}
    worst = found["computed", "o_ratio"]
    assert (worst.shapes, worst.no_larger, worst.at) == (2, 1, "1,8192,64")  # the one token by token is no rival here
    assert worst.times == pytest.approx(3)
    assert found["computed", "state_rms"].times == pytest.approx(1.5)
    assert (found["computed", "o_rms"].no_larger, found["computed", "o_rms"].times) == (2, 1.0)
    assert (found["raw", "o_rms"].times, found["raw", "state_rms"].times) == (1.0, inf)
    assert "no larger than that of chunk_kda of FLA at 1 of 2 shapes; 3.00 times it at 1,8192,64" in str(worst)


def test_a_report_without_errors_says_nothing_of_them(report):
    assert results.closeness(replace(report, measured=[_measured("kda_forward", found=None)])) == []


def test_tables_say_what_was_measured(report):
    first, second, decode = show.rows_of_times(report, "computed")
    assert first[:8] == (
        *("1, 8192, 16", "250", "220", "fla chunk_kda, safe_gate / fla chunk_kda", "800", "1100", "3.20", "5.00"),
    )
    assert first[8:] == ("47", "110", f"{220 / 110.36:.2f}")
    assert second[3:8] == ("fla chunk_kda", "2000", "-", "2.00", "-")
    assert decode[0] == "32, 1, 32 + state"
    remarks = [row[-1] for row in show.rows_of_accuracy(report, "computed")]
    assert remarks[4:6] == ["no graph (RuntimeError: x)", "launched another's kernel"]


def test_the_page_gets_every_table(report, tmp_path):
    text = show.markdown(report)
    for said in (
        *show.TITLES.values(),
        "| 1, 8192, 16 | 250 |",
        "bar 3, least 2: MISSED",
        "4.30 TB/s",
        "30.0 s",
        "left out",
    ):
        assert said in text
    report.write(tmp_path / "result.json")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured -->\n<!-- end -->\nafter\n")
    done = CliRunner().invoke(kernel.main, ["table", str(tmp_path / "result.json"), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert text.strip() in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")


def test_the_picture_is_drawn(report, tmp_path):
    pytest.importorskip("matplotlib")
    report.write(tmp_path / "result.json")
    drawn = tmp_path / "drawn.png"
    done = CliRunner().invoke(kernel.main, ["plot", str(tmp_path / "result.json"), "-o", str(drawn)])
    assert done.exit_code == 0, done.output
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_there_is_nothing_to_draw_without_times(report, tmp_path):
    pytest.importorskip("matplotlib")
    from speed.picture import plot

    report.measured = [one for one in report.measured if one.contender != "kda_forward"]
    with pytest.raises(ValueError, match="nothing to draw"):
        plot(report, tmp_path / "drawn.png")


# Contenders


@pytest.mark.parametrize(
    ("launched", "said"),
    [
        (["kda_prep_kernel", "kda_walk_kernel"], ""),
        (["kda_prep_kernel"], "launched no kernel named kda_walk"),
        (["kda_prep_kernel", "kda_walk_kernel", "other_kernel"], "launched other_kernel, which is not its own"),
    ],
)
def test_kernels_of_others_are_noticed(launched, said):
    ours = contenders.Contender("ours", lambda given: None, contenders.ENGINES["hopper"], ("other",))
    found = ours.wrong_kernels(launched)
    assert said in found if said else not found


def test_families_are_compiled_by_heads_and_kind():
    chosen = (Shape(1, 8192, 16), Shape(1, 8192, 32), Shape(64, 256, 32), Shape(1, 1, 32, state=True))
    assert warm.families("a", "raw", chosen) == [("a", "raw", part) for part in (chosen[:1], chosen[1:3], chosen[3:])]


def test_kernels_of_calls_are_summed_by_name():
    calls = [[machine.Launched("a", 1.0), machine.Launched("b", 5.0), machine.Launched("a", 2.0)]]
    calls += [[machine.Launched("a", 2.0), machine.Launched("b", 7.0), machine.Launched("a", 2.0)]]
    assert profiles.rows(calls) == [profiles.Row("a", 2, 3.5, 3.0), profiles.Row("b", 1, 6.0, 5.0)]


# Accuracy, and everything at once


def _loop(q, k, v, g, beta, raw, A_log=None, dt_bias=None, lower_bound=None, state=None):
    """One head of one sequence, token by token: o and the final state `[D, D]`, key channel first."""
    if raw:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        q, k = (x.float().bfloat16().double() for x in (q, k))
        g = lower_bound / (1 + torch.exp(-torch.exp(A_log) * (g + dt_bias)))
        beta = 1 / (1 + torch.exp(-beta))
    S = torch.zeros(k.shape[-1], v.shape[-1], dtype=torch.float64) if state is None else state.clone()
    o = torch.empty_like(v)
    for t in range(len(q)):
        S = g[t].exp()[:, None] * S
        S = S + torch.outer(k[t], beta[t] * (v[t] - S.T @ k[t]))
        o[t] = S.T @ q[t]
    return o, S


def _kda_forward(q, k, v, g, beta, *, initial_state=None, state_v_first=False, cu_seqlens=None, **options):
    """What kda.ops.kda_forward promises, one head after the other in float64, rounded in the end."""
    raw = options["use_gate_in_kernel"]
    B, N, H, D = q.shape
    starts = [i * N for i in range(B + 1)] if cu_seqlens is None else cu_seqlens.tolist()
    flat = [x.double().flatten(0, 1) for x in (q, k, v, g, beta)]
    o = torch.empty(B * N, H, D, dtype=torch.float64)
    states = torch.empty(len(starts) - 1, H, D, D, dtype=torch.float64)
    for s, (begin, end) in enumerate(pairwise(starts)):
        for h in range(H):
            gate = (options["A_log"][h], options["dt_bias"][h].double(), options["lower_bound"]) if raw else ()
            state = None if initial_state is None else initial_state[s, h].double()
            state = state.T if state is not None and state_v_first else state
            rows = [x[begin:end, h] for x in flat]
            o[begin:end, h], S = _loop(*rows, raw, *(gate or (None,) * 3), state)
            states[s, h] = S.T if state_v_first else S
    return (D**-0.5 * o).view(B, N, H, D).to(q.dtype), states.float()


@pytest.fixture
def forward(monkeypatch):
    """kda.ops with a kda_forward that can be exchanged."""
    module = ModuleType("kda.ops")
    module.kda_forward = _kda_forward
    monkeypatch.setitem(sys.modules, "kda.ops", module)
    return module


def called(shape):
    """The inputs of a call with gates computed beforehand, and what `kda_forward` makes of them."""
    (given,) = inputs.made(shape, "computed", "cpu", number=1)
    (ours,) = contenders.contenders("computed", shape, None)
    return given, *ours.call(given)


def errors_of(shape, given, outputs):
    return accuracy.accuracies(measure.taken(shape, given, {"ours": outputs}))["ours"]


@pytest.mark.parametrize("mode", shapes.MODES)
@pytest.mark.parametrize("shape", shapes.DRY, ids=str)
def test_a_right_result_has_the_errors_of_its_last_rounding(shape, mode, forward):
    (given,) = inputs.made(shape, mode, "cpu", number=1)
    (ours,) = contenders.contenders(mode, shape, None)
    found = errors_of(shape, given, ours.call(given))
    assert found["heads"] + found["beginnings"] == len(shape.sequences) * shape.H
    assert found["o_rms"] < found["o_ratio"]
    assert 1e-4 < found["o_relative"] < 2**-8
    assert found["state_relative"] < 1e-6
    assert found["o_ratio"] < 0.05


@pytest.mark.parametrize("mode", shapes.MODES)
@pytest.mark.parametrize("fault", ["scale", "gate", "state", "sequence", "head"])
def test_a_wrong_result_is_far_off(mode, fault, forward):
    shape = Shape(2, 20, 2, state=True)
    (given,) = inputs.made(shape, mode, "cpu", number=1)
    (ours,) = contenders.contenders(mode, shape, None)
    o, state = ours.call(given)
    faulty = {
        "scale": (o * 1.1, state),
        "gate": ours.call(replace(given, g=given.g - 0.3)),
        "state": (o, state.mT),
        "sequence": (o.flip(0), state.flip(0)),
        "head": (o.flip(2), state.flip(1)),
    }[fault]
    found = accuracy.accuracies(measure.taken(shape, given, {"wrong": faulty, "right": (o, state)}))
    worst = {name: max(of["o_relative"], of["state_relative"]) for name, of in found.items()}
    assert worst["right"] < 4e-3
    assert worst["wrong"] > 3e-2


def test_beginnings_are_of_other_heads_and_spread_over_the_batch():
    assert accuracy.beginnings(1, 2) == []
    assert accuracy.beginnings(1, 4) == [(0, 1), (0, 2)]
    for sequences, heads in ((1, 64), (64, 32), (24, 32), (2, 64)):
        found = accuracy.beginnings(sequences, heads)
        assert len(found) == len(set(found)) >= 50
        assert not set(found) & set(accuracy.places(sequences, heads))
        assert len({s for s, _ in found}) >= min(sequences, 24)
        assert all(0 <= s < sequences and 0 <= h < heads for s, h in found)


def test_the_first_chunk_of_a_beginning_alone_counts_and_no_state(forward):
    shape = Shape(1, 70, 3)
    given, o, state = called(shape)
    right = errors_of(shape, given, (o, state))
    assert (right["heads"], right["beginnings"]) == (2, 1)
    o[0, 64:, 1] += 1
    state[0, 1] += 1
    assert errors_of(shape, given, (o, state)) == right
    o[0, 63, 1] += 1
    wrong = errors_of(shape, given, (o, state))
    assert wrong["o_ratio"] > 10 * right["o_ratio"]
    assert {**wrong, "o_ratio": 0} == {**right, "o_ratio": 0}


def test_what_is_not_finite_is_infinitely_far_off(forward):
    shape = Shape(1, 5, 1)
    given, o, state = called(shape)
    o[0, 2, 0, 7] = float("nan")
    found = errors_of(shape, given, (o, state))
    assert found["o_ratio"] == inf
    assert found["state_ratio"] < 1


def test_the_worst_head_counts(forward):
    shape = Shape(3, 5, 2)
    given, o, state = called(shape)
    right = errors_of(shape, given, (o, state))
    o[1, 2, 1] += 1
    state[2, 0, 5] += 1
    wrong = errors_of(shape, given, (o, state))
    assert all(wrong[name] > 10 * right[name] for name in ("o_ratio", "state_ratio", "o_relative", "state_relative"))


def test_raw_inputs_are_processed_as_the_operation_says():
    (given,) = inputs.made(Shape(1, 6, 1), "raw", "cpu", number=1)
    (head,) = measure.taken(Shape(1, 6, 1), given, {})
    made = accuracy.processed(head)
    made.check()
    assert BF16.holds(made.q)
    assert np.abs(np.linalg.norm(made.q, axis=-1) - 1).max() < 2**-8
    assert ((made.g >= inputs.LOWER_BOUND) & (made.g < 0)).all()
    expected = ref_A(made).o[0, :, 0]
    rows = [x[0, :, 0].double() for x in (given.q, given.k, given.v, given.g, given.beta)]
    o, _ = _loop(*rows, True, given.A_log[0], given.dt_bias[0].double(), inputs.LOWER_BOUND)
    assert np.abs(o.numpy() - expected).max() < 1e-6


def test_raw_gates_are_those_of_a_model():
    (given,) = inputs.made(Shape(1, 64, 64), "raw", "cpu", number=1)
    assert log(1) <= float(given.A_log.min()) <= float(given.A_log.max()) <= log(16)
    dt = torch.nn.functional.softplus(given.dt_bias)
    assert 9e-4 < float(dt.min()) < 1.1e-3
    assert 0.098 < float(dt.max()) < 0.102


def test_sets_differ_and_share_what_describes_the_batch():
    one, other = inputs.made(Shape.packed((3, 2), 1), "raw", "cpu", number=2)
    for name in ("q", "k", "v", "g", "beta"):
        assert not torch.equal(getattr(one, name), getattr(other, name))
    assert one.cu_seqlens is other.cu_seqlens
    assert one.cu_seqlens.tolist() == [0, 3, 5]


def test_a_contender_that_fails_says_so_and_the_others_go_on(forward):
    def broken(given):
        raise RuntimeError("out of patience\nand more")

    shape = Shape(1, 3, 1)
    (ours,) = contenders.contenders("computed", shape, None)
    lost = contenders.Contender("lost", broken, ())
    strange = replace(ours, name="strange", marks=("another",))
    found = measure.measure(shape, "computed", [lost, ours, strange], machine.Cpu(), measure.Rounds(2, 2))
    by_name = {one.contender: one for one in found}
    assert by_name["lost"].trouble == "RuntimeError: out of patience"
    assert by_name["lost"].milliseconds("call") is None
    assert "named another" in by_name["strange"].trouble
    assert by_name["strange"].call.repeats == 2  # kept, but it does not count
    assert by_name["strange"].milliseconds("call") is None
    assert by_name["kda_forward"].milliseconds("call") > 0
    assert by_name["kda_forward"].graph.repeats == 2


def test_a_call_that_cannot_be_captured_is_timed_all_the_same(forward):
    class Uncapturable(machine.Cpu):
        def graph(self, works):
            raise RuntimeError("operation not permitted when stream is capturing")

    (ours,) = contenders.contenders("computed", Shape(1, 3, 1), None)
    (found,) = measure.measure(Shape(1, 3, 1), "computed", [ours], Uncapturable(), measure.Rounds(2, 2))
    assert not found.trouble
    assert found.graph is None
    assert "no graph (RuntimeError: operation not permitted" in found.notes
    assert found.call.repeats == 2


def test_the_dry_run_writes_what_it_prints(forward, tmp_path):
    path = tmp_path / "result.json"
    done = CliRunner().invoke(kernel.main, ["--dry", "--json", str(path)])
    assert done.exit_code == 0, done.output
    written = Report.read(path)
    assert [(one.shape, one.mode) for one in written.measured] == [
        (str(shape), mode) for shape in shapes.DRY for mode in shapes.MODES
    ]
    assert all(one.call and one.graph and one.accuracy and not one.trouble for one in written.measured)
    assert "FLA (fla-core) needs a GPU: it is left out" in done.output
    assert json.loads(path.read_text())["rates"]["copy"] > 0


def test_what_was_measured_survives_what_comes_after(forward, tmp_path, monkeypatch):
    path, right = tmp_path / "result.json", measure.measure

    def measured(shape, *rest):
        if shape.N == 4:
            raise KeyboardInterrupt
        return right(shape, *rest)

    monkeypatch.setattr(measure, "measure", measured)
    asked = ["--dry", "--json", str(path), "--modes", "raw", "--shapes", "1,3,1/1,4,1"]
    assert CliRunner().invoke(kernel.main, asked).exit_code != 0
    assert [one.shape for one in Report.read(path).measured] == ["1,3,1"]


def test_a_shape_that_breaks_off_is_reported_and_the_rest_goes_on(forward, tmp_path, monkeypatch):
    path, right = tmp_path / "result.json", measure.measure

    def measured(shape, *rest):
        if shape.N == 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return right(shape, *rest)

    monkeypatch.setattr(measure, "measure", measured)
    asked = ["--dry", "--json", str(path), "--modes", "raw", "--shapes", "1,3,1/1,4,1"]
    done = CliRunner().invoke(kernel.main, asked)
    assert done.exit_code == 1
    assert [one.shape for one in Report.read(path).measured] == ["1,4,1"]
    assert "1,3,1 (raw) broke off: RuntimeError: CUDA error" in done.output
    assert "kda_forward (raw) launched kda_steps kda_prep kda_walk kda_forward." in done.output


def test_a_run_stops_when_its_time_is_over(forward, tmp_path):
    path = tmp_path / "result.json"
    done = CliRunner().invoke(kernel.main, ["--dry", "--json", str(path), "--seconds", "0", "--shapes", "1,3,1"])
    assert done.exit_code == 0, done.output
    assert Report.read(path).measured == []
    assert "1,3,1 (raw) was not measured: 0 s were over" in done.output


def test_a_wrong_shape_is_refused_on_the_command_line():
    done = CliRunner().invoke(kernel.main, ["--dry", "--shapes", "1,2"])
    assert done.exit_code == 2
    assert "is not B,N,H" in done.output


def test_a_profile_of_a_dry_run(forward):
    done = CliRunner().invoke(kernel.main, ["profile", "1,3,1", "--dry", "--repeats", "2"])
    assert done.exit_code == 0, done.output
    assert "all of them" in done.output
    assert "floor, first launch" in done.output


def test_kernels_that_nobody_saw_are_noted(forward):
    class Blind(machine.Cpu):
        def launched(self, work):
            return []

    (ours,) = contenders.contenders("computed", Shape(1, 3, 1), None)
    (found,) = measure.measure(Shape(1, 3, 1), "computed", [ours], Blind(), measure.Rounds(2, 2))
    assert not found.trouble
    assert found.notes == "the profiler saw no kernel: nobody knows which ran"


def test_a_first_call_is_timed(forward):
    found = warm.first_call("kda_forward", "raw", Shape(1, 3, 1), None)
    assert (found.shape, found.mode, found.contender) == ("1,3,1", "raw", "kda_forward")
    assert found.seconds > 0


def test_what_cannot_be_compiled_beforehand_is_said():
    family = ("kda_forward", "raw", (Shape(1, 3, 1),))
    (said,) = warm.compile_all([family], "nowhere", 1)
    assert said.startswith("compiling kda_forward for 1,3,1 (raw) beforehand failed: ")
