"""The gate domain with sub-chunks, the mirror that splits over them, and the evidence for the border."""

import json
from math import exp, inf, log

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kda import border
from kda.border.evidence import INSIDE
from kda.case import Case
from kda.cli import main
from kda.files import replace_between
from kda.formats import BF16, F16, F32, F64
from kda.implementations import implementation
from kda.numerics.budget import judge, operand_units
from kda.numerics.compare import compare
from kda.numerics.domain import DomainError, GateDomain, chunk_gamma, gate_domain
from kda.plots.domain import bands
from kda.problem import InputError
from kda.references import ref_A_fast, ref_C_fast, ref_C_sub
from kda.support import Support

DOMAINS = [d for d in border.domains() if d.sub_C is None or d.sub_C < d.C]
ids = {"ids": [f"{d.dtype}-C{d.C}-sub{d.sub_C}" for d in DOMAINS]}


def case(line: str) -> Case:
    return Case.parse(f"v1,q=gauss,k=gauss,v=gauss,{line}")


# The domain.


def test_the_bound_per_token_is_the_articles_question():
    """How deep a constant gate may be, as a decay: from the smallest normal number and the tokens it is summed over."""
    assert round(gate_domain(F16, 64).least_decay, 4) == 0.8593
    assert round(gate_domain(F16, 128).least_decay, 4) == 0.9270
    assert gate_domain(F16, 128, 16).least_decay == gate_domain(F16, 16).least_decay
    assert gate_domain(F16, 128, 64).per_token == pytest.approx(14 * log(2) / 64)
    assert round(exp(-gate_domain(F16, 128).overflow / 128), 3) == 0.917


def test_precision_is_lost_before_anything_overflows():
    assert all(gate_domain(dtype, 64).total < gate_domain(dtype, 64).overflow for dtype in (F16, BF16, F32, F64))


@pytest.mark.parametrize("sub_C", [0, -16, 24, 48])
def test_a_sub_chunk_divides_its_chunk(sub_C):
    with pytest.raises(ValueError, match=rf"sub_C is {sub_C}; expected a divisor of C = 64"):
        gate_domain(F16, 64, sub_C)
    with pytest.raises(InputError, match=rf"sub_C is {sub_C}; expected a divisor of C = 64"):
        ref_C_sub(case("N=70").inputs(), 64, sub_C)


def test_only_the_window_counts():
    """-9 in each of two sub-chunks is -18 in the chunk: refused without sub-chunks, and inside with them."""
    g = np.zeros((1, 40, 1, 4))
    g[0, [3, 17], 0, 2] = -9.0
    gate_domain(F16, 32, 16).check(g)
    with pytest.raises(
        DomainError, match=r"-18 since its chunk of 32 tokens began, at batch 0, token 17, .* channel 2"
    ):
        gate_domain(F16, 32).check(g)
    g[0, 18, 0, 2] = -1.0
    with pytest.raises(DomainError, match=r"-10 since its sub-chunk of 16 tokens began, at batch 0, token 18"):
        gate_domain(F16, 32, 16).check(g)


def test_an_implementation_says_over_how_many_tokens():
    assert implementation("mirror").support("c", F16).gate_window(64) == 64
    assert implementation("mirror_sub16").support("c", F16).gate_window(64) == 16
    assert Support(sub_C=32).gate_window(16) == 16


# The mirror with sub-chunks, and its budget.


