"""The results of a run, read from its folder."""

import csv
import functools
import json
import tomllib
from pathlib import Path
from typing import Any

from netsum.sim.errors import SimError

FORMATS = ("csv", "parquet")
TABLES = ("flows", "steps", "jobs", "links", "samples")
_TEXT = {"part", "from", "to", "model"}


class Result:
    """One folder with tables, CSV or Parquet. COLUMNS.md in it documents the columns and their units."""

    def __init__(self, folder: Path | str, *, complete: bool = True) -> None:
        """Raises SimError if the run in `folder` is incomplete; with `complete=False` its tables can still be read."""
        self.folder = Path(folder)
        if complete and not (self.folder / "summary.json").is_file():
            raise SimError(f"{self.folder} holds no complete run: summary.json is missing; run it again")

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """Counts, means and percentiles."""
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    @functools.cached_property
    def effective(self) -> dict[str, Any]:
        """The configuration with all defaults, as used by the simulator."""
        return tomllib.loads((self.folder / "effective.toml").read_text(encoding="utf-8"))

    @property
    def unfinished_jobs(self) -> int:
        """Jobs that had not completed their steps when the run ended; those of a standing mix have no last step."""
        found: int = self.summary["unfinished_jobs"]
        return found

    def rows(self, table: str) -> list[dict[str, Any]]:
        """A table (one of TABLES) as dictionaries; numbers as int or float, empty fields None. Parquet: by pyarrow."""
        path = self._path(table)
        if path.suffix == ".parquet":
            found: list[dict[str, Any]] = _arrow().read_table(path).to_pylist()
            return found
        with path.open(newline="") as file:
            return [{name: _number(name, text) for name, text in row.items()} for row in csv.DictReader(file)]

    def frame(self, table: str) -> Any:
        """A table as a pandas data frame; needs pandas, and pyarrow for Parquet."""
        try:
            import pandas
        except ImportError as error:
            raise SimError("data frames need pandas: `pip install pandas`; `rows` does without") from error
        path = self._path(table)
        return _arrow().read_table(path).to_pandas() if path.suffix == ".parquet" else pandas.read_csv(path)

    def _path(self, table: str) -> Path:
        if table not in TABLES:
            raise SimError(f"no table is named {table!r}; use one of {', '.join(TABLES)}")
        paths = [self.folder / f"{table}.{name}" for name in FORMATS]
        for path in paths:
            if path.is_file():
                return path
        raise SimError(f"{paths[0]} is missing, and {paths[1].name} too: this is no folder of a run")


def require_arrow() -> None:
    """Raises SimError unless Parquet can be read here."""
    _arrow()


def _arrow() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SimError('Parquet needs pyarrow: `pip install pyarrow`, or use the format "csv"') from error
    return parquet


def _number(name: str, text: str) -> Any:
    if name in _TEXT:
        return text
    if text == "":
        return None
    return float(text) if "." in text else int(text)
