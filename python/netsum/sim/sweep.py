"""Runs many configurations, on the cores of this machine or on a Ray cluster. Completed runs are skipped."""

import contextlib
import copy
import hashlib
import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsum.fabric import binaries
from netsum.sim import files, runner, toml
from netsum.sim.errors import SimError
from netsum.sim.result import Result
from netsum.sim.runner import GIVEN

ENGINES = ("local", "ray")
# Inputs of a run beside its configuration.
INPUTS = "inputs.json"
# Limit of file systems: 255 bytes.
_NAME_BYTES = 200


@dataclass(frozen=True)
class Sweep:
    """A base configuration and, by dotted key ("scheme.kind", "flows.0.load"), the values to combine.

    File names in the grid's values are relative to `folder`, or else to the working directory.
    """

    base: dict[str, Any]
    grid: dict[str, list[Any]]
    folder: Path | None = None

    @staticmethod
    def read(path: Path) -> "Sweep":
        """A file with `base = "run.toml"` (relative to it, as are all files it names) and a table `grid`."""
        content = toml.read(path)
        for key in ("base", "grid"):
            if key not in content:
                raise SimError(f'{path}: a sweep has base = "run.toml" and a table [grid]; {key!r} is missing')
        unknown = set(content) - {"base", "grid"}
        if unknown:
            raise SimError(f"{path}: a sweep has no key {sorted(unknown)[0]!r}; it has base and grid")
        base, grid = content["base"], content["grid"]
        if not isinstance(base, str):
            raise SimError(f'{path}: base: {base!r} is no path; write base = "run.toml", relative to this file')
        if not isinstance(grid, dict):
            raise SimError(f"{path}: grid: {grid!r} is no table; write [grid] and below it lists by dotted key")
        if not grid or not all(isinstance(values, list) and values for values in grid.values()):
            raise SimError(
                f'{path}: every key of [grid] has a list of values, and dotted keys are quoted: "flows.0.load" = [0.1]'
            )
        base_path = path.parent / base
        if not base_path.is_file():
            raise SimError(
                f"{path}: base: there is no file {base_path}; give the path of a configuration, relative to this file"
            )
        plan = Sweep(files.absolute(toml.read(base_path), base_path.parent.resolve()), grid, path.parent.resolve())
        try:
            for config in plan.runs().values():
                toml.dumps(config)
        except SimError as error:
            raise SimError(f"{path}: {error}") from None
        return plan

    def runs(self) -> dict[str, dict[str, Any]]:
        """Every combination: its name, which is also its folder, and configuration. Raises SimError for duplicates."""
        runs = {}
        for name, chosen in self.chosen().items():
            config = copy.deepcopy(self.base)
            for key, value in chosen.items():
                _set(config, key, files.absolute(value, self.folder or Path.cwd(), key.rpartition(".")[2]))
            runs[name] = config
        return runs

    def chosen(self) -> dict[str, dict[str, Any]]:
        """Every combination: its name, and its grid values. Raises SimError for a duplicate value."""
        for key, values in self.grid.items():
            twice = [text for text, count in Counter(_exact(value) for value in values).items() if count > 1]
            if twice:
                raise SimError(f"[grid]: {key} lists {twice[0]} twice; name every value once")
        combinations = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        names = [",".join(f"{_short(key)}={_short(value)}" for key, value in one.items()) for one in combinations]
        alike = Counter(names)
        return {
            name if alike[name] == 1 and len(name.encode()) <= _NAME_BYTES else _with_hash(name, one): one
            for name, one in zip(names, combinations, strict=True)
        }


def sweep(
    runs: dict[str, dict[str, Any]] | Sweep,
    out: Path | str,
    *,
    engine: str = "local",
    workers: int | None = None,
    done: Callable[[str, int, int], None] | None = None,
) -> dict[str, Result]:
    """Run all configurations into folders of `out`, named by their keys; `done` is called with name, count and total.

    Each run has one thread: parallel runs scale fully, parallel threads of one run do not.

    engine: "local" runs `workers` processes at a time (as many as there are cores); "ray" runs on the cluster that
    ray.init finds, whose nodes must have netsum and, at the same paths, the files that configurations name.
    A run is skipped if it is complete with the same configuration, files and simulator. Before the first run all
    remaining ones are checked: SimError names a rejected one, and nothing has been run. Raises SimError also at the
    first run that fails, once the running ones have ended; completed runs are kept. A KeyboardInterrupt ends the
    running ones with complete tables, and carries a note with the number of completed runs.
    """
    if engine not in ENGINES:
        raise SimError(f"no engine is named {engine!r}; use one of {', '.join(ENGINES)}")
    configs = runs.runs() if isinstance(runs, Sweep) else runs
    if not configs:
        raise SimError("a sweep without a run: give at least one configuration")
    out = Path(out)
    workers = workers or os.cpu_count() or 1
    inputs = _inputs(configs)
    open_runs = {name: config for name, config in configs.items() if not _is_complete(out / name, config, inputs[name])}
    count = len(configs) - len(open_runs)
    try:
        _check(open_runs, workers)
        start = _ray if engine == "ray" else _local
        for name in start(open_runs, out, workers, inputs):
            count += 1
            if done:
                done(name, count, len(configs))
        results = {name: Result(out / name) for name in configs}
        summaries = {name: result.summary for name, result in results.items()}
        (out / "sweep.json").write_text(json.dumps(summaries, indent=2) + "\n")
    except OSError as error:
        raise SimError(f"cannot write the results into {out}: {error.strerror}") from None
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"interrupted: {count} of {len(configs)} are done; the same command goes on")
        raise
    return results