@given(
    st.sampled_from([16, 32, 64]),
    st.integers(1, 150),
    st.sampled_from(
        ["none", "uniform:0.5:0.999", "log:-20.0", "spike:3:-500.0", "spike:17:-500.0", "channel:0.01:1.0"]
    ),
    st.integers(0, 100),
)
def test_sub_chunks_are_the_recurrence(sub_C, N, gate, seed):
    """In float64, for any gate whose sub-chunks float64 can split."""
    gate = gate if not gate.startswith("spike") or int(gate.split(":")[1]) < N else "none"
    inputs = case(f"B=2,H=2,N={N},C=64,gate={gate},beta=uniform:0.0:2.0,state=gauss,dtype=f64,seed={seed}").inputs()
    if -chunk_gamma(inputs.g, sub_C).min() > gate_domain(F64, 64).total:
        return
    got, expected = ref_C_sub(inputs, 64, sub_C), ref_A_fast(inputs)
    for (_, mine), (_, theirs) in zip(got.tensors(), expected.tensors(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12 * max(1.0, np.abs(theirs).max()))


def test_one_sub_chunk_is_a_chunk():
    """M, A_qk and the solve are then the mirror's, bit for bit; the update of the state takes one rounding less."""
    inputs = case("N=60,C=64,gate=uniform:0.9:0.999,beta=uniform:0.0:2.0").inputs()
    assert np.array_equal(ref_C_sub(inputs, 64, 64, F16).o, ref_C_fast(inputs, 64, 16, F16).o)
    assert ref_C_sub(inputs, 64, 128, F16).equals(ref_C_sub(inputs, 64, 64, F16))


def test_the_budget_knows_sub_chunks():
    """Errors are amplified over a sub-chunk and no further: the budget of a deep gate stays near that of none."""
    inputs = case("N=64,C=64,gate=log:-0.55,beta=uniform:0.1:0.9,dtype=f16").inputs()
    units = operand_units(inputs, 64, F16)
    whole, sub = judge(inputs, 64, units).budget, judge(inputs, 64, units, 16).budget
    assert (sub.o[:, 20:] < 0.9 * whole.o[:, 20:]).all()
    assert np.isfinite(sub.o).all()
    got = ref_C_sub(inputs, 64, 16, F16)
    assert all(v.passed for v in compare(got, ref_A_fast(inputs), sub))


def test_a_sub_chunk_amplifies_no_error_of_an_earlier_one():
    """Keys of earlier sub-chunks come with a factor of at most 1: the budget is that of chunks as long, to 5 %."""
    inputs = case("N=64,C=64,gate=log:-0.6,beta=uniform:0.1:0.9,dtype=f16").inputs()
    units = operand_units(inputs, 64, F16)
    sub, short = judge(inputs, 64, units, 16).budget, judge(inputs, 16, units).budget
    assert (sub.o <= 1.05 * short.o).all()


# The evidence.


@pytest.mark.parametrize("domain", DOMAINS, **ids)
def test_just_inside_every_case_holds(domain):
    """Adversarial cases reach the border, are not refused, and stay within their budget."""
    on = border.mirror_of(domain)
    reached = []
    for seed in range(40):
        made = border.adversarial(domain, seed)
        inputs = made.inputs()
        domain.check_inputs(inputs)
        reached.append(float(-chunk_gamma(inputs.g, domain.window).min()))
        assert on.ratio(made) <= 1, str(made)
    assert max(reached) > 0.9998 * domain.total
    assert np.median(reached) > 0.5 * domain.total  # a case shorter than the window does not always get there


@pytest.mark.parametrize("domain", DOMAINS, **ids)
def test_just_outside_a_case_breaks(domain):
    """A case at most 1.5 nats beyond the border breaks, and one beyond the overflow is infinite; both are refused."""
    beyond = border.breaking(domain)
    assert domain.total < beyond.total < domain.total + 1.5
    assert beyond.ratio > 1
    infinite = border.overflowing(domain)
    assert infinite.ratio == inf
    made = implementation(border.mirror_of(domain).impl)
    for found in (beyond, infinite):
        with pytest.raises(DomainError, match="g sums to"):
            made.run(found.case.inputs(), found.case.tile, "c")


def test_a_domain_too_wide_is_seen():
    """The adversarial cases reach whatever total they are asked for; 15 % beyond the border some of them break."""
    for dtype in (F16, BF16):
        domain = gate_domain(dtype, 16)
        total = {F16: 1.15, BF16: 1.02}[dtype] * domain.total
        on = border.mirror_of(domain)
        assert max(on.ratio(border.adversarial(domain, seed, total)) for seed in range(200)) > 1


def test_a_row_that_does_not_hold_says_so():
    domain = gate_domain(F16, 16)
    row = border.row(GateDomain(F16, 16, 1.25 * domain.total), 200)
    assert not row.holds
    assert border.row(domain, 20).holds


def test_the_command_writes_the_table_and_the_rows(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- kda domain -->\nstale\n<!-- end -->\nafter\n")
    options = ["--cases", "2", "--dtype", "f16", "--C", "32", "--workers", "1"]
    result = CliRunner().invoke(
        main, ["domain", *options, "--json", str(tmp_path / "rows.json"), "--markdown", str(page)]
    )
    assert result.exit_code == 0, result.output
    assert "4 of 4 rows hold: 8 adversarial cases inside" in result.output
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["sub_C"] for row in rows] == [None, 16, 32, 64]
    assert rows[1]["inside_total"] == pytest.approx(INSIDE * gate_domain(F16, 16).total)
    assert Case.parse(rows[0]["outside_case"]).C == 32
    text = page.read_text()
    assert text.startswith("before\n<!-- kda domain -->\n\n| operands | C |")

    assert "stale" not in text
    assert text.endswith("<!-- end -->\nafter\n")
    result = CliRunner().invoke(main, ["domain", *options, "--markdown", str(tmp_path / "none.md")])
    assert result.exit_code == 2
    for wrong, message in (
        (["--impl", "ref_A"], "ref_A cannot run unchecked"),
        (["--impl", "kda_chunk", "--target", "c", "--C", "128"], "kda_chunk on c has no row of these"),
        (["--cases", "0"], "must be at least 1"),
    ):
        result = CliRunner().invoke(main, ["domain", *wrong])
        assert result.exit_code == 2
        assert message in result.output


def test_the_kernel_is_asked_about_its_own_rows():
    takes = [d for d in border.domains() if border.Subject("kda_chunk").takes(d)]
    assert [(d.dtype, d.C) for d in takes] == [(f, C) for f in (F16, BF16, F32) for C in (16, 32, 64)]
    assert {d.C for d in border.domains() if border.Subject("mirror_sub16").takes(d)} == {16, 32, 64, 128}


def test_a_page_without_its_lines_is_not_touched(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="has no lines `<!-- x -->`"):
        replace_between(page, "x", "text")
    assert page.read_text() == "nothing\n"


def test_check_unchecked_computes_what_is_refused():
    line = "v1,N=2,gate=spike:0:-20.0,q=equal,k=equal"
    refused = CliRunner().invoke(main, ["check", line, "--impl", "mirror"])
    assert refused.exit_code == 1
    assert "refused" in refused.output
    computed = CliRunner().invoke(main, ["check", line, "--impl", "mirror", "--unchecked"])
    assert computed.exit_code == 1
    assert "failed" in computed.output
    assert "--impl mirror --target c --unchecked" in computed.output
    impossible = CliRunner().invoke(main, ["check", line, "--impl", "ref_A", "--unchecked"])
    assert impossible.exit_code == 2
    assert "ref_A cannot run unchecked" in impossible.output


@pytest.mark.parametrize(("what", "fewest"), [("domain", "--cases"), ("spread", "--seeds")])
def test_kda_plot_draws_a_png(tmp_path, what, fewest):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / f"{what}.png"
    result = CliRunner().invoke(main, ["plot", what, fewest, "1", "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert result.output == f"wrote {path}\n"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert 10_000 < path.stat().st_size < 150_000
    result = CliRunner().invoke(main, ["plot", what, fewest, "0", "-o", str(path)])
    assert result.exit_code == 2
    assert f"{fewest} is 0; expected at least 1" in result.output


def test_what_the_picture_of_the_domain_shows():
    """Red beyond the overflow, never inside the border."""
    for band in bands(8, points=6):
        inside = band.depths < band.domain.per_token * INSIDE
        assert (band.ratios[inside] <= 1).all()
        assert (band.ratios[band.depths > 1.01 * band.domain.overflow / band.domain.C] > 1).all()
        assert inside.any()
        assert not inside.all()
