"""The picture of wrong cells: each kind of mistake has the look that names it, and none is larger than a screen."""

import numpy as np
import pytest

from kda.diagnosis.cells import cells, worst_member
from kda.diagnosis.picture import COLUMNS, LINES, picture
from kda.formats import F32
from kda.numerics.budget import Budget
from kda.problem import Outputs, Tile

NAN = float("nan")


def drawn(spoil, B=1, N=70, H=1, DK=16, DV=32, C=16, block_DV=16, allowed=1e-3, tile=True):
    """The picture of Gaussian outputs after `spoil(o, final_state)`, whose rows may be off by `allowed`."""
    rng = np.random.default_rng(0)
    expected = Outputs(rng.normal(size=(B, N, H, DV)), rng.normal(size=(B, H, DK, DV)))
    got = Outputs(expected.o.copy(), expected.final_state.copy())
    spoil(got.o, got.final_state)
    budget = None if allowed is None else Budget(np.full((B, N, H), allowed), np.full((B, H, DK), allowed))
    lines = picture(got, expected, budget, Tile(C, block_DV, F32) if tile else None)
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert all(line.isascii() and line == line.rstrip() for line in lines)
    return lines


def body(lines):
    """The lines between the ruler and the legend."""
    return lines[2:-1]


RIGHT, WRONG = "................", "OOOOOOOOOOOOOOOO"


def test_the_second_chunk_alone():
    def spoil(o, state):
        o[:, 16:32] += 0.1

    assert drawn(spoil) == [
        "o: 16 of 70 tokens wrong; final_state is right",
        "chunk  token   0                16",
        f"0      0..15   {RIGHT}|{RIGHT}",
        "       ------  ----------------+----------------",
        f"1      16..31  {WRONG}|{WRONG}",
        "       ------  ----------------+----------------",
        f"2..4   32..69  {RIGHT}|{RIGHT}",
        ". right   o O # wrong by up to 10, 1000, more shares of the budget   ! NaN, inf",
    ]


def test_the_last_row_of_each_chunk():
    def spoil(o, state):
        o[:, 15::16] += 0.1

    assert body(drawn(spoil)) == [
        f"0..3   row 0..14  {RIGHT}|{RIGHT}",
        f"       row 15     {WRONG}|{WRONG}",
        "       ---------  ----------------+----------------",
        f"4      64..69     {RIGHT}|{RIGHT}",
    ]


def test_the_upper_block_of_channels_in_o_and_in_the_state():
    def spoil(o, state):
        o[..., 16:] += 0.1
        state[..., 16:] += 0.1

    lines = drawn(spoil)
    assert lines[0].split("  ")[0] == "o: 70 of 70 tokens wrong"
    assert lines[0].endswith("  final_state: 16 of 16 keys wrong")
    assert body(lines) == [f"0..4   0..69  {RIGHT}|{WRONG}  0..15  {RIGHT}|{WRONG}"]


def test_the_tokens_after_a_border():
    def spoil(o, state):
        o[:, 16] += 0.1

    assert [line.split()[:2] for line in body(drawn(spoil, N=32)) if "|" in line] == [
        ["0", "0..15"],
        ["1", "16"],
        ["17..31", f"{RIGHT}|{RIGHT}"],
    ]


def test_one_token():
    def spoil(o, state):
        o[:, 37] += 0.1

    assert [line for line in body(drawn(spoil)) if "O" in line] == [f"       37      {WRONG}|{WRONG}"]


def test_one_key_channel_of_the_state():
    def spoil(o, state):
        state[:, :, 5] += 0.1

    lines = drawn(spoil)
    assert lines[0] == "final_state: 1 of 16 keys wrong; o is right"
    assert body(lines) == [f"0..4   {RIGHT}|{RIGHT}", f"5      {WRONG}|{WRONG}", f"6..15  {RIGHT}|{RIGHT}"]


def test_marks_say_how_large_an_error_is_beside_its_share():
    """The share of a cell of 32 channels is the budget of the row over sqrt(32)."""
    share = 1e-3 / 32**0.5

    def spoil(o, state):
        o[:, 0, :, :4] += 0.9 * share, 9 * share, 900 * share, 2000 * share
        o[:, 0, :, 4] = NAN
        o[:, 0, :, 5] = np.inf

    assert body(drawn(spoil, N=1)) == ["0      .oO#!!..........|................"]


