"""Publishes one task safely and waits for its result. `pip install pika`; then `python publish.py order-1001`.

Exit code 0: it succeeded, its result is on stdout. 1: it is dead, discarded or cancelled. 2: nobody took it. 3: nobody knows yet.
"""

import json
import os
import sys
import time

import pika
from pika.exceptions import AMQPError, NackError, UnroutableError

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f")
TYPE = "order.ship"
TRIES = 5
WAIT_S = 60


def submit(task_id, payload):
    """A channel and a reply queue on which the result will come, once the broker has the task."""
    for attempt in range(TRIES):
        try:
            parameters = pika.URLParameters(URL)
            # A broker that is out of memory or disk blocks publishers instead of refusing them.
            parameters.blocked_connection_timeout = 10
            connection = pika.BlockingConnection(parameters)
            channel = connection.channel()
            channel.confirm_delivery()
            replies = channel.queue_declare("", exclusive=True).method.queue
            task = {"id": task_id, "type": TYPE, "payload": payload, "reply_to": replies}
            # Returns when the broker has confirmed it.
            channel.basic_publish(
                exchange="redeliver.submit",
                routing_key=TYPE,
                body=json.dumps(task),
                properties=pika.BasicProperties(delivery_mode=2, content_type="application/json", message_id=task_id),
                mandatory=True,
            )
            return channel, replies
        except UnroutableError:
            print(f"no queue takes {TYPE}: is redeliver set up in this virtual host?", file=sys.stderr)
            sys.exit(2)
        except (NackError, AMQPError) as error:
            # Not confirmed is not the same as not taken. The same id again makes it one task either way.
            print(f"not confirmed ({error!r}), once more", file=sys.stderr)
            time.sleep(2**attempt)
    sys.exit(3)


def main():
    task_id = sys.argv[1] if len(sys.argv) > 1 else "order-1001"
    channel, replies = submit(task_id, {"order": task_id})
    for method, properties, body in channel.consume(replies, auto_ack=True, inactivity_timeout=WAIT_S):
        if method is None:
            print(f"{task_id} is accepted and has not ended; ask again with the same id", file=sys.stderr)
            sys.exit(3)
        if properties.correlation_id == task_id:
            told = json.loads(body)
            print(json.dumps(told.get("result")))
            sys.exit(0 if told["status"] == "succeeded" else 1)


if __name__ == "__main__":
    main()
