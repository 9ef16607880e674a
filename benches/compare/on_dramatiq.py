"""The comparison's work on Dramatiq. The worker is `dramatiq on_dramatiq`; run as a program it publishes N tasks.

Dramatiq acks after the handler anyway, and has classic queues only. What waits for a retry is held by the workers, unacked.
"""

import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.errors import Retry
from dramatiq.middleware import CurrentMessage, Retries

import marks

# Only what the work needs: the broker's default list has time limits and shutdown notices besides, which cost a little.
broker = RabbitmqBroker(
    url=os.environ["COMPARE_BROKER"],
    confirm_delivery=__name__ != "__main__",
    middleware=[Retries(), CurrentMessage()],
)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="compare")
def noop(payload):
    marks.mark(int(payload[:8]), 1)


@dramatiq.actor(queue_name="compare")
def fails_once(payload):
    attempt = CurrentMessage.get_current_message().options.get("retries", 0) + 1
    marks.mark(int(payload[:8]), attempt)
    if attempt == 1:
        # Says the delay itself: the back-off of the actor's options is jittered.
        raise Retry(delay=int(float(os.environ["COMPARE_DELAY_S"]) * 1000))


if __name__ == "__main__":
    actor = {"noop": noop, "fails_once": fails_once}[sys.argv[1]]
    for n in range(int(sys.argv[2])):
        actor.send(f"{n:08}".ljust(100, "x"))
    broker.close()
