"""The comparison's work on Celery. The worker is `celery -A on_celery worker`; run as a program it publishes N tasks.

Late acks, quorum queues with Celery's native delayed delivery for the retry, confirms where a worker publishes, no results kept.
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
    task_default_queue_type="quorum",
    task_default_exchange_type="topic",
    # The waits of retries are the broker's, not the worker's memory: these queues and quorum queues belong together.
    broker_native_delayed_delivery_queue_type="quorum",
    worker_prefetch_multiplier=int(os.environ.get("COMPARE_PREFETCH", "256")) // int(os.environ.get("COMPARE_CONCURRENCY", "2")),
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