def test_a_row_within_its_budget_is_right_whatever_its_cells_are():
    def spoil(o, state):
        o[:, 0, :, 0] += 0.9e-3
        o[:, 1, :, 0] += 1.1e-3

    (right, wrong, rest) = body(drawn(spoil, N=3))
    assert "o" not in right + rest
    assert wrong.split()[1].startswith("o.")


def test_bits_that_differ():
    def spoil(o, state):
        o[:, 2, :, 3] = np.nextafter(o[:, 2, :, 3], 9)

    lines = drawn(spoil, N=3, allowed=None)
    assert body(lines) == [f"0..1   {RIGHT}|{RIGHT}", "2      ...#............|................"]
    assert lines[-1] == ". right   # other bits   ! NaN, inf"
    assert drawn(spoil, N=3, allowed=0.0) == lines


def test_equal_nan_and_signed_zero_are_right():
    one = Outputs(np.full((1, 1, 1, 16), NAN), np.zeros((1, 1, 16, 16)))
    assert picture(one, Outputs(one.o, -one.final_state), None, None) == ["no picture: every row is within its budget"]


def test_a_mark_stands_for_the_worst_of_the_channels_it_holds():
    def spoil(o, state):
        o[:, 3, :, 100] += 0.05
        state[..., 64:] += 0.05

    lines = drawn(spoil, N=160, DK=128, DV=128, C=64, block_DV=32)
    assert lines[-1].endswith("1 mark: 4 channels")
    token = next(line for line in lines if line.split()[0] == "3" and "O" in line)
    assert "........|........|........|.O......" in token
    assert sum("........|........|OOOOOOOO|OOOOOOOO" in line for line in lines) == 1


def test_rows_that_are_wrong_here_and_there_fall_back_to_chunks_with_a_count():
    def spoil(o, state):
        o[:, ::3] += 0.1

    lines = [line for line in body(drawn(spoil)) if "|" in line]
    assert [line.split()[0] for line in lines] == ["0", "1..2", "3", "4"]
    assert [line.split("  ")[-1] for line in lines] == [f"{n} of these" for n in (6, 10, 6, 2)]


@pytest.mark.parametrize("every", [1, 2, 3, 5, 7, 16, 17, 20, 31, 40])
@pytest.mark.parametrize(("N", "C"), [(1, 16), (33, 16), (400, 16), (320, 64)])
def test_it_never_grows_beyond_a_screen(N, C, every):
    def spoil(o, state):
        o[0, ::every, 1] += 0.2
        o[:, 1::every, 2] += 0.1
        state[0, 1, ::every] += 0.1

    lines = drawn(spoil, B=2, N=N, H=3, C=C)
    assert "o: " in lines[0]
    assert "final_state: " in lines[0]
    assert lines[-2].startswith("batch 0, head 1 is drawn")
    assert any("O" in line for line in body(lines))


def test_too_many_chunks_end_in_one_line_for_the_rest():
    def spoil(o, state):
        o[:, 16::32] += 0.1

    lines = body(drawn(spoil, N=320))
    assert len(lines) == 9
    assert lines[-1].split()[:2] == ["8..19", "128..319"]
    assert lines[-1].endswith("6 of these")


def test_speckles_of_rounding_do_not_tear_rows_apart():
    """With errors of a few shares some cells of a wrong row are right by chance; the rows are drawn as one."""
    rng = np.random.default_rng(1)

    def spoil(o, state):
        o[:, 16:] += 1e-3 * rng.normal(size=o[:, 16:].shape)

    lines = [line for line in body(drawn(spoil)) if "|" in line]
    assert [line.split()[:2] for line in lines] == [["0", "0..15"], ["1..4", "16..69"]]


def test_a_cell_that_is_right_by_chance_does_not_part_rows():
    def spoil(o, state):
        o += 0.05
        o[:, 1, :, 7] -= 0.05
        state[:, :, :4] += 0.05

    (first, second) = body(drawn(spoil, N=3))
    assert first.startswith(f"0..2   {WRONG}|{WRONG}")
    assert second.endswith(f"4..15  {RIGHT}|{RIGHT}")