def _check(runs: dict[str, dict[str, Any]], workers: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        checks = {name: pool.submit(runner.check, config) for name, config in runs.items()}
        try:
            for name, future in checks.items():
                _raise_named(name, future.exception())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _local(runs: dict[str, dict[str, Any]], out: Path, workers: int, inputs: dict[str, str]) -> Iterator[str]:
    at_work = _AtWork()

    def work(name: str, config: dict[str, Any]) -> None:
        _begin(out / name, inputs[name])
        runner.start(config, out / name, threads=1, started=at_work.add)

    pool = ThreadPoolExecutor(workers)
    futures = {pool.submit(work, name, config): name for name, config in runs.items()}
    try:
        try:
            while futures:
                finished, _ = wait(futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = futures.pop(future)
                    _raise_named(name, future.exception())
                    yield name
        except SimError:
            # Running ones may complete.
            pool.shutdown(cancel_futures=True)
            raise
    finally:
        # Runs are still in progress only after an interruption, here or in the consumer of the names.
        pool.shutdown(wait=False, cancel_futures=True)
        at_work.end()
        pool.shutdown()


class _AtWork:
    """Simulator processes that threads of this process wait for."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._ending = False

    def add(self, process: subprocess.Popen[str]) -> None:
        """Register a process; it is ended with the others, or at once if they have been ended."""
        self._processes.append(process)
        if self._ending:
            process.terminate()

    def end(self) -> None:
        """End all, with complete tables if possible within PATIENCE_S, and at once if interrupted."""
        self._ending = True
        for process in self._processes:
            process.terminate()
        try:
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(runner.PATIENCE_S)
        finally:
            for process in self._processes:
                process.kill()


def _ray(runs: dict[str, dict[str, Any]], out: Path, _workers: int, inputs: dict[str, str]) -> Iterator[str]:
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
        _begin(out / name, inputs[name])
        # The summary marks a run as complete: it is written last.
        for file in sorted(files, key=lambda file: file == "summary.json"):
            (out / name / file).write_bytes(files[file])
        yield name


def _elsewhere(config: dict[str, Any]) -> dict[str, bytes]:
    """Run on another machine; returns the written files."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        runner.run(config, folder, threads=1)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _raise_named(name: str, error: BaseException | None) -> None:
    if isinstance(error, SimError):
        raise SimError(f"{name}: {error}")
    if error is not None:
        raise error


def _inputs(configs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Digests of each run's inputs beside its configuration (simulator and named files), as JSON."""
    known: dict[Path, str] = {}

    def digest(path: Path) -> str:
        if path not in known:
            with path.open("rb") as file:
                known[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return known[path]

    simulator = digest(binaries.find(runner.SIMULATOR))

    def of(config: dict[str, Any]) -> str:
        paths = files.named(files.absolute(config, Path.cwd()))
        content = {"simulator": simulator, "files": {str(path): digest(path) for path in paths}}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"

    return {name: of(config) for name, config in configs.items()}


def _begin(folder: Path, inputs: str) -> None:
    """Invalidate the folder's earlier result, if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)
    (folder / INPUTS).write_text(inputs)


def _is_complete(folder: Path, config: dict[str, Any], inputs: str) -> bool:
    wanted = {GIVEN: toml.dumps(config), INPUTS: inputs}
    return (folder / "summary.json").is_file() and all(
        (folder / name).is_file() and (folder / name).read_text() == text for name, text in wanted.items()
    )


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    place: Any = config
    *parents, last = key.split(".")
    try:
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[int(last) if isinstance(place, list) else last] = value
    except (IndexError, ValueError, TypeError, AttributeError):
        raise SimError(f"the base configuration has no place for {key!r}") from None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else _exact(value)
    return "".join(c if c.isalnum() or c in "._-*" else "_" for c in text)


def _exact(value: Any) -> str:
    return json.dumps(value, default=str)


def _with_hash(name: str, chosen: dict[str, Any]) -> str:
    """A unique name within the length limit of file systems."""
    suffix = hashlib.sha256(_exact(chosen).encode()).hexdigest()[:8]
    return name.encode()[:_NAME_BYTES].decode(errors="ignore") + "-" + suffix
