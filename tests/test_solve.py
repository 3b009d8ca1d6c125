"""Three solvers of the triangular system: within their bounds everywhere, or, by doubling, broken where powers grow."""

import json
from math import comb

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from small_project import ROOT

from kda.case import Case
from kda.cli import main
from kda.formats import BF16, F16, F32, F64
from kda.numerics.solve import (
    BLOCK,
    SOLVERS,
    blockwise,
    doubling_product,
    exact_solution,
    forward_substitution,
    power_sizes,
    skeel_scale,
    solve_error,
    system,
)
from kda.references import ref_C_fast
from kda.support import Support
from kda.tables import solve as study
from strategies import cases

#: Anything a kernel of 40 tokens a chunk may be given; gates that leave no operand subnormal.
ANY = Support(dtypes=(F64,), total_gates={F64: 5.0}, max_beta=2.0, max_tokens=40, max_batch=1, max_heads=2, max_C=40)
CASES = cases(ANY, window=40, edits=False)
# Bounds are of first order in u; what they leave out is u |T||I + L|, below a tenth on these cases.
SLACK = 1.1

EQUAL = Case.parse("v1,N=64,DK=16,C=64,dtype=f32,k=equal,v=gauss")
EQUAL_BUT_FOR_A_DECAY = EQUAL.replace(gate="constant:0.999")
GAUSS = EQUAL.replace(k="gauss", gate="uniform:0.9:0.999", beta="uniform:0.1:0.9")


def inverse(L):
    return exact_solution(L, np.broadcast_to(np.eye(L.shape[-1]), L.shape))


def rows(x):
    return np.linalg.norm(x, axis=-1)


def bound_of_substitution(L, R, precision):
    """Per row: L and every finished x_c are rounded once; sums are float32 (docs/solve.md)."""
    own = precision.unit_roundoff + (L.shape[-1] + 1) * F32.unit_roundoff
    return SLACK * own * rows(skeel_scale(L, exact_solution(L, R)))


def bound_of_blocks(L, R, precision):
    """Per row: a running error bound, |T computed - T| <= E, carried through the merges."""
    u, sums = precision.unit_roundoff, (L.shape[-1] + 1) * F32.unit_roundoff
    E = error_of_inverse(np.abs(L), np.abs(inverse(L)), u, sums)
    return SLACK * rows(E @ np.abs(R) + (2 * u + sums) * np.abs(inverse(L)) @ np.abs(R))


