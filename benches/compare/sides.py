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
# Unacked messages of all of a product's processes together, and calls at once where a call costs no thread and no process.
PREFETCH = 256
CONCURRENCY = 64


@dataclass
class Side:
    """A product in one setting. `worker` and `publish` are commands; `environment` is what both need besides the broker's address.

    `setting` and `after_a_kill` are in English and Chinese: they go into the README's table.
    """

    key: str
    name: str
    version: str
    setting: dict
    after_a_kill: dict
    worker: list = field(default_factory=list)
    publish: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    redis_fsync: str | None = None


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
    workers = {"prefork": 2, "threads": 8}[pool]
    return Side(
        key=f"celery-{pool}",
        name="Celery",
        version=importlib.metadata.version("celery"),
        setting={
            "en": {"prefork": "pool of 2 processes (its default)", "threads": "pool of 8 threads"}[pool],
            "zh": {"prefork": "2 个进程的池（默认）", "threads": "8 个线程的池"}[pool],
        },
        after_a_kill={"en": "nothing lost; run again, not counted; no record", "zh": "不丢；再跑一次，不计数；无记录"},
        worker=[VENV / "celery", "-A", "on_celery", "worker", "-P", pool, "-c", workers, "-O", "fair", "-l", "ERROR",
                "--without-gossip", "--without-mingle", "--without-heartbeat"],
        publish=[VENV / "python", "on_celery.py"],
        environment={"COMPARE_PREFETCH": PREFETCH, "COMPARE_CONCURRENCY": workers},
    )


def dramatiq():
    processes, threads = 2, 8
    return Side(
        key="dramatiq",
        name="Dramatiq",
        version=importlib.metadata.version("dramatiq"),
        setting={"en": "2 processes of 8 threads (its default)", "zh": "2 个进程，各 8 个线程（默认）"},
        after_a_kill={"en": "nothing lost; run again, not counted; no record", "zh": "不丢；再跑一次，不计数；无记录"},
        worker=[VENV / "dramatiq", "on_dramatiq", "-p", processes, "-t", threads, "--skip-logging"],
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
        worker=["node", "on_bullmq.js", "work"],
        publish=["node", "on_bullmq.js", "publish"],
        environment={"COMPARE_CONCURRENCY": CONCURRENCY, "NODE_PATH": TOOLS / "node/node_modules", "NODE_ENV": "production"},
        redis_fsync=fsync,
    )


def every(redeliver_version):
    return [
        redeliver(redeliver_version),
        bullmq("everysec"),
        bullmq("always"),
        dramatiq(),
        celery("threads"),
        celery("prefork"),
    ]
