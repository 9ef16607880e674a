"""Measures the sides in turn, round by round, and writes the report. Started by `run`, which installs and starts what it needs.

Every side does the same work with a handler in its own process that only notes the moment it was called. Tasks are published before the
worker starts. All times are between calls of handlers, so that no side's own counting is believed.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sides
from machinery import Broken, Broker, Marks, Redis, Running

HERE = Path(__file__).resolve().parent
# A side that calls no handler for this long has stopped.
STANDSTILL_S = 60
PAYLOAD_BYTES = 100
DELAY_S = 10


def percentile(values, percent):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class Peak:
    """The most memory that workers were seen with together, looked at four times a second: a look costs the machine a little."""

    def __init__(self, workers):
        self.workers, self.next, self.resident, self.proportional = workers, 0, 0, 0

    def look(self):
        if time.monotonic() >= self.next:
            seen = [worker.memory() for worker in self.workers]
            self.resident = max(self.resident, sum(resident for resident, _ in seen))
            self.proportional = max(self.proportional, sum(proportional for _, proportional in seen))
            self.next = time.monotonic() + 0.25


def drain_with_worker(side, work, tasks, folder, marks, broker):
    """Another product: a publisher, then a worker until every call was made. Returns (seconds to the first call, peak, {})."""
    environment = {**side.environment, "COMPARE_MARKS": marks.folder, "COMPARE_DELAY_S": DELAY_S, "PYTHONDONTWRITEBYTECODE": 1}
    workers, redis, vhost = [], None, None
    try:
        if side.redis_fsync:
            redis = Redis(folder / "redis", side.redis_fsync)
            environment["COMPARE_REDIS_PORT"] = redis.port
        else:
            vhost = broker.new_vhost()
            environment["COMPARE_BROKER"] = broker.url(vhost)
        publisher = Running([*side.publish, work, tasks], folder / "publisher.log", environment, HERE)
        try:
            publisher.finish()
        finally:
            publisher.stop()
        if vhost:
            broker.wait_for_depth(vhost, tasks)
        started = time.monotonic()
        for command in side.workers:
            workers.append(Running(command, folder / "worker.log", environment, HERE))
        peak = Peak(workers)
        goal = tasks * 2 if work == "fails_once" else tasks
        seen, since = -1, started
        while (count := marks.count()) < goal:
            for worker in workers:
                worker.check()
            if count != seen:
                seen, since = count, time.monotonic()
            elif time.monotonic() - since > STANDSTILL_S:
                raise Broken(f"{side.key} stood still at {count} of {goal} calls:\n{workers[0].tell()}")
            if work == "fails_once":
                peak.look()
            time.sleep(0.02)
        return min(moment for moment in marks.read()[0].values()) - started, peak, {}
    finally:
        for worker in workers:
            worker.stop()
        if redis:
            redis.running.stop()
        if vhost:
            broker.drop_vhost(vhost)


def drain_with_bench(binary, work, tasks, folder, marks, broker):
    """Ours: `redeliver bench` publishes, and starts a worker in a process of its own, whose memory the system tells at its end."""
    vhost = broker.new_vhost()
    scenario = {"noop": "first-try", "fails_once": "fail-once"}[work]
    command = [binary, "bench", "--scenario", scenario, "--runs", 1, "--tasks", tasks, "--concurrency", sides.PREFETCH,
               "--delay", f"{DELAY_S}s", "--dir", folder, "--marks", marks.folder / "all", "--report", folder / "report"]
    program = None
    try:
        environment = {"REDELIVER_BROKER_URL": broker.url(vhost)}
        program = Running(command, folder / "bench.log", environment, folder)
        program.finish()
        figures = json.loads((folder / "report").read_text())["scenarios"][0]["medians"]
        peak = Peak([])
        peak.resident = peak.proportional = figures["worker_peak_mb"] * 1e6
        said = {"ceiling_per_s": figures["bare_consume_per_s"], "to_last_settled_per_s": figures.get("tasks_per_s")}
        return figures["first_start_ms"] / 1000, peak, said
    finally:
        if program:
            program.stop()
        broker.drop_vhost(vhost)


def measure(side, work, tasks, broker, binary):
    """One side, one kind of work, once: its figures."""
    folder = Path(tempfile.mkdtemp(prefix="redeliver-compare-"))
    try:
        marks = Marks(folder / "marks")
        if side.key == "redeliver":
            start_s, peak, said = drain_with_bench(binary, work, tasks, folder, marks, broker)
        else:
            start_s, peak, said = drain_with_worker(side, work, tasks, folder, marks, broker)
        calls, again = marks.read()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    first_tries = {task: moment for (task, attempt), moment in calls.items() if attempt == 1}
    if len(first_tries) != tasks:
        raise Broken(f"{side.key} called the handler for {len(first_tries)} of {tasks} tasks")
    begin, end = min(calls.values()), max(calls.values())
    figures = {"first_call_s": round(start_s, 2), "calls_beyond_one": again}
    if work == "noop":
        # The broker of ours stood idle for the other's run and the other way round; neither's publishing counts.
        return {**figures, "tasks_per_s": round(tasks / (end - begin)), **said}
    late_ms = [(calls[task, 2] - moment - DELAY_S) * 1000 for task, moment in first_tries.items()]
    return {
        **figures,
        "all_done_s": round(end - begin, 2),
        "first_round_s": round(max(first_tries.values()) - begin, 2),
        "late_p50_ms": round(percentile(late_ms, 50)),
        "late_p99_ms": round(percentile(late_ms, 99)),
        "late_min_ms": round(min(late_ms)),
        "resident_mb": round(peak.resident / 1e6, 1),
        "proportional_mb": round(peak.proportional / 1e6, 1),
    }


def medians(rounds):
    """Of each figure that every round has."""
    return {
        work: {name: statistics.median(one[work][name] for one in rounds) for name in figures}
        for work, figures in rounds[0].items()
    }


def promises(measured):
    """What this project says of itself beside the others, as [{what, limit, found, kept}]; only what was measured."""
    by_name = {}
    for side in measured:
        rate = side["median"]["noop"]["tasks_per_s"]
        by_name[side["name"]] = max(rate, by_name.get(side["name"], 0))
    ours = next((side["median"] for side in measured if side["key"] == "redeliver"), None)
    found = []
    if ours:
        for name, times in (("BullMQ", 1), ("Dramatiq", 2), ("Celery", 5)):
            if name in by_name:
                ratio = by_name["redeliver"] / by_name[name]
                found.append({"what": f"no-op tasks/s ÷ {name}'s best", "least": times, "found": round(ratio, 2), "kept": ratio >= times})
        wave = ours["fails_once"]
        limits = (
            ("all done, s (delay + 1.5 × first round)", DELAY_S + 1.5 * wave["first_round_s"], wave["all_done_s"]),
            ("retries late, p99, ms", 500, wave["late_p99_ms"]),
            ("memory, MB", 40, wave["resident_mb"]),
        )
        for what, most, figure in limits:
            found.append({"what": what, "most": round(most, 2), "found": figure, "kept": figure <= most})
    return found


def versions(binary):
    def said(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    return {
        "redeliver": said(binary, "--version")[1],
        "Redis": said("redis-server", "--version")[2].removeprefix("v="),
        "Python": sys.version.split()[0],
        "Node": said("node", "--version")[0].removeprefix("v"),
    }


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--failing", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append")
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--binary", required=True)
    parser.add_argument("--report", type=Path, required=True)
    return parser.parse_args()


def main():
    # As Ctrl-C: what was started is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    broker = Broker()
    used = {"RabbitMQ": broker.version(), **versions(options.binary)}
    chosen = sides.every(used["redeliver"])
    if options.only:
        chosen = [side for side in chosen if side.key in options.only or side.name.lower() in options.only]
        if not chosen:
            print(f"benches/compare: no side {' '.join(options.only)}; there are", *(side.key for side in sides.every("")), file=sys.stderr)
            sys.exit(2)
    print("  ".join(f"{name} {version}" for name, version in {**used, **{side.name: side.version for side in chosen}}.items()))
    work = {"noop": options.tasks, "fails_once": options.failing}
    report = {
        "tasks": work,
        "payload_bytes": PAYLOAD_BYTES,
        "delay_s": DELAY_S,
        "cores": os.cpu_count(),
        "versions": used,
        "sides": [
            {"key": s.key, "name": s.name, "version": s.version, "setting": s.setting, "after_a_kill": s.after_a_kill, "rounds": []}
            for s in chosen
        ],
    }
    if options.add and options.report.exists():
        earlier = json.loads(options.report.read_text())
        same = ("tasks", "payload_bytes", "delay_s", "cores", "versions")
        if [earlier[name] for name in same] != [report[name] for name in same] or [s["key"] for s in earlier["sides"]] != [s.key for s in chosen]:
            print(f"benches/compare: {options.report} is of other work, versions or sides; leave out --add", file=sys.stderr)
            sys.exit(2)
        for now, before in zip(report["sides"], earlier["sides"], strict=True):
            now["rounds"] = before["rounds"]
    for number in range(options.rounds):
        # Each round begins with another side: nobody always follows the same one.
        done = len(report["sides"][0]["rounds"]) % len(chosen)
        order = list(zip(chosen, report["sides"], strict=True))
        figures = {}
        for side, entry in order[done:] + order[:done]:
            figures[side.key] = {}
            for name in side.works:
                tasks = work[name]
                figures[side.key][name] = measure(side, name, tasks, broker, options.binary)
                print(f"round {number + 1} of {options.rounds}  {side.key:16} {name:10} {figures[side.key][name]}", flush=True)
        for side, entry in order:
            entry["rounds"].append(figures[side.key])
    for entry in report["sides"]:
        entry["median"] = medians(entry["rounds"])
    report["promises"] = promises(report["sides"])
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for promise in report["promises"]:
        bound = f"at least {promise['least']}" if "least" in promise else f"at most {promise['most']}"
        print(f"{'kept' if promise['kept'] else 'NOT kept'}: {promise['what']}: {promise['found']}, {bound}")
    sys.exit(0 if all(promise["kept"] for promise in report["promises"]) else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Broken as error:
        print(f"benches/compare: {error}", file=sys.stderr)
        sys.exit(3)