def test_a_channel_that_is_right_in_every_row_shows():
    def spoil(o, state):
        o[..., np.arange(32) != 7] += 0.05

    assert body(drawn(spoil, N=3)) == ["0..2   OOOOOOO.OOOOOOOO|OOOOOOOOOOOOOOOO"]


def test_rows_that_differ_are_told_apart_as_long_as_they_fit():
    def spoil(o, state):
        o[:, 0, :, 1] += 0.1
        o[:, 1, :, 2] += 0.1
        o[:, 2] += 0.1
        o[:, 3] = NAN

    assert [line.split()[0] for line in body(drawn(spoil, N=4))] == ["0", "1", "2", "3"]


def test_a_mark_never_reaches_over_the_border_of_a_block():
    def spoil(o, state):
        o[..., 64:] += 0.1

    lines = drawn(spoil, N=20, DV=320, block_DV=32)
    assert lines[-1].endswith("1 mark: 8 channels")
    assert body(lines)[0].endswith("....|....|" + "|".join(["####"] * 8))


def test_without_a_tile_there_are_no_borders():
    def spoil(o, state):
        o[:, 16:] += 0.1

    assert body(drawn(spoil, tile=False)) == [f"0..15   {RIGHT * 2}", f"16..69  {WRONG * 2}"]


def member(lines):
    """The line that says what the other heads look like."""
    return lines[-2]


def test_the_others_in_words():
    def everywhere(o, state):
        o[:, 3] += 0.1

    def two_heads(o, state):
        o[0, 3, 1:] += 0.1
        o[0, 3, 2] += 0.1
        o[1, 5, 0] += 0.01

    assert member(drawn(everywhere, H=4)) == "batch 0, head 0 is drawn; the same rows are wrong in all 4 heads"
    assert member(drawn(everywhere, B=2, H=2)).endswith("the same rows are wrong in all 4 heads of 2 batches")
    assert member(drawn(two_heads, B=3, H=3)) == (
        "batch 0, head 2 is drawn; the same rows wrong in: 1 of 8; right: 6 of 8; other rows wrong in: 1 of 8"
    )
    assert member(drawn(lambda o, state: two_heads(o, state), B=2, H=3)[-3:]).startswith("batch 0, head 2 is drawn; ")


def test_whole_batches_go_by_their_number():
    def spoil(o, state):
        o[0, 3, 1] += 0.1

    assert member(drawn(spoil, B=2, H=2)) == "batch 0, head 1 is drawn; right: batch 0 head 0, batch 1"


def test_the_worst_head_is_drawn():
    def spoil(o, state):
        o[0, 3, 0] += 0.1
        o[1, 5, 2] += 0.2
        state[1, 1] += 0.15

    assert member(drawn(spoil, B=2, H=3)).startswith("batch 1, head 2 is drawn")

    def lost(o, state):
        o[1, 5, 2] += 1e9
        o[0, 3, 1] = NAN

    assert member(drawn(lost, B=2, H=3)).startswith("batch 0, head 1 is drawn")

    def more(o, state):
        o[0, 5, 0] += 1
        o[1, 3, 1] += 2

    def lost_later(o, state):
        more(o, state)
        o[1, 3, 2] = NAN

    assert member(drawn(more, B=2, H=3, allowed=None)).startswith("batch 1, head 1 is drawn")
    assert member(drawn(lost_later, B=2, H=3, allowed=None)).startswith("batch 1, head 2 is drawn")


def test_shapes_that_disagree_are_said():
    one, other = (Outputs(np.zeros((1, N, 1, 16)), np.zeros((1, 1, 16, 16))) for N in (3, 4))
    assert picture(one, other, None, None) == ["no picture: o has shape (1, 3, 1, 16); expected (1, 4, 1, 16)"]


def test_an_output_that_was_left_out_is_not_drawn():
    one = Outputs(np.zeros((1, 3, 1, 16)), np.empty(0))
    other = one.with_o(np.ones_like(one.o))
    (made,) = cells(one, other, None)
    assert worst_member([made]) == (0, 0)
    assert picture(one, other, None, None)[0] == "o: 3 of 3 tokens wrong"
