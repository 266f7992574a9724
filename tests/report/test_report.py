"""Reports: the numbers against a slow reading of the paper's definitions, the texts, the page."""

from __future__ import annotations

import dataclasses
import json
import math
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from make_run import WRONG, by_comment, correct, episode, full_run, start

from cudaagent.config import load_config
from cudaagent.errors import UserError
from cudaagent.judge.verdict import failed
from cudaagent.report import (
    render_html,
    render_markdown,
    render_terminal,
    summarise,
    write_report,
)
from cudaagent.report.command import command
from cudaagent.report.records import Panel, Scores, Series
from cudaagent.report.svg import line_chart, ticks
from cudaagent.run_dir import RunDir


def scores_of(run: RunDir, label: str, state: str, level: int | None = None) -> Scores:
    found = [
        s for s in summarise(run).scores if (s.label, s.state, s.level) == (label, state, level)
    ]
    assert len(found) == 1
    return found[0]


def test_rates_and_geometric_means_are_those_of_the_paper(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.write_evaluation(
        "cold_start",
        [
            episode("a", correct(2.0, 1.6, 3.0)),
            episode("a", correct(1.01, 0.9, 1.0)),
            episode("b", correct(0.5, 0.4, 1.0)),
            episode("b", WRONG),
            episode("c", None),
        ],
    )
    row = scores_of(run, "cold_start", "final")
    assert (row.tasks, row.episodes, row.dropped) == (3, 5, 0)
    assert row.pass_rate == pytest.approx(3 / 5)
    assert row.faster_eager == pytest.approx(2 / 5)
    assert row.faster_compile == pytest.approx(1 / 5)
    assert row.speedup_eager == pytest.approx((2.0 * 1.01 * 0.5) ** (1 / 3))
    assert row.speedup_compile == pytest.approx((1.6 * 0.9 * 0.4) ** (1 / 3))
    assert row.top == pytest.approx(1 / 5)
    assert row.reward == pytest.approx((3 + 1 + 1 - 1 - 1) / 5)


def test_overall_is_the_task_weighted_mean_of_the_levels(tmp_path: Path) -> None:
    run = full_run(tmp_path, lift=0.1)
    overall, one, two = (scores_of(run, "agentic", "best", level) for level in (None, 1, 2))
    assert overall.episodes == one.episodes + two.episodes
    for name in ("pass_rate", "faster_eager", "top", "reward"):
        parts = [getattr(s, name) * s.episodes for s in (one, two)]
        assert getattr(overall, name) == pytest.approx(sum(parts) / overall.episodes)
    assert one.speedup_eager is not None
    assert two.speedup_eager is not None
    assert overall.speedup_eager is not None
    logs = math.log(one.speedup_eager) + 2 * math.log(two.speedup_eager)
    assert math.log(overall.speedup_eager) == pytest.approx(logs / 3)


def test_the_best_state_is_scored_beside_the_final_one(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.write_evaluation("agentic", [episode("a", WRONG, best=correct(3.0, 2.0, 3.0))])
    assert scores_of(run, "agentic", "best").reward == 3.0
    final = scores_of(run, "agentic", "final")
    assert (final.reward, final.pass_rate, final.speedup_eager) == (-1.0, 0.0, None)
    text = render_terminal([summarise(run)])
    assert "best state of each episode" in text
    assert "state at the end of each episode" in text


def test_dropped_episodes_and_faulty_tasks_count_for_nothing(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.write_evaluation(
        "agentic",
        [
            episode("a", correct(2.0, 2.0, 3.0)),
            episode("b", None, drop_reason="sandbox-lost"),
            episode("c", failed("task-random", "task", "output differs from call to call")),
        ],
    )
    row = scores_of(run, "agentic", "final")
    assert (row.episodes, row.dropped, row.pass_rate, row.tasks) == (1, 2, 1.0, 1)
    assert "1 (-2)" in render_terminal([summarise(run)])


def test_with_raw_speedups_as_reward_the_top_share_follows_the_milestones(tmp_path: Path) -> None:
    run = start(tmp_path, "r", "judge.reward=speedup")
    episodes = [episode("a", correct(1.2, 1.04, 1.04)), episode("b", correct(1.2, 1.06, 1.06))]
    run.write_evaluation("agentic", episodes)
    for step in (0, 1):
        run.write_trajectories("agentic", step, episodes)
    assert scores_of(run, "agentic", "final").top == 0.5
    assert [panel.metric for panel in summarise(run).panels] == ["reward"]


def test_variants_are_counted_by_the_callback(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.write_evaluation(
        "cold_start",
        [
            episode("a", correct(2.0, 1.6, 3.0), variant="fused"),
            episode("b", WRONG, variant="naive"),
            episode("b", WRONG),
            episode("c", None, variant="naive", drop_reason="wall-clock"),
        ],
    )
    assert summarise(run, by_comment).evaluations[0].variants == {
        "fused": 1,
        "naive": 1,
        "other": 1,
    }
    assert summarise(run).evaluations[0].variants == {}
    assert "33.3" in render_terminal([summarise(run, by_comment)])


def test_curves_come_from_trajectories_and_step_events(tmp_path: Path) -> None:
    run = start(tmp_path)
    for step, rewards in ((0, [1.0, -1.0]), (1, [3.0, 2.0]), (10, [3.0, 3.0])):
        run.write_trajectories(
            "agentic", step, [episode("a", correct(1.5, 1.1, reward)) for reward in rewards]
        )
        run.step("agentic", step, {"actor/entropy": 0.1 * step, "kl": math.nan, "note": "text"})
    panels = {panel.metric: panel for panel in summarise(run).panels}
    assert panels["reward"].series[0].points == ((0, 0.0), (1, 2.5), (10, 3.0))
    shares = {series.name: [y for _, y in series.points] for series in panels["shares"].series}
    assert shares == {
        "3": [0.0, 0.5, 1.0],
        "2": [0.0, 0.5, 0.0],
        "1": [0.5, 0.0, 0.0],
        "-1": [0.5, 0.0, 0.0],
    }
    assert panels["actor/entropy"].series[0].points == (
        (0, 0.0),
        (1, pytest.approx(0.1)),
        (10, 1.0),
    )
    assert set(panels) == {"reward", "shares", "actor/entropy"}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_terminal_text_fits_and_its_columns_align(tmp_path: Path, count: int) -> None:
    names = ["quickstart", "a-rather-long-name-of-a-run-with-a-seed-0", "c"][:count]
    reports = [summarise(full_run(tmp_path, name, lift=0.2), by_comment) for name in names]
    lines = render_terminal(reports).splitlines()
    assert all(len(line) <= 100 for line in lines if not line.startswith("run "))
    assert not any("..." in line for line in lines)
    rows = [line for line in lines if line.startswith("agentic PPO")]
    header = next(line for line in lines if line.startswith("evaluation"))
    assert len(rows[0]) == len(header)
    assert sum(line.startswith("cold start") and "87" in line for line in lines) >= count


def test_several_runs_stand_beside_each_other(tmp_path: Path) -> None:
    a = summarise(full_run(tmp_path, "a", lift=0.2))
    b = summarise(full_run(tmp_path, "b", "run.shuffle_rewards=true"))
    lines = render_terminal([a, b]).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("cold start"))
    assert lines[first].split()[2] == "a"
    assert lines[first + 1].split()[2] == "b"
    assert any("rewards shuffled (control)" in line for line in lines)
    page = render_html([a, b])
    assert "share of the top reward" in page
    assert page.count('class="line s1"') > 0


class Checker(HTMLParser):
    """Collects what a page would load and whether its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "polyline", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "line", "polyline", "circle"):
            assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x<b>&y"
    full_run(tmp_path, "plain", lift=0.1).path.rename(path)
    write_report(path, by_comment)
    page = (path / "report.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.loads == []
    assert "script" not in checker.tags
    assert {"svg", "table", "polyline"} <= checker.tags
    assert "x<b>" not in page
    assert "url(" not in page
    assert "isolation: process" in page


def test_every_chart_is_well_formed_and_stays_inside(tmp_path: Path) -> None:
    for panel in summarise(full_run(tmp_path)).panels:
        root = ET.fromstring(line_chart(panel))
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        circles = root.findall("circle")
        assert len(circles) == sum(y is not None for s in panel.series for _, y in s.points)
        for circle in circles:
            assert 0 <= float(circle.attrib["cx"]) <= width
            assert 0 <= float(circle.attrib["cy"]) <= height


def test_a_gap_breaks_the_line_and_one_point_still_shows() -> None:
    def chart(*points: tuple[int, float | None]) -> ET.Element:
        return ET.fromstring(line_chart(Panel("agentic", "m", "m", (Series("m", points),))))

    gap = chart((0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, 5.0))
    assert len(gap.findall("polyline")) == 2
    single = chart((7, 0.0))
    assert len(single.findall("polyline")) == 0
    assert len(single.findall("circle")) == 1


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-1.0, 3.0), (2e-7, 5e-7), (5.0, 5.0), (0.0, 0.0), (-3e4, 1e5)]
)
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    values = ticks(low, high)
    slack = 1e-6 * (values[-1] - values[0])
    assert values[0] <= low + slack
    assert values[-1] >= high - slack
    assert 2 <= len(values) <= 8
    assert values == sorted(values)


def test_a_stage_of_one_step_shows_its_metrics_as_numbers(tmp_path: Path) -> None:
    report = summarise(full_run(tmp_path))
    assert not [panel for panel in report.panels if panel.stage == "rft"]
    assert "| RFT | supervised/loss_last | 0.25 |" in render_markdown([report]).splitlines()
    assert "supervised/loss_last" not in render_terminal([report])


def test_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [full_run(tmp_path, name).path for name in ("a", "b")]
    assert command(runs, as_json=True) == 0
    out = capsys.readouterr().out
    assert [run["name"] for run in json.loads(out)["runs"]] == ["a", "b"]
    assert command(runs[:1]) == 0
    assert str(runs[0] / "report.html") in capsys.readouterr().out


def test_table_md_and_json_hold_the_same_numbers(tmp_path: Path) -> None:
    run = full_run(tmp_path, lift=0.1)
    report = write_report(run.path)
    text = (run.path / "table.md").read_text()
    assert text == render_markdown([report])
    row = scores_of(run, "agentic", "best")
    line = next(x for x in text.splitlines() if x.startswith("| agentic PPO | all |"))
    assert f"| {row.speedup_eager:.2f} | {row.speedup_compile:.2f} |" in line
    again = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert dataclasses.asdict(row) in again["scores"]


def test_a_report_after_a_kill_in_the_first_stage_shows_what_there_is(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.write_trajectories("single_turn", 0, [episode("a", correct(1.1, 1.0, 2.0))])
    text = render_terminal([write_report(run.path)])
    assert "single-turn PPO" in text
    assert "Held-out" not in text


def test_missing_and_empty_runs_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        write_report(tmp_path / "none")
    RunDir.open(load_config(overrides=[f"run.root={tmp_path}", "run.name=empty"]))
    with pytest.raises(UserError, match="nothing to report yet") as caught:
        write_report(tmp_path / "empty")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "empty" / "report.html").exists()
