"""A run as curves, lanes and a page: figures worked out by hand, and a page that needs nothing else."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from engine.postgres import MAJORS
from invariants.history.export import to_frame, write_parquet
from invariants.history.operations import Operation
from results.__main__ import results
from results.plans import generic, render
from results.plans.reference import named
from results.plans.tree import Node, line
from results.plans.verdict import Judged, judge
from results.report import lanes, look, making, overview, series
from results.runs import Verdict, write_json

S = 1_000_000_000
NASTY = "<script>alert('\"&')</script>"


def done(
    f: str,
    start_s: float,
    end_s: float | None,
    type_: Any = "ok",
    value: Any = None,
    process: str = "node-1",
    result: Any = None,
) -> Operation:
    end_ns = None if end_s is None else int(end_s * S)
    return Operation(process, 0, f, type_, {} if value is None else value, result, int(start_s * S), end_ns)


# The load begins at 100 s and lasts for 4.
HISTORY = (
    done("phase", 95, 95, value={"phase": "start"}, process="harness"),
    done("phase", 100, 100, value={"phase": "load"}, process="harness"),
    done("claim", 99, 99.5),
    *(done("claim", 100 + n / 10, 100 + n / 10 + 0.002, result={"ids": [n, n + 90]}) for n in range(10)),
    done("claim", 103.5, 103.6, result={"ids": []}),
    done("count", 103.6, 103.6, value={"event": "contended", "amount": 3}),
    done(
        "flush",
        101,
        101.004,
        value={"outcomes": [[1, "c", "done"], [2, "c", "done"]]},
        result={"committed": [[2, "c"]]},
    ),
    done("flush", 102, 102.5, "fail"),
    done("flush", 102, None, "info"),
    done("fault", 101, 103, value={"fault": "kill", "target": "node-1", "pid": 1}, process="harness"),
    done(
        "fault", 103, None, "info", value={"fault": "pause", "target": "node-2", "pid": 2}, process="harness"
    ),
    done("phase", 104, 104, value={"phase": "drain"}, process="harness"),
)
LINE = series.timeline(to_frame(HISTORY))


def curve(curves: tuple[series.Curve, ...], name: str) -> dict[float, float | None]:
    [found] = [one for one in curves if one.name == name]
    return dict(zip(found.xs, found.ys, strict=True))


def test_seconds_count_from_the_beginning_of_the_load() -> None:
    assert (LINE.load_s, LINE.end_s, LINE.step_s) == (4.0, 4.0, 0.25)
    assert LINE.bands == (series.Band("kill", 1.0, 3.0), series.Band("pause", 3.0, 4.0))


def test_a_rate_is_what_ended_well_in_a_step_and_nought_where_nothing_did() -> None:
    rates = series.rates(LINE)
    claims = curve(rates, "claim")
    assert claims[0.125] == 3 / 0.25
    assert sum(y or 0 for y in claims.values()) * 0.25 == 11
    assert claims[2.125] == 0
    assert sum(y or 0 for y in curve(rates, "flush").values()) * 0.25 == 1


def test_a_latency_is_that_of_the_step_and_none_where_nothing_ended() -> None:
    claims = curve(series.latencies(LINE, 0.5), "claim")
    assert claims[0.125] == pytest.approx(2)
    assert claims[3.625] == pytest.approx(100)
    assert claims[2.125] is None


def test_what_failed_and_what_nobody_knows_is_told_apart() -> None:
    assert curve(series.troubles(LINE), "failed")[2.625] == 4
    assert curve(series.troubles(LINE), "unknown")[2.125] == 4


def test_a_claim_is_told_with_what_it_took_and_an_outcome_that_was_refused_is_stale() -> None:
    claims = series.claims(LINE)
    assert sum(y or 0 for y in curve(claims, "claims").values()) * 0.25 == 11
    assert sum(y or 0 for y in curve(claims, "taken").values()) * 0.25 == 20
    assert curve(claims, "found nothing")[3.625] == 4
    [refused] = series.stale(LINE)
    assert (refused.name, sum(y or 0 for y in refused.ys)) == ("outcomes refused", 1 / 0.25)
    [contended] = series.contention(LINE)
    assert sum(y or 0 for y in contended.ys) == 3 / 0.25


def test_a_gauge_is_shown_by_its_name_unless_it_was_always_nought() -> None:
    at = [99 * S, 100 * S, 102 * S, 106 * S]
    frame = pl.DataFrame(
        {"at_ns": at * 2, "name": ["dead a"] * 4 + ["dead b"] * 4, "value": [5, 6, 7, 8, 0, 0, 0, 0]}
    )
    # Nobody looked between the last two.
    assert series.gauge(LINE, frame, "dead ") == (
        series.Curve("a", (0.0, 2.0, 6.0, 6.0), (6.0, 7.0, None, 8.0)),
    )


def test_a_history_without_operations_has_a_timeline_without_curves() -> None:
    line = series.timeline(to_frame(()))
    assert series.rates(line) == series.troubles(line) == series.latencies(line, 0.5) == ()


def test_what_has_ended_is_no_depth() -> None:
    frame = pl.DataFrame({"at_s": [0.0, 1.0], "done": [0, 9], "runnable": [3, 0], "outbox": [0, 0]})
    assert series.depths(frame) == (series.Curve("runnable", (0.0, 1.0), (3.0, 0.0)),)


VIOLATION = {
    "summary": f"row 7 was done twice {NASTY}",
    "transactions": [
        {
            "number": 3, "xid": 9, "lsn": "0/1", "committed_at": "2026-01-01 00:00:01+00:00", "who": "client-0 insert",
            "changes": [{"id": 7, "table": "gen_durable", "before": {}, "after": {"status": "runnable"}}],
        },
        {
            "number": 8, "xid": 12, "lsn": "0/2", "committed_at": "2026-01-01 00:00:02+00:00", "who": None,
            "changes": [
                {
                    "id": 7, "table": "gen_durable",
                    "before": {"status": "runnable", "lease_expires_at": None, "queue": "q"},
                    "after": {"status": "done", "lease_expires_at": "2026-01-01 00:00:05.5+00", "queue": "q"},
                },
                {"id": 1, "table": "signals", "before": {"name": "go"}, "after": {}},
            ],
        },
    ],
    "operations": [f"node-1 flush {NASTY}"],
}  # fmt: skip


def test_a_violation_has_a_lane_for_each_session_and_a_line_for_each_row() -> None:
    drawn = lanes.shown("single-owner", VIOLATION).grid.drawn
    assert drawn.lanes == ("client-0", lanes.NOBODY)
    [first], [second] = (row.boxes for row in drawn.rows)
    assert (first.lane, first.title, first.lines) == (
        "client-0",
        "insert",
        ("row 7 inserted: status runnable",),
    )
    assert (second.lane, second.lines, second.kind) == (
        lanes.NOBODY,
        ("row 7: status runnable → done, lease_expires_at ∅ → 00:00:05.5", "signals 1 deleted"),
        "offence",
    )


def test_a_wait_is_drawn_where_both_transactions_are_part_of_the_evidence() -> None:
    at_us = 1_767_225_601_500_000  # between the two
    wait = lanes.Seen("client-1", "client-0", "transactionid in picker/flush", at_us, at_us, 12, 9)
    grid = lanes.shown("single-owner", VIOLATION, [wait]).grid
    assert grid.drawn.waits == (lanes.Wait(lanes.NOBODY, ("client-0",), wait.lock, 0, 1),)
    [arrow] = [line for line in grid.lines if line.towards]
    assert (arrow.row, arrow.towards) == (3, "left")
    [bar] = grid.bars
    assert (bar.row, bar.end_row) == (3, 4)
    for other in (
        lanes.Seen("client-1", "client-0", "", at_us, at_us, 12, 10),
        lanes.Seen("client-1", "client-0", "", at_us, at_us, None, 9),
    ):
        assert lanes.shown("single-owner", VIOLATION, [other]).grid.drawn.waits == ()


def run_in(folder: Path, **changed: Any) -> Path:
    """A folder as a run leaves it."""
    folder.mkdir(parents=True)
    verdict = {
        "verdict": "violated",
        "reason": None,
        "seed": 1,
        "scenario": "mixed",
        "subject": "reference",
        "mutant": None,
        "postgres": {"version": "18.6", "source": "embedded", "settings": {"fsync": "off"}},
        "nodes": 2,
        "seconds": 4.0,
        "faults": [
            {"fault": "kill", "target": "node-1", "pid": 1, "lasted_ms": None, "did": {"nodes killed": 1}}
        ],
        "effects": {"claims reaped": 2},
        "invariants": {
            "single-owner": {"verdict": "violated", "checked": 3, "violated": 1, "violations": [VIOLATION]},
            "gate-cap": {
                "verdict": "unknown",
                "checked": 0,
                "violated": 0,
                "violations": [],
                "reason": NASTY,
            },
            "no-spin": {"verdict": "not_exercised", "checked": 0, "violated": 0, "violations": []},
        },
        "throughput": {"claim": 3.0, "jobs_ended": 2.5},
        "latency_ms": {"claim": {"count": 11, "p50": 2.0, "p90": 2.0, "p99": 90.0, "max": 100.0}},
        "ledger": {"transactions": 1_234, "changes": 5_678},
        "reproduce": f"nox -s stress -- --seed 1 {NASTY}",
    }
    write_json(folder / "verdict.json", Verdict(**(verdict | changed)))
    write_parquet(HISTORY, folder / "history.parquet")
    pl.DataFrame({"at_s": [0.0, 4.0], "runnable": [3, 0]}).write_parquet(folder / "depths.parquet")
    gauges = [(101 * S, "waiting", 1), (101 * S, "dead gen_durable", 70), (102 * S, "waiting", 0)]
    pl.DataFrame(gauges, schema=["at_ns", "name", "value"], orient="row").write_parquet(
        folder / "gauges.parquet"
    )
    at_us = 1_767_225_601_500_000
    waits = [(101 * S, at_us, "client-1", "client-0", "transactionid", "picker/flush", 12, 9)]
    columns = ["at_ns", "at_us", "waiter", "holder", "lock", "statement", "waiter_xid", "holder_xid"]
    pl.DataFrame(waits, schema=columns, orient="row").write_parquet(folder / "waits.parquet")
    scan = Node(
        kind="Index Scan", relation="gen_durable", alias="g", conditions={"Index Cond": "(a < b)"}, estimate=7
    )
    plan = Node(kind="Limit", estimate=7, children=(scan,))
    generic.write(folder, generic.Generic(version="18.6", plans={"picker/claim": plan}))
    return folder


def exploration_in(folder: Path) -> Path:
    """A folder as an exploration leaves it."""
    folder.mkdir(parents=True)
    drawn = lanes.Drawn(
        ("one", "two"),
        (
            lanes.Row("1", (lanes.Box("one", "admit: x/y", ("1 row", NASTY)),)),
            lanes.Row("2", (lanes.Box("two", "admit: x/y", ("waits",)),)),
            lanes.Row(
                "3", (lanes.Box("one", "commit"), lanes.Box("two", "↳ DeadlockDetected", (), "offence"))
            ),
        ),
        (lanes.Wait("two", ("one",), "row 7 of t", 1, 2), lanes.Wait("one", ("two",), "", 2, 2)),
    )
    race = {
        "verdict": "violated", "schedules": 9, "left_out": 1, "orders": 20, "whole": 1, "sampled": 0, "blocked": 3,
        "violated": ["no-deadlock"], "steps": 3, "why": ["two waits for one."], "found": [f"a deadlock {NASTY}"],
        "planner": "generic", "drawn": drawn, "schedule": "both-ends.json",
    }  # fmt: skip
    held = {
        "verdict": "held",
        "schedules": 9,
        "left_out": 0,
        "orders": 2,
        "whole": 0,
        "sampled": 2,
        "blocked": 0,
    }
    write_json(folder / "both-ends.json", {})
    write_json(
        folder / "verdict.json",
        {
            "schema": 1, "verdict": "violated", "seed": 1, "mutant": "buckets-unordered",
            "postgres": {"version": "18.6", "source": "embedded"}, "schedules": 18, "seconds": 1.5,
            "schedules_per_second": 12.0, "races": {"both-ends": race, "pair:a": held}, "reproduce": "nox -s explore",
        },
    )  # fmt: skip
    return folder


class Reader(HTMLParser):
    """What a page names, what it points at, and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "srcset", "action", "poster", "data"):
                self.targets.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run with everything in it."""
    return making.write(run_in(tmp_path_factory.mktemp("runs") / "run")).read_text("utf-8")


def without_curves(run: Path) -> Path:
    """They take long to draw."""
    (run / "history.parquet").unlink()
    return run


def test_a_page_is_whole_and_fetches_nothing(html: str) -> None:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert {target[1:] for target in reader.targets if target.startswith("#")} <= set(reader.ids)
    assert {target for target in reader.targets if not target.startswith("#")} == {"data:,"}
    assert "script" not in reader.tags
    assert "@import" not in html
    assert set(re.findall(r"url\(([^)]*)\)", html)) <= {f"#{name}" for name in reader.ids}
    assert {
        "violations",
        "invariants",
        "throughput",
        "depth",
        "latency",
        "claims",
        "stale",
        "contention",
        "dead",
        "waits",
        "trouble",
        "faults",
        "plans",
        "again",
    } <= set(reader.ids)


def test_a_page_says_what_the_run_says(html: str) -> None:
    assert '<p class="verdict violated">violated</p>' in html
    assert "0 invariants held, 1 violated, 1 unknown, 1 not exercised." in html
    assert "1,234 transactions, 5,678 row changes" in html
    assert "row 7: status runnable → done" in html
    assert "to the end" in html
    assert html.count("&lt;script&gt;alert") >= 4
    assert "somebody waits for client-0: transactionid in picker/flush, until commit 8" in html
    assert "Index Scan on gen_durable g  7 rows expected\n      Index Cond: (a &lt; b)" in html


def test_the_first_violation_comes_first_and_is_open_and_the_others_are_folded(tmp_path: Path) -> None:
    earlier = {**VIOLATION, "summary": "this came first", "transactions": VIOLATION["transactions"][:1]}
    judged = {"verdict": "violated", "checked": 3, "violated": 1}
    invariants = {
        "single-owner": {**judged, "violations": [VIOLATION]},
        "lifecycle": {**judged, "violations": [earlier]},
    }
    html = making.write(without_curves(run_in(tmp_path / "run", invariants=invariants))).read_text("utf-8")
    first, folded = html.index("this came first"), html.index("row 7 was done twice")
    assert first < html.index("<details>", first) < folded


def test_a_failing_schedule_is_drawn_with_arrows_from_who_waits_to_who_has_the_lock(tmp_path: Path) -> None:
    html = making.write(exploration_in(tmp_path / "explore")).read_text("utf-8")
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert "two waits for one: row 7 of t, until step 3" in html
    assert html.count('<div class="arrow left"') == html.count('<div class="arrow right"') == 1
    # The second wait was over as soon as it was found.
    assert html.count('<span class="bar"') == 1
    assert {target for target in reader.targets if not target.startswith("#")} == {"data:,", "both-ends.json"}
    assert "<script" not in html
    assert "2 sampled" in html


def test_a_comparison_of_plans_is_a_page_like_the_others(tmp_path: Path) -> None:
    page = tmp_path / "compared.html"
    done = CliRunner().invoke(results, ["plans", "compare", "16", "18", "--quiet", "--html", str(page)])
    assert done.exit_code == 0, done.output
    html = page.read_text("utf-8")
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert {target for target in reader.targets if not target.startswith("#")} == {"data:,"}
    assert {target[1:] for target in reader.targets if target.startswith("#")} <= set(reader.ids)
    assert '<p class="verdict changed-explained">' in html


def test_a_capture_has_the_trees_of_every_statement_on_its_page() -> None:
    captured = [Judged(named("18"))]
    html = render.page("Plans", captured, judge(captured))
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert {target for target in reader.targets if not target.startswith("#")} == {"data:,"}
    for label, statement in captured[0].capture.statements.items():
        assert f"<summary>{label}</summary>" in html
        for explained in statement.plans.values():
            assert escape(line(explained.plan)) in html


def test_every_scrolling_part_of_a_page_can_be_reached_and_has_a_name(html: str, tmp_path: Path) -> None:
    explored = making.write(exploration_in(tmp_path / "explore")).read_text("utf-8")
    for page in (html, explored):
        scrolling = re.findall(r'<div class="scroll"([^>]*)>', page)
        assert scrolling
        assert all('tabindex="0" role="region" aria-label="' in attributes for attributes in scrolling)
        assert all('role="img" aria-label="' in svg for svg in re.findall(r"<svg[^>]*>", page))
        assert '<html lang="en">' in page
        assert page.index('class="skip" href="#main"') < page.index("<header>")


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    digits = colour.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    """WCAG 2.2, contrast ratio."""
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


STYLE = Path(look.__file__).with_name("templates") / "style.css"
BLOCKS = re.findall(r":root \{(.*?)\}", STYLE.read_text("utf-8"), re.DOTALL)
THEMES = [dict(re.findall(r"--(\w+): (#\w+)", block)) for block in BLOCKS]


def test_contrast_is_worked_out_as_the_guidelines_do() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#fff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", THEMES, ids=["light", "dark", "print"])
def test_letters_stand_out_from_their_ground_and_curves_from_theirs(theme: dict[str, str]) -> None:
    grounds = {
        "paper": ("ink", "faint", "held", "violated", "unknown", "line2"),
        "panel": ("ink", "faint"),
        "changed": ("ink", "faint"),
    }
    for ground, letters in grounds.items():
        for letter in letters:
            assert contrast(theme[letter], theme[ground]) >= 4.5, (letter, ground)
    for stroke in ("line1", "line2", "line3", "line4", "line5"):
        for ground in ("paper", "band"):
            assert contrast(theme[stroke], theme[ground]) >= 3, (stroke, ground)


@pytest.mark.parametrize("missing", ["history.parquet", "depths.parquet"])
def test_a_run_without_a_history_or_depths_has_a_page_all_the_same(tmp_path: Path, missing: str) -> None:
    run = run_in(tmp_path / "run")
    (run / missing).unlink()
    html = making.write(run).read_text("utf-8")
    assert 'id="invariants"' in html
    assert 'id="depth"' not in html


def test_a_run_that_never_began_has_a_page_too(tmp_path: Path) -> None:
    run = run_in(
        tmp_path / "run", verdict="unknown", reason="interrupted", postgres={}, invariants={}, faults=[],
        throughput={}, latency_ms={}, effects={},
    )  # fmt: skip
    assert "interrupted" in making.write(without_curves(run)).read_text("utf-8")


def test_a_run_on_several_hosts_names_them_and_how_far_their_clocks_were_off(tmp_path: Path) -> None:
    clocks = [{"offset_ms": 0.0, "error_ms": 0.0}, {"offset_ms": 86_400_000.25, "error_ms": 1.25}, None]
    hosts = [
        {"name": f"host-{place}", "hostname": f"h{place}", "cores": 2, "clock": clock}
        for place, clock in enumerate(clocks)
    ]
    html = making.write(without_curves(run_in(tmp_path / "run", hosts=hosts))).read_text("utf-8")
    assert "host-0 (h0), by this machine&#39;s clock" in html
    assert "host-1 (h1), clock put right by 86,400,000.250 ms ± 1.250 ms" in html
    assert "host-2 (h2), whose clock has no place in the run&#39;s time" in html


def test_all_runs_stand_on_one_page_newest_first_and_each_gets_its_own(tmp_path: Path) -> None:
    for place in range(3):
        without_curves(run_in(tmp_path / f"2026010{place}-mixed", verdict="held" if place else "violated"))
    (without_curves(run_in(tmp_path / "20260108-mixed")) / "depths.parquet").write_bytes(b"cut off")
    broken = tmp_path / "20260109-mixed"
    broken.mkdir()
    (broken / "verdict.json").write_text("{")
    done = CliRunner().invoke(results, ["report", "--all", str(tmp_path)])
    assert done.exit_code == 0, done.output
    html = (tmp_path / "index.html").read_text("utf-8")
    reader = Reader()
    reader.feed(html)
    linked = [target for target in reader.targets if target.endswith(look.NAME)]
    assert linked == [f"2026010{place}-mixed/report.html" for place in (2, 1, 0)]
    assert all((tmp_path / target).is_file() for target in linked)
    assert "20260109-mixed" in html
    # Listed, with the reason why it has no page to lead to.
    assert "20260108-mixed/depths.parquet cannot be read" in html
    # Two of the three held, and were asked for the same.
    assert "Trends" in html
    assert "last to the median before" in html
    # The committed captures.
    assert all(f'<th scope="row">{major}.' in html for major in MAJORS)


def test_runs_are_compared_only_with_runs_that_were_asked_for_the_same() -> None:
    def run(rate: float, nodes: int = 2, **changed: Any) -> Verdict:
        asked = f"nox -s stress -- --seconds 20 --nodes {nodes} --faults kill,pause --seed 3"
        told: dict[str, Any] = {
            "verdict": "held", "reason": None, "seed": 1, "scenario": "mixed", "subject": "reference", "mutant": None,
            "postgres": {"version": "18.6"}, "nodes": nodes, "seconds": 20.0, "faults": [], "invariants": {},
            "throughput": {"jobs_ended": rate}, "latency_ms": {}, "ledger": {}, "reproduce": asked,
        }  # fmt: skip
        return Verdict(**(told | changed))

    alone, broken = run(999, nodes=8), run(999, mutant="outcome-unguarded")
    [trend] = overview.trends_of([run(100), alone, broken, run(200), run(999, verdict="unknown"), run(300)])
    assert (trend.rates, trend.ratio) == ((100, 200, 300), 2.0)
    assert trend.what == "mixed · 2 nodes · Postgres 18.6 · 20 s · under kill, pause"


def test_the_overview_has_the_mutants_the_ablation_and_the_benchmark_where_there_are_some(
    tmp_path: Path,
) -> None:
    exploration_in(tmp_path / "20260101-explore")
    caught = {"instrument": "explore", "sight": "caught", "seconds": 1.24, "by": ["k1-exclusion"]}
    seen = [{"instrument": "script", "sight": "held"}, caught]
    lost = [{"instrument": "script", "sight": "apart"}, {"instrument": "model", "sight": "held"}]
    figures = {"mutants": 2, "caught": 1, "median_s": 1.2, "longest_s": 1.2, "seconds": 9.0}
    made = {
        "20260101-mutants/verdict.json": {
            "verdict": "violated", "figures": figures, "mutants": {"one": {"seen": seen}, "two": {"seen": lost}},
        },
        "20260101-ablate/ablation.json": {
            "verdict": "violated", "open": [{"variant": "picker/claim: lock"}],
            "figures": {"variants": 3, "tried": 3, "caught": 2, "explained": 0},
        },
        "20260101-bench/bench.json": {
            "samples": [
                {"workload": "drain", "contender": "engine", "figures": {"per_s": each}, "verdict": "held"}
                for each in (100.0, 300.0, 200.0)
            ]
        },
        "20260101-plans/verdict.json": {
            "verdict": "held", "reason": None, "servers": ["18.6 (embedded)"], "profile": "medium", "invariants": [],
        },
        "20260101-ci/verdict.json": {
            "verdict": "held", "mutant": None, "seconds": 90.0,
            "parts": {"queue": {"verdict": "held", "folder": "20260101-mixed"}},
        },
        "20260101-bad/bench.json": {"samples": [1]},
    }  # fmt: skip
    for name, value in made.items():
        (tmp_path / name).parent.mkdir()
        write_json(tmp_path / name, value)
    html = overview.write(tmp_path).read_text("utf-8")
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert 'queue <span class="held">held</span>' in html
    assert {"explorations", "checks", "plans", "mutants", "races", "ablation", "bench"} <= set(reader.ids)
    assert '<td class="caught">1.2 s</td>' in html
    assert "explore: k1-exclusion" in html
    # Survivors come first.
    assert html.index('<th scope="row">two</th>') < html.index('<th scope="row">one</th>')
    assert "picker/claim: lock" in html
    assert "per_s 200" in html
    assert "20260101-bad is no benchmark" in html


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say which run"),
        (["nowhere"], "nowhere is no folder"),
        (["."], "holds no verdict.json"),
        (["--all", "nowhere"], "nowhere is no folder of runs"),
        (["--all", "a", "b"], "takes one folder"),
        (["--all", "."], "holds no run that has ended"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(results, ["report", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert "Traceback" not in done.output
