"""The article's figures again: a verdict can fail, a disagreement has its reason, no draw beats the worst case."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from kda.tables import data, markdown, print_table, rows
from kda.tables.findings import FINDINGS
from kda.tables.row import AGREES, DISAGREES, UNEXPLAINED, WITHIN, WORST_CASE, Sample, TableRow, agrees, span


@pytest.fixture(scope="module")
def table():
    return rows()


@pytest.mark.parametrize(
    ("article", "ours", "expected"),
    [
        ("1.70e-2", 0.01704, True),
        ("1.70e-2", 0.01706, False),
        ("2.6e5", 258048.0, True),
        ("2.58e5", 258600.0, False),
        ("2016", 2017.0, False),
        ("54.95", Sample(53.0, 45.0, 93.0, 100), True),
        ("44.9", Sample(53.0, 44.94, 93.0, 100), True),
        ("44.8", Sample(53.0, 44.94, 93.0, 100), False),
        ("93.1", Sample(53.0, 45.0, 93.0, 100), False),
        ("0", Sample(0.0, 0.0, 0.0, 100), True),
        ("1.04", float("nan"), False),
        ("fits", "fits", True),
        ("fits", "overflows", False),
    ],
)
def test_a_figure_agrees_to_its_printed_digits(article, ours, expected):
    assert agrees(article, ours) is expected


def test_the_median_and_the_ends_of_a_sample():
    assert Sample.of(np.array([3.0, 1.0, 10.0, 2.0, 4.0])) == Sample(3.0, 1.0, 10.0, 5)


def test_any_row_would_disagree_with_another_figure(table):
    for row in table:
        if row.article is None:
            continue
        if isinstance(row.ours, str):
            wrong = ["something else"]
        else:
            low, high = span(row.ours)
            wrong = [f"{high + abs(high) / 2 + 1:.4g}", f"{low - abs(low) / 2 - 1:.4g}"]
        for article in wrong:
            assert replace(row, article=article).verdict == UNEXPLAINED, row.key


def test_a_finding_explains_only_the_numbers_it_was_made_for(table):
    by_key = {row.key: row for row in table}
    listing = by_key["4.1 listing"]
    assert listing.verdict == DISAGREES
    assert replace(listing, ours=300.0).verdict == UNEXPLAINED
    both = by_key["2.1 both ends"]
    assert replace(both, ours="fits in 3 of 100 seeds").verdict == UNEXPLAINED


def test_all_tables_are_there(table):
    assert sum(row.article is not None for row in table) >= 45
    assert {row.section for row in table} >= {"1.2", "1.3", "2.1", "2.2", "2.3", "3.3", "3.4", "4.0", "5"}
    assert len({row.key for row in table}) == len(table)
    assert all(row.key.split(" ")[0] == row.section for row in table)


def test_every_disagreement_is_explained_and_every_finding_is_one(table):
    assert [row.key for row in table if row.verdict == UNEXPLAINED] == []
    assert {row.key for row in table if row.verdict == DISAGREES} == set(FINDINGS)


def test_only_drawn_figures_have_a_range(table):
    for row in table:
        if row.verdict == WITHIN:
            assert isinstance(row.ours, Sample), row.key
            assert row.ours.seeds == 100
        elif row.verdict in (AGREES, WORST_CASE):
            assert not isinstance(row.ours, Sample), row.key


def test_no_draw_is_worse_than_the_worst_case(table):
    by_key = {row.key: row for row in table}
    worst = {row.key.removesuffix(" worst"): row.ours for row in table if row.verdict == WORST_CASE}
    ranges = re.compile(r"1\.3 max [\d.]+$|2\.[123] (max|min|vanished|spread|ratio|decades) ")
    assert {key for key in by_key if ranges.match(key) and not key.endswith("worst")} == set(worst)
    for key, limit in worst.items():
        drawn = by_key[key].ours
        if " min " in key:
            assert limit <= drawn.low * (1 + 1e-12), key
        else:
            assert limit >= drawn.high * (1 - 1e-12), key


def test_the_worst_case_is_the_constant_gate_at_the_bound(table):
    row = next(row for row in table if row.key == "2.3 max 128 worst")
    assert row.ours == pytest.approx(7.2e5, rel=0.01)
    assert row.note == "beyond float16's 65504"


def test_another_run_gives_the_same_page():
    assert markdown(rows(3)) == markdown(rows(3))


def test_a_seed_draws_the_same_however_many_there_are():
    few, more = ({row.key: row.ours for row in rows(seeds)} for seeds in (3, 5))
    for key, ours in few.items():
        if isinstance(ours, Sample):
            assert more[key].low <= ours.low, key
            assert ours.high <= more[key].high, key


def test_rows_without_a_seed_are_refused():
    with pytest.raises(ValueError, match="seeds is 0; expected at least 1"):
        rows(0)


def test_the_markdown_is_one_table(table):
    lines = markdown(table).splitlines()
    assert len(lines) == len(table) + 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[:-2]} == {8}
    assert lines[1] == "|" + " --- |" * 7
    assert lines[-1].startswith(f"{len(table)} rows: ")


def test_a_bar_in_a_cell_does_not_end_it():
    row = TableRow("9 bar", "9", "max |x|", "1", 1.0)
    assert "max \\|x\\|" in markdown([row])


def test_the_data_is_flat_and_survives_json(table):
    made = data(table)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    for row, entry in zip(table, made, strict=True):
        assert entry["verdict"] == row.verdict
        assert (entry["seeds"] is not None) == isinstance(row.ours, Sample)
        if entry["low"] is not None:
            assert entry["low"] <= entry["ours"] <= entry["high"]
        assert bool(entry["why"]) == (row.verdict == DISAGREES)


def test_the_console_shows_every_section_and_the_totals(table):
    console = Console(width=180, file=io.StringIO())
    print_table(table, console)
    shown = console.file.getvalue()
    assert "[C, DK]" in shown
    assert f"{len(table)} rows: " in shown
    assert f"{len(FINDINGS)} disagrees" in shown
