"""The papers' figures at their smallest scale: they can be made, and the expected claims hold."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))
figures = pytest.importorskip("figures")

# Claims that hold at the small scale; the others are stated as not holding, with the reason, in each README.md.
HOLDING = {
    "panama_fig1": 4,
    "panama_fig2": 1,
    "panama_fig9": 3,
    "panama_fig10": 3,
    "atp_simulated": 6,
}


def test_every_figure_has_its_page() -> None:
    for name in figures.names():
        text = (EXPERIMENTS / name / "README.md").read_text()
        assert "**Command.**" in text and f"FIG={name}" in text


@pytest.mark.parametrize("name", sorted(HOLDING))
def test_a_small_figure(name: str, tmp_path: Path) -> None:
    figures.make(name, "small", tmp_path / name)
    result = json.loads((tmp_path / name / "result.json").read_text())
    claims = result["claims"]
    assert sum(claim["holds"] for claim in claims) >= HOLDING[name], json.dumps(claims, indent=1)
    assert all(set(claim) == {"claim", "paper", "ours", "holds", "why", "samples"} and claim["why"] for claim in claims)
    ElementTree.parse(tmp_path / name / "figure.svg")


def test_a_shared_cluster(tmp_path: Path) -> None:
    """16 servers are too few for percentiles: the claim is that aggregation trains faster than the ring."""
    result = figures.make("panama_fig8", "small", tmp_path / "panama_fig8")
    by_claim = {claim["claim"]: claim for claim in result["claims"]}
    assert by_claim["greedy: 8c: training time, ring / panama"]["ours"] > 1.2
    assert len(result["data"]["points"]) == 32 and len(result["data"]["sensitivity"]) == 24
    root = ElementTree.parse(tmp_path / "panama_fig8" / "figure.svg").getroot()
    assert not root.findall(".//{*}g//{*}svg"), "a picture in the picture would be scaled and moved"
    style = root.find("{*}style").text
    used = {line.get("class").split()[-1] for line in root.iter("{http://www.w3.org/2000/svg}polyline")}
    assert len(used) == 7 and all(f".{name} {{ stroke:" in style for name in used), "every line has a colour"


def test_readings_of_a_shared_cluster(tmp_path: Path) -> None:
    """Every reading is run and described, with the prediction from before its runs."""
    result = figures.make("panama_fig8_readings", "small", tmp_path / "panama_fig8_readings")
    readings = result["data"]["readings"]
    page = (EXPERIMENTS / "panama_fig8_readings" / "README.md").read_text()
    described = " ".join(page.replace("|", " ").split())
    for reading in readings:
        assert f"| {reading['reading']} |" in page and reading["prediction"] in described
        numbers = {number["number"]: number["median"] for number in reading["numbers"]}
        assert len(numbers) == 7 and numbers["training r/p"] > 1
    assert len({str(reading["numbers"]) for reading in readings}) == len(readings), "a reading is another one's"
    assert len(result["claims"]) == 7 * len(readings) + 1
