"""The page of the papers' claims: every entry can be found, and the verdicts follow their rules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))
paper = pytest.importorskip("paper")


def finding(claimed, ours, holds=False, samples=()):
    return paper.Finding("panama_fig8", "ratio", claimed, ours, holds, "why", list(samples))


def entry(**changed):
    return paper.Entry("PANAMA", "Fig. 8a", "faster", **({"figure": "panama_fig8", "results": ["ratio"]} | changed))


def test_every_statement_of_the_five_papers_is_there():
    entries = paper.load()
    count = {name: sum(each.paper == name for each in entries) for name in {each.paper for each in entries}}
    least = {"PANAMA": 14, "ATP": 8, "Blink": 8, "NTT": 4, "Light collectives": 2}
    assert all(count[name] >= least[name] for name in least), count
    # Whatever an experiment claims of a paper is on the page; one is of no paper.
    used = {each.figure for each in entries} | {r.partition(": ")[0] for each in entries for r in each.readings}
    assert {run.parent.name for run in EXPERIMENTS.glob("*/run.py")} - {"what_to_use_when"} <= used


@pytest.mark.parametrize(
    ("found", "neutral", "expected"),
    [
        ([finding(4.5, 4.2, holds=True)], 1.0, "holds"),
        ([finding(4.5, 2.0)], 1.0, "holds in direction"),
        ([finding(4.5, 2.0)], None, "does not hold"),
        ([finding(4.5, 0.99)], 1.0, "does not hold"),
        ([finding(4.5, 4.2, holds=True), finding(4.5, 0.9)], 1.0, "does not hold"),
        ([finding(4.5, 1.3, samples=(1.2, 1.3, 1.4))], 1.0, "holds in direction"),
        ([finding(4.5, 1.3, samples=(0.9, 1.3, 1.7))], 1.0, "does not hold"),
        ([finding("equal", "0.9")], 1.0, "does not hold"),
        ([], 1.0, "not run"),
        ([finding(4.5, None)], 1.0, "not run"),
    ],
)
def test_a_verdict_follows_its_rule(found, neutral, expected):
    if any(each.samples for each in found):
        pytest.importorskip("scipy")
    assert paper.verdict(entry(neutral=neutral), found) == expected


def test_an_interval_is_that_of_students_t():
    pytest.importorskip("scipy")
    # Mean 2, standard deviation 1, three values: 4.303 / √3 to each side (two-sided 95 %, two degrees of freedom).
    low, high = finding(1, 2, samples=(1.0, 2.0, 3.0)).interval()
    assert (low, high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)


def test_a_picture_has_no_variables_left():
    svg = "<style>:root { --page: #fff; --c0: #0a7d72; } @media (prefers-color-scheme: dark) { :root { --c0: #45c; } } "
    plain = paper._plain(svg + ".series-0 { stroke: var(--c0); }</style>")
    assert ".series-0 { stroke: #0a7d72; }" in plain and "@media" not in plain


def test_what_does_not_fit_is_named(tmp_path):
    (tmp_path / "panama_fig8").mkdir()
    (tmp_path / "panama_fig8/result.json").write_text(json.dumps({"claims": []}))
    with pytest.raises(paper.PaperError, match="no claim that begins with 'ratio'"):
        paper.collect([entry()], tmp_path)
    claims = tmp_path / "claims.toml"
    head = '[[claim]]\npaper = "ATP"\nwhere = "§ 1"\ntext = "x"\n'
    for text, expected in (
        ('figure = "atp_moon"\nresults = ["x"]', "no experiment atp_moon"),
        ('results = ["x"]\ncolour = 3', "colour"),
        ("", "either"),
        ('needs = "y"\ntests = ["python/tests/test_paper.py::test_moon"]', "no test"),
    ):
        claims.write_text(head + text)
        with pytest.raises(paper.PaperError, match=expected):
            paper.load(claims)


def test_a_page_from_a_run(tmp_path):
    run = [sys.executable, EXPERIMENTS / "ntt_examples/run.py", "--out", tmp_path / "fig/ntt_examples"]
    subprocess.run(run, check=True, capture_output=True, timeout=300)
    command = [sys.executable, EXPERIMENTS / "paper.py", "--fig", tmp_path / "fig", "--out", tmp_path / "paper"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "1 holds" in ended.stdout and "not run" in ended.stdout
    result = json.loads((tmp_path / "paper/result.json").read_text())
    by_where = {row["entry"]["where"]: row for row in result["claims"]}
    assert by_where["Slides 11, 20, 21"]["verdict"] == "holds"
    assert by_where["Fig. 10"]["verdict"] == "not run"
    text = (tmp_path / "paper/index.html").read_text()
    assert "0.60" in text and "data:image/svg+xml;base64," in text and "http" not in text.replace("http-equiv", "")
    # A figure that does not hold any more changes the page, and nothing else has to.
    path = tmp_path / "fig/ntt_examples/result.json"
    changed = json.loads(path.read_text())
    changed["claims"][0]["holds"] = False
    path.write_text(json.dumps(changed))
    rows = paper.collect(paper.load(), tmp_path / "fig")
    assert next(row for row in rows if row.entry.where == "Slides 11, 20, 21").verdict == "does not hold"