def error_of_inverse(L, T, u, sums):
    C = L.shape[-1]
    if C <= BLOCK:
        return u * T + (sums + F32.unit_roundoff) * T @ (np.eye(C) + L) @ T
    half = -(-C // (2 * BLOCK)) * BLOCK
    first, last = (..., slice(half), slice(half)), (..., slice(half, C), slice(half, C))
    T1, T2, L21 = T[first], T[last], L[..., half:, :half]
    E = np.zeros_like(T)
    E[first], E[last] = error_of_inverse(L[first], T1, u, sums), error_of_inverse(L[last], T2, u, sums)
    of_product = E[last] @ L21 + (2 * u + sums) * T2 @ L21
    E[..., half:, :half] = of_product @ T1 + T2 @ L21 @ (E[first] + (u + sums) * T1)
    return E


BOUNDS = {"substitution": bound_of_substitution, "blocks": bound_of_blocks}


# The system


def test_the_system_is_the_one_that_the_references_solve():
    case = Case.parse(
        "v1,B=2,N=9,H=3,DK=5,DV=4,C=9,dtype=f64,gate=uniform:0.5:0.9,beta=uniform:0.1:0.9,k=gauss,v=gauss"
    )
    inputs, seen = case.inputs(), []
    ref_C_fast(inputs, case.C, case.DV, trace=seen.append)
    (values,) = (chunk.values for chunk in seen)
    L, R = system(inputs)
    np.testing.assert_allclose(L, values["L"], rtol=0, atol=1e-14)
    written = np.moveaxis(inputs.beta, 2, 1)[..., None] * exact_solution(L, R)
    np.testing.assert_allclose(written, np.concatenate([values["W"], values["U"]], axis=-1), rtol=0, atol=1e-13)


def test_the_system_is_held_as_float32_holds_it():
    for x in system(GAUSS.inputs()):
        assert F32.holds(x)
        assert not F16.holds(x)


@given(CASES)
@settings(max_examples=60, deadline=None)
def test_the_inverse_never_exceeds_beta(case):
    L, _ = system(case.inputs())
    beta = np.moveaxis(case.inputs().beta, 2, 1)
    assert (np.abs(np.tril(inverse(L), -1)) <= beta[..., None, :] * (1 + 1e-12) + 1e-15).all()


@given(CASES)
@settings(max_examples=30, deadline=None)
def test_the_exact_solution_solves(case):
    L, R = system(case.inputs())
    X = exact_solution(L, R)
    left = np.abs(X + L @ X - R)
    assert (left <= 64 * F64.unit_roundoff * (np.abs(R) + np.abs(X) + np.abs(L) @ np.abs(X))).all()


# The solvers


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("C", [1, 2, 15, 16, 17, 33, 48, 64])
def test_in_float64_all_solvers_are_one(solver, C):
    L, R = system(GAUSS.replace(N=C, dtype=F64, B=2).inputs())
    X = exact_solution(L, R)
    np.testing.assert_allclose(SOLVERS[solver](L, R, F64), X, rtol=0, atol=1e-13)


@pytest.mark.parametrize("solver", BOUNDS)
@given(case=CASES, precision=st.sampled_from([F32, F16]))
@settings(max_examples=60, deadline=None)
def test_a_good_solver_stays_within_its_bound_on_any_keys(solver, case, precision):
    L, R = map(F32.round, system(case.inputs()))
    error = rows(SOLVERS[solver](L, R, precision) - exact_solution(L, R))
    assert (error <= BOUNDS[solver](L, R, precision) + precision.min_subnormal * L.shape[-1]).all()


@pytest.mark.parametrize("solver", BOUNDS)
@pytest.mark.parametrize("precision", [F32, F16], ids=str)
def test_on_equal_keys_blocks_are_as_good_as_substitution_must_be(solver, precision):
    L, R = system(EQUAL_BUT_FOR_A_DECAY.inputs())
    error = rows(SOLVERS[solver](L, R, precision) - exact_solution(L, R))
    bound = bound_of_substitution(L, R, precision)
    assert (error <= bound).all()
    assert error.max() > 1e-4 * bound.max()  # the bound is of use


def test_substitution_in_float32_has_the_bits_of_the_mirror():
    seen = []
    ref_C_fast(EQUAL_BUT_FOR_A_DECAY.inputs(), 64, 16, F32, trace=seen.append)
    L, U = seen[0].values["L"], seen[0].values["U"]  # beta is 1
    np.testing.assert_array_equal(forward_substitution(L, np.moveaxis(EQUAL.inputs().v, 2, 1), F32), U)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("precision", [F32, F16, BF16], ids=str)
def test_on_random_keys_all_solvers_are_as_good_as_the_format(solver, precision):
    case = GAUSS.replace(B=4, dtype=precision)
    L, R = system(case.inputs())
    error = solve_error(SOLVERS[solver], L, R, precision)
    # Two roundings of operands, and the sums of 64 terms where they count.
    assert (error.units <= 2 + (66 if precision is F32 else 0)).all()
    assert (error.relative <= 4 * precision.unit_roundoff + 66 * F32.unit_roundoff).all()


# What breaks the doubling product


@pytest.mark.parametrize("C", study.CHUNKS)
def test_the_powers_grow_like_binomials(C):
    L, _ = system(EQUAL.replace(N=C, dtype=F64).inputs())
    exact = [1.0, *(float(comb(C - 2, k - 1)) for k in range(1, C))]
    np.testing.assert_allclose(power_sizes(L[0, 0]), exact, rtol=1e-11)
    assert max(exact) == exact[C // 2]


def test_the_powers_of_integers_are_exact():
    L, _ = system(Case.parse("v1,N=32,DK=1,C=32,dtype=f64").inputs())  # one channel: all keys are 1
    np.testing.assert_array_equal(L, np.tri(32, k=-1)[None, None])
    assert power_sizes(L[0, 0]).tolist() == [1, *(comb(30, k - 1) for k in range(1, 32))]


@given(st.integers(2, 40), st.floats(0.1, 2.0), st.floats(0.5, 1.0))
def test_beta_and_a_decay_scale_the_powers(C, beta, a):
    L = np.where(np.tri(C, k=-1), beta * a ** (np.arange(C)[:, None] - np.arange(C)[None, :]), 0.0)
    distance = np.arange(1, C)
    for k in range(1, C):
        largest = max(comb(int(d) - 1, k - 1) * float(a) ** int(d) for d in distance) * beta**k
        assert power_sizes(L)[k] == pytest.approx(largest, rel=1e-10)


@pytest.mark.parametrize("case", [EQUAL, EQUAL_BUT_FOR_A_DECAY, EQUAL.replace(k="sign")], ids=["", "decay", "sign"])
def test_the_doubling_product_breaks_on_equal_keys(case):
    L, R = system(case.inputs())
    X = exact_solution(L, R)
    broken = rows(doubling_product(L, R, F32) - X)
    # It loses the roundoff of the largest binomial, whole or nearly so.
    lost = F32.unit_roundoff * comb(62, 31)
    assert 0.01 * lost < broken.max() / rows(X).max() < 100 * lost
    bound = bound_of_substitution(L, R, F32)
    for solver in ("substitution", "blocks"):
        assert (rows(SOLVERS[solver](L, R, F32) - X) <= bound).all()
    assert broken.max() > 1e9 * bound.max()


def test_float16_overflows_and_bfloat16_is_wrong_in_silence():
    L, R = system(EQUAL_BUT_FOR_A_DECAY.inputs())
    assert np.isinf(solve_error(doubling_product, L, R, F16).units).all()
    assert np.isinf(solve_error(doubling_product, L, R, F16).relative).all()
    assert np.isfinite(doubling_product(L, R, BF16)).all()
    assert (solve_error(doubling_product, L, R, BF16).relative > 1e6).all()


@pytest.mark.parametrize("off", [0.5, 3.0, 40.0])
def test_an_error_of_known_size_is_measured(off):
    L, R = system(GAUSS.replace(B=2).inputs())
    X, scale = exact_solution(L, R), skeel_scale(L, exact_solution(L, R))

    def wrong(L, R, precision):
        made = X.copy()
        made[1, 0, 7] += off * precision.unit_roundoff * scale[1, 0, 7]
        return made

    error = solve_error(wrong, L, R, F32)
    np.testing.assert_allclose(error.units[:, 0], [0.0, off], rtol=1e-6)
    assert error.relative[0, 0] == 0
    assert 0 < error.relative[1, 0] < 10 * off * F32.unit_roundoff


def test_the_scale_of_a_small_system():
    L, X = np.array([[0.0, 0.0], [-0.5, 0.0]]), np.array([[1.0], [-2.0]])
    # |T| = [1, 0; 0.5, 1], |I + L| |X| = [1, 2.5]
    np.testing.assert_array_equal(skeel_scale(L, X), [[1.0], [3.0]])


def test_the_inverse_of_a_block_is_made_in_float32_and_stored_in_the_operand_format():
    L, R = system(EQUAL_BUT_FOR_A_DECAY.replace(N=16).inputs())
    T = F16.round(forward_substitution(L, np.eye(16)[None, None], F32))
    np.testing.assert_array_equal(blockwise(L, R, F16), blockwise_of(T, F16.round(R)))


def blockwise_of(T, R):
    total = np.zeros(R.shape, np.float32)
    for i in range(T.shape[-1]):
        total += T[..., :, i, None].astype(np.float32) * R[..., i, None, :].astype(np.float32)
    return F16.round(total)


def test_blocks_store_what_they_merge_in_the_operand_format():
    L, _ = system(EQUAL_BUT_FOR_A_DECAY.inputs())
    T = blockwise(L, np.broadcast_to(np.eye(64), L.shape), F16)
    assert F16.holds(T)
    assert not F16.holds(L)


# The study


@pytest.fixture(scope="module")
def measured():
    return study.rows(2, (study.SETTINGS[0], study.SETTINGS[5]))


def test_every_row_is_a_case_line_that_measures_it_again(measured):
    assert len(measured) == 2 * 4 * 3 * 3
    for row in measured[:: len(measured) // 7]:
        case = Case.parse(str(row.case))
        assert (case.N, case.B) == (case.C, 2)
        L, R = system(case.inputs())
        error = solve_error(SOLVERS[row.solver], L, R, case.dtype)
        assert row.units.high == error.units.max()
        assert row.relative.low == error.relative.min()


def test_the_study_covers_what_it_promises():
    kinds = {setting["k"] for setting in study.SETTINGS}
    assert kinds >= {"gauss", "equal", "parallel:0.01", "sign", "positive"}
    assert {setting["beta"] for setting in study.SETTINGS} >= {"uniform:0.1:0.9", "one", "near1", "uniform:1.0:2.0"}
    assert study.CHUNKS == (16, 32, 64, 128)


def test_the_data_says_what_overflowed(measured):
    made = study.data(measured)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert [entry["case"] for entry in made] == [str(row.case) for row in measured]
    lost = {(entry["solver"], Case.parse(entry["case"]).dtype) for entry in made if entry["units"] is None}
    assert lost == {("doubling", F16)}


def test_the_page_shows_the_growth_that_is_computed(measured):
    page = (ROOT / "docs" / "solve.md").read_text()
    growth = study.markdown(measured).split("\n\n")[0].strip()
    assert growth.count("\n") == 5
    assert growth in page


def test_a_study_without_draws_is_refused():
    with pytest.raises(ValueError, match="seeds is 0; expected at least 1"):
        study.rows(0)


# The commands


def kda(*words):
    return CliRunner().invoke(main, list(words))


@pytest.fixture
def few(monkeypatch):
    """Two settings instead of ten."""
    original = study.rows
    monkeypatch.setattr(study, "rows", lambda seeds, settings=study.SETTINGS[-2:]: original(seeds, settings[:2]))


def test_kda_solve_measures_and_writes(few, tmp_path):
    data, page = tmp_path / "made" / "solve.json", tmp_path / "solve.md"
    page.write_text("# Solving\n\n<!-- kda solve -->\n| old |\n<!-- end -->\n\nWhat it means.\n")
    result = kda("solve", "--seeds", "1", "--json", str(data), "--markdown", str(page))
    assert result.exit_code == 0, result.output
    assert "f32, C = 64" in result.stdout
    assert "4.654e+17" in result.stdout
    assert len(json.loads(data.read_text())) == 2 * 4 * 3 * 3
    text = page.read_text()
    assert text.startswith("# Solving\n\n<!-- kda solve -->\n")
    assert text.endswith("<!-- end -->\n\nWhat it means.\n")
    assert "| old |" not in text
    assert text.count("| doubling |") == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("# Solving\n", "has no lines `<!-- kda solve -->` and `<!-- end -->` to write between"),
    ],
)
def test_a_page_without_a_place_is_refused(few, tmp_path, text, says):
    page = tmp_path / "solve.md"
    if text is not None:
        page.write_text(text)
    result = kda("solve", "--seeds", "1", "--markdown", str(page))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert says in line
    assert not page.exists() or page.read_text() == text


@pytest.mark.parametrize("words", [("solve",), ("plot", "solve")])
def test_the_commands_need_a_draw(words):
    if "plot" in words:
        pytest.importorskip("matplotlib")
    result = kda(*words, "--seeds", "0")
    assert (result.exit_code, result.stderr) == (2, "Error: --seeds is 0; expected at least 1\n")


def test_kda_plot_solve_draws_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "made" / "solve.png"
    result = kda("plot", "solve", "--seeds", "1", "-o", str(path))
    assert (result.exit_code, result.stdout) == (0, f"wrote {path}\n")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 100_000


def test_a_missing_matplotlib_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = kda("plot", "solve", "-o", str(tmp_path / "solve.png"))
    assert result.exit_code == 2
    assert result.stderr == (
        'Error: matplotlib is not installed, which draws the pictures; pip install "kda-properties[plot]"\n'
    )
