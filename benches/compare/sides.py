"""How each product is started, as its users would start it on 2 cores, and what it says of itself. Nothing here measures.

Where a product has more than one sensible way, it is here more than once; what was tried and was slower is said in README.md beside this.
"""

import importlib.metadata
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Where `run` put what it installed.
TOOLS = Path(os.environ["COMPARE_TOOLS"])
VENV = Path(sys.prefix) / "bin"
# Unacked messages, or jobs taken, of all of a product's processes together.
PREFETCH = 256


@dataclass
class Side:
    """A product in one setting. `workers` and `publish` are commands; `environment` is what both need besides the broker's address.

    `setting` and `after_a_kill` are in English and Chinese: they go into the README's table. `works` are the kinds of work that it is
    measured with.
    """

    key: str
    name: str
    version: str
    setting: dict
    after_a_kill: dict
    workers: list = field(default_factory=list)
    publish: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    redis_fsync: str | None = None
    works: tuple = ("noop", "fails_once")


def redeliver(version):
    return Side(
        key="redeliver",
        name="redeliver",
        version=version,
        setting={
            "en": "one process, SQLite with `synchronous = FULL`",
            "zh": "一个进程，SQLite 用 `synchronous = FULL`",
        },
        after_a_kill={
            "en": "nothing lost; run again, counted as an attempt; every attempt on record",
            "zh": "不丢；再跑一次，计为一次尝试；每次尝试都有记录",
        },
    )


def celery(pool):
    # Solo workers do without the hand-over from who consumes to who runs: no-op tasks are faster, and retries wait for the handler's end.
    workers, calls = {"threads": (1, 8), "solo": (2, 1)}[pool]
    command = [VENV / "celery", "-A", "on_celery", "worker", "-P", pool, "-c", calls, "-O", "fair", "-l", "ERROR",
               "--without-gossip", "--without-mingle", "--without-heartbeat"]
    return Side(
        key=f"celery-{pool}",
        name="Celery",
        version=importlib.metadata.version("celery"),
        setting={
            "en": {"threads": "a pool of 8 threads", "solo": "2 solo workers"}[pool],
            "zh": {"threads": "8 个线程的池", "solo": "2 个 solo worker"}[pool],
        },
        after_a_kill={"en": "nothing lost; run again, not counted; no record", "zh": "不丢；再跑一次，不计数；无记录"},
        workers=[[*command, "-n", f"worker{number}@compare"] for number in range(workers)],
        publish=[VENV / "python", "on_celery.py"],
        environment={"COMPARE_PREFETCH_PER_CALL": PREFETCH // (workers * calls)},
        # With retries it is not how anybody would run it: see README.md.
        works={"threads": ("noop", "fails_once"), "solo": ("noop",)}[pool],
    )


def dramatiq():
    processes, threads = 2, 8
    return Side(
        key="dramatiq",
        name="Dramatiq",
        version=importlib.metadata.version("dramatiq"),
        setting={"en": "2 processes of 8 threads (its default)", "zh": "2 个进程，各 8 个线程（默认）"},
        after_a_kill={"en": "nothing lost; run again, not counted; no record", "zh": "不丢；再跑一次，不计数；无记录"},
        workers=[[VENV / "dramatiq", "on_dramatiq", "-p", processes, "-t", threads, "--skip-logging"]],
        publish=[VENV / "python", "on_dramatiq.py"],
        environment={"dramatiq_queue_prefetch": PREFETCH // processes},
    )


def bullmq(fsync):
    return Side(
        key=f"bullmq-{fsync}",
        name="BullMQ",
        version=json.loads((TOOLS / "node/node_modules/bullmq/package.json").read_text())["version"],
        setting={
            "en": f"one process, Redis with `appendfsync {fsync}`",
            "zh": f"一个进程，Redis 用 `appendfsync {fsync}`",
        },
        after_a_kill={
            "everysec": {
                "en": "run again once, then failed; a power cut loses the last second; no record",
                "zh": "再跑一次，之后算失败；断电丢最后一秒；无记录",
            },
            "always": {"en": "nothing lost; run again once, then failed; no record", "zh": "不丢；再跑一次，之后算失败；无记录"},
        }[fsync],
        workers=[["node", "on_bullmq.js", "work"]],
        publish=["node", "on_bullmq.js", "publish"],
        environment={"COMPARE_CONCURRENCY": PREFETCH, "NODE_PATH": TOOLS / "node/node_modules", "NODE_ENV": "production"},
        redis_fsync=fsync,
    )


def every(redeliver_version):
    return [
        redeliver(redeliver_version),
        bullmq("everysec"),
        bullmq("always"),
        dramatiq(),
        celery("threads"),
        celery("solo"),
    ]
