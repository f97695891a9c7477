"""The results of a run, as the simulator left them in a folder."""

import csv
import functools
import json
from pathlib import Path
from typing import Any

from netsum.sim.errors import SimError

TABLES = ("flows", "steps", "jobs", "links", "samples")
_TEXT = {"part", "from", "to", "model"}


class Result:
    """One folder. COLUMNS.md in it says what each column means, and in which unit it is."""

    def __init__(self, folder: Path | str) -> None:
        """Raises SimError if the run in `folder` is not complete."""
        self.folder = Path(folder)
        if not (self.folder / "summary.json").is_file():
            raise SimError(f"{self.folder} holds no complete run: summary.json is missing; run it again")

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """Counts, means and percentiles."""
        return json.loads((self.folder / "summary.json").read_text())

    def rows(self, table: str) -> list[dict[str, Any]]:
        """A table (one of TABLES) as dictionaries; numbers as int or float, empty fields as None."""
        if table not in TABLES:
            raise SimError(f"no table is named {table!r}; use one of {', '.join(TABLES)}")
        with (self.folder / f"{table}.csv").open(newline="") as file:
            return [{name: _number(name, text) for name, text in row.items()} for row in csv.DictReader(file)]

    def frame(self, table: str) -> Any:
        """A table as a pandas data frame; needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise SimError("data frames need pandas: `pip install pandas`; `rows` does without") from error
        if table not in TABLES:
            raise SimError(f"no table is named {table!r}; use one of {', '.join(TABLES)}")
        return pandas.read_csv(self.folder / f"{table}.csv")

    def write_parquet(self) -> list[Path]:
        """Every table as Parquet beside its CSV; needs pyarrow."""
        try:
            from pyarrow import csv as arrow
            from pyarrow import parquet
        except ImportError as error:
            raise SimError("Parquet needs pyarrow: `pip install pyarrow`") from error
        written = []
        for table in TABLES:
            path = self.folder / f"{table}.parquet"
            parquet.write_table(arrow.read_csv(self.folder / f"{table}.csv"), path)
            written.append(path)
        return written


def _number(name: str, text: str) -> Any:
    if name in _TEXT:
        return text
    if text == "":
        return None
    return float(text) if "." in text else int(text)
