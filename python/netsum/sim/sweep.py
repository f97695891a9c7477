"""Many configurations: over the cores of this machine, or over a Ray cluster. What is complete is not run again."""

import copy
import itertools
import json
import os
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsum.sim import toml
from netsum.sim.errors import SimError
from netsum.sim.result import Result
from netsum.sim.runner import GIVEN, run

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Sweep:
    """A base configuration and, by dotted key ("scheme.kind", "flows.0.load"), the values to be combined."""

    base: dict[str, Any]
    grid: dict[str, list[Any]]

    @staticmethod
    def read(path: Path) -> "Sweep":
        """A file with `base = "run.toml"` (relative to it) and a table `grid`."""
        try:
            content = tomllib.loads(path.read_text())
            base = tomllib.loads((path.parent / content["base"]).read_text())
            grid = content["grid"]
        except KeyError as error:
            raise SimError(f'{path}: a sweep has base = "run.toml" and a table [grid]; {error} is missing') from None
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise SimError(f"{path}: {error}") from None
        unknown = set(content) - {"base", "grid"}
        if unknown:
            raise SimError(f"{path}: a sweep has no key {sorted(unknown)[0]!r}; it has base and grid")
        if not grid or not all(isinstance(values, list) and values for values in grid.values()):
            raise SimError(f"{path}: every key of [grid] has a list of values")
        return Sweep(_with_absolute_paths(base, (path.parent / content["base"]).parent.resolve()), grid)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Every combination: a name that serves as folder, and the configuration."""
        runs = {}
        for values in itertools.product(*self.grid.values()):
            config = copy.deepcopy(self.base)
            for key, value in zip(self.grid, values, strict=True):
                _set(config, key, value)
            chosen = zip(self.grid, values, strict=True)
            runs[",".join(f"{key}={_short(value)}" for key, value in chosen)] = config
        return runs


def sweep(
    runs: dict[str, dict[str, Any]] | Sweep,
    out: Path | str,
    *,
    engine: str = "local",
    workers: int | None = None,
    done: Callable[[str, int, int], None] | None = None,
) -> dict[str, Result]:
    """Run all configurations into folders of `out`, named by their keys; `done` hears name, count and total.

    Each run has one thread: runs side by side lose nothing, threads of one run do.

    engine: "local" runs `workers` processes at a time (as many as there are cores); "ray" runs on the cluster that
    ray.init finds, whose nodes must have netsum and, at the same paths, the files that configurations name.
    A run that is complete with the very same configuration is kept. Raises SimError at the first run that fails, once
    those at work have ended; what is complete stays.
    """
    if engine not in ENGINES:
        raise SimError(f"no engine is named {engine!r}; use one of {', '.join(ENGINES)}")
    configs = runs.runs() if isinstance(runs, Sweep) else runs
    out = Path(out)
    open_runs = {name: config for name, config in configs.items() if not _is_complete(out / name, config)}
    count = len(configs) - len(open_runs)
    start = _ray if engine == "ray" else _local
    for name in start(open_runs, out, workers or os.cpu_count() or 1):
        count += 1
        if done:
            done(name, count, len(configs))
    results = {name: Result(out / name) for name in configs}
    summaries = {name: result.summary for name, result in results.items()}
    (out / "sweep.json").write_text(json.dumps(summaries, indent=2) + "\n")
    return results


def _local(runs: dict[str, dict], out: Path, workers: int) -> Iterator[str]:
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(run, config, out / name, threads=1): name for name, config in runs.items()}
        try:
            while futures:
                finished, _ = wait(futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = futures.pop(future)
                    _raise_named(name, future.exception())
                    yield name
        finally:
            for future in futures:
                future.cancel()


def _ray(runs: dict[str, dict], out: Path, _workers: int) -> Iterator[str]:
    try:
        import ray
    except ImportError as error:
        raise SimError("the engine ray needs Ray: `pip install ray`") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    task = ray.remote(num_cpus=1)(_elsewhere)
    futures = {task.remote(config): name for name, config in runs.items()}
    while futures:
        finished, _ = ray.wait(list(futures), num_returns=1)
        name = futures.pop(finished[0])
        try:
            files = ray.get(finished[0])
        except ray.exceptions.RayTaskError as error:
            _raise_named(name, error.cause)
        (out / name).mkdir(parents=True, exist_ok=True)
        # The summary says that a run is complete: it comes last.
        for file in sorted(files, key=lambda file: file == "summary.json"):
            (out / name / file).write_bytes(files[file])
        yield name


def _elsewhere(config: dict) -> dict[str, bytes]:
    """A run on another machine: the files that it wrote."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run(config, folder, threads=1)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _raise_named(name: str, error: BaseException | None) -> None:
    if isinstance(error, SimError):
        raise SimError(f"{name}: {error}")
    if error is not None:
        raise error


def _is_complete(folder: Path, config: dict) -> bool:
    given = folder / GIVEN
    return (folder / "summary.json").is_file() and given.is_file() and given.read_text() == toml.dumps(config)


def _set(config: dict, key: str, value: Any) -> None:
    place: Any = config
    *parents, last = key.split(".")
    try:
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[int(last) if isinstance(place, list) else last] = value
    except (IndexError, ValueError, TypeError, AttributeError):
        raise SimError(f"the base configuration has no place for {key!r}") from None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isalnum() or c in "._-*" else "_" for c in text)


def _with_absolute_paths(config: dict, folder: Path) -> dict:
    """Files that a configuration names are relative to it, and runs stand elsewhere."""
    for table in [config.get("fabric", {}), *config.get("flows", [])]:
        for key in ("path", "sizes"):
            if key in table and (folder / table[key]).is_file():
                table[key] = str(folder / table[key])
    if "scenario" in config:
        config["scenario"] = str(folder / config["scenario"])
    return config
