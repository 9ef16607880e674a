"""The comparison's work on Celery. The worker is `celery -A on_celery worker`; run as a program it publishes N tasks.

Late acks, confirms where a worker publishes, no results kept. Durable classic queues, where the worker holds what waits for a retry: quorum
queues with native delayed delivery were slower for it.
"""

import os
import sys

from celery import Celery

import marks

app = Celery("compare", broker=os.environ["COMPARE_BROKER"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    task_default_queue="compare",
    worker_prefetch_multiplier=int(os.environ["COMPARE_PREFETCH_PER_CALL"]),
    # One at a time and a round trip each: what the publisher of the first attempts may leave out, since its queue is counted afterwards.
    broker_transport_options={"confirm_publish": __name__ != "__main__"},
)


@app.task(name="noop")
def noop(payload):
    marks.mark(int(payload[:8]), 1)


@app.task(name="fails_once", bind=True, max_retries=3)
def fails_once(self, payload):
    attempt = self.request.retries + 1
    marks.mark(int(payload[:8]), attempt)
    if attempt == 1:
        raise self.retry(countdown=float(os.environ["COMPARE_DELAY_S"]))


if __name__ == "__main__":
    task = {"noop": noop, "fails_once": fails_once}[sys.argv[1]]
    with app.producer_pool.acquire(block=True) as producer:
        for n in range(int(sys.argv[2])):
            task.apply_async((f"{n:08}".ljust(100, "x"),), producer=producer)
